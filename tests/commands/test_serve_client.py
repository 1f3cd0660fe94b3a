"""The command serve_client, against a model server in this process."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "client"))

from fake_server import SERVE, upper_case_model


@pytest.fixture
def model():
    return upper_case_model()


@pytest.fixture(params=list(SERVE))
def server(request, model):
    """The flags that lead to a server."""
    with SERVE[request.param](model) as address:
        yield f"--server={address}", f"--protocol={request.param}"


def test_lines_of_input_are_translated_in_order(call, server, model, texts):
    result = call("serve_client.py", *server, stdin="two\n\nтри\r\n".encode())
    assert result == (0, "TWO\n\nТРИ\n", "")
    model.requests.clear()
    files = [texts / "dev.a", texts / "test.a"]
    result = call("serve_client.py", *server, "--batch_size=5", *files)
    assert (result.code, result.err) == (0, "")
    assert result.out == "".join(path.read_text().upper() for path in files)
    assert max(len(request.inputs["text"]) for request in model.requests) == 5


def test_scores_come_with_line_numbers(call, server):
    result = call("serve_client.py", *server, "--scores", stdin=b"two\nthree\n")
    assert result == (0, "1\t-3.0000\tTWO\n2\t-5.0000\tTHREE\n", "")


def test_each_sentence_is_one_line(call, server, model):
    text = "a\nb\tc\rd\x85e"
    model.versions[1] = lambda *_: {"translations": [[text, text]], "scores": [[-1.0, -2.0]]}
    result = call("serve_client.py", *server, stdin=b"two\n")
    assert result == (0, "1\t-1.0000\ta b c d e\n1\t-2.0000\ta b c d e\n", "")
    model.versions[1] = lambda *_: {"translations": [[text]], "scores": [[-1.0]]}
    assert call("serve_client.py", *server, stdin=b"two\n") == (0, "a b c d e\n", "")


def test_options_and_prefixes_are_sent(call, server, model, tmp_path):
    (tmp_path / "prefixes").write_text("Z\n\n")
    options = ("--length_penalty=0.5", "--max_length=7", f"--prefixes={tmp_path}/prefixes")
    result = call("serve_client.py", *server, *options, stdin=b"two\nfour\n")
    assert (result.code, result.err) == (0, "")
    (request,) = model.requests
    assert request.signature == "translate_options"
    assert request.inputs == {
        "text": ["four", "two"],
        "length_penalty": [0.5, 0.5],
        "max_length": [7, 7],
        "seed": [-1, -1],
        "prefix": ["", "Z"],
        "banned_phrases": ["", ""],
    }


def test_unknown_option_is_reported(call, server, refused):
    result = call("serve_client.py", *server, "--top_k=3", stdin=b"two\n")
    refused(result, "the model has no option top_k", "it has banned_phrases, length_penalty,")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--length_penalty=-1", "length_penalty must be at least 0, got -1.0"),
        ("--top_p=2", "top_p is a probability, at most 1, got 2.0"),
        ("--banned_phrases= ", "banned_phrases must not be blank"),
        ("--max_length=two", "--max_length must be an integer, got 'two'"),
        ("--beam_size=2", "unknown flag --beam_size"),
    ],
)
def test_invalid_option_sends_no_request(call, server, refused, model, option, message):
    refused(call("serve_client.py", *server, option, stdin=b"two\n"), message)
    assert not model.requests


def test_references_are_scored(call, server, tmp_path):
    (tmp_path / "references").write_text("eins zwei\ndrei\n")
    references = f"--references={tmp_path}/references"
    result = call("serve_client.py", *server, references, stdin=b"one two\nthree\n")
    assert result.out == "1\t-0.7500\t-0.2500\t-0.2500\t-0.2500\n2\t-0.5000\t-0.2500\t-0.2500\n"
    assert (result.code, result.err) == (0, "")


def test_number_of_references_must_match(call, server, refused, tmp_path):
    (tmp_path / "references").write_text("eins\nzwei\n")
    references = f"--references={tmp_path}/references"
    result = call("serve_client.py", *server, references, stdin=b"one\ntwo\nthree\n")
    refused(result, "references has 2 lines, the input has more")
    result = call("serve_client.py", *server, references, stdin=b"one\n")
    refused(result, "references has more lines than the 1 of the input")
    result = call("serve_client.py", *server, references, "--max_length=3", stdin=b"one\n")
    refused(result, "cannot be combined with search options; remove them")


def test_alignments_follow_translations_and_scores(call, server, tmp_path):
    result = call("serve_client.py", *server, "--alignments", stdin=b"one two\nthree four\n")
    assert result == (0, "ONE TWO\t1-0 0-1\nTHREE FOUR\t1-0 0-1\n", "")
    (tmp_path / "references").write_text("eins zwei\n")
    references = f"--references={tmp_path}/references"
    result = call("serve_client.py", *server, references, "--alignments", stdin=b"one two\n")
    assert result == (0, "1\t-0.7500\t-0.2500\t-0.2500\t-0.2500\t1-0 0-1\n", "")


def test_rest_does_not_load_tensorflow(run, model, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was loaded')")
    path = os.pathsep.join(map(str, (tmp_path, pathlib.Path(__file__).parents[2])))
    lines = tmp_path / "lines"
    lines.write_text("one two\nthree four\n")
    with SERVE["rest"](model) as address:
        client = ("serve_client.py", f"--server={address}", "--protocol=rest", lines)
        for option in ("--alignments", f"--prefixes={lines}", f"--references={lines}"):
            result = run(*client, option, env={"PYTHONPATH": path})
            assert (result.code, result.err, len(result.out.splitlines())) == (0, "", 2)


def test_status_has_a_line_for_each_version(call, server, model):
    model.states[2] = ("END", "no such\nfile")
    result = call("serve_client.py", *server, "--status")
    assert result == (0, "1\tAVAILABLE\t\n2\tEND\tno such file\n", "")


def test_version_and_label_are_chosen(call, server, model):
    model.labels["canary"] = 1
    for choice in ("--model_version=1", "--label=canary"):
        assert call("serve_client.py", *server, choice, stdin=b"two\n").out == "TWO\n"
    assert call("serve_client.py", *server, "--model_version=3", stdin=b"two\n").code == 1


def test_errors_are_one_line(call, server, refused, free_ports):
    refused(call("serve_client.py", *server, "--model=other", "--status"), "no model 'other'")
    refused(call("serve_client.py", *server, "absent.txt"), "the file absent.txt does not exist;")
    refused(call("serve_client.py", *server, stdin=b"a\n\xff\n"), "standard input, line 2 is not")
    refused(call("serve_client.py", "--server=localhost", "--status"), "must be host:port")
    refused(call("serve_client.py", "--status"), "--server must be given")
    down = (f"--server=127.0.0.1:{free_ports(1)[0]}", server[1], "--retries=1")
    refused(call("serve_client.py", *down, "--status"), "no answer from a", "tried for")


@pytest.mark.parametrize("protocol", list(SERVE))
def test_certificates_and_headers_are_read_from_files(
    call, model, refused, certificates, tmp_path, protocol
):
    model.required_headers = {"authorization": "Bearer s3cret"}
    names = ("server.pem", "server.key", "ca.pem")
    (tmp_path / "token").write_text("authorization: Bearer s3cret\n\nx-team: mt\n")
    (tmp_path / "wrong").write_text("Bearer s3cret\n")
    trust = (f"--protocol={protocol}", "--tls", f"--root_certificates={certificates}/ca.pem")
    pair = (
        f"--client_certificate={certificates}/client.pem",
        f"--client_key={certificates}/client.key",
    )
    headers = f"--headers_file={tmp_path}/token"
    with SERVE[protocol](model, tls=[certificates / name for name in names]) as address:
        command = ("serve_client.py", f"--server={address}", *trust)
        result = call(*command, *pair, headers, stdin=b"two\n")
        assert result == (0, "TWO\n", "")
        assert model.headers["x-team"] == "mt"
        refused(call(*command, *pair, "--status"), "does not accept the credentials: a valid")
        refused(call(*command, headers, "--retries=0", "--status"), "over TLS with these cert")
        result = call(*command, f"--headers_file={tmp_path}/wrong", "--status")
        refused(result, "wrong, line 1 must be name: value")
        assert "s3cret" not in result.err
        (tmp_path / "wrong").write_text("")
        result = call(*command, f"--headers_file={tmp_path}/wrong", "--status")
        refused(result, "wrong is empty; expected headers, one a line, name: value")
        reading, writing = os.pipe()  # as a shell passes the output of a password manager
        os.write(writing, b"authorization: Bearer s3cret\n")
        os.close(writing)
        piped = f"--headers_file=/dev/fd/{reading}"
        assert call(*command, *pair, piped, stdin=b"two\n") == (0, "TWO\n", "")
        os.close(reading)


@pytest.mark.slow
def test_grpc_writes_no_log(run, model, refused, certificates):
    files = (certificates / "server.pem", certificates / "server.key", None)
    wrong = ("--tls", f"--root_certificates={certificates}/other.pem", "--retries=0", "--status")
    with SERVE["grpc"](model, tls=files) as address:
        result = run("serve_client.py", f"--server={address}", *wrong)
    refused(result, "CERTIFICATE_VERIFY_FAILED")


def test_help_names_defaults_of_the_export(call):
    result = call("serve_client.py", "--help")
    assert result.code == 0
    text = " ".join(result.out.split())
    assert "--length_penalty:" in text
    assert text.count("Default: as exported.") >= 10
    assert "Default: 0.6" not in text
