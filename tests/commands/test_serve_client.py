"""The command serve_client, against a model server in this process."""

import os
import pathlib
import select
import subprocess

import pytest
from fake_server import SERVE, FaultError, upper_case_model


@pytest.fixture
def model():
    return upper_case_model()


@pytest.fixture
def protocol():
    """REST; tests in which the protocol makes a difference are parametrized."""
    return "rest"


@pytest.fixture
def client(protocol, call, model):
    with SERVE[protocol](model) as address:

        def client(*arguments, stdin=b""):
            server = (f"--server={address}", f"--protocol={protocol}")
            return call("serve_client.py", *server, *arguments, stdin=stdin)

        yield client


@pytest.mark.parametrize("protocol", list(SERVE))
def test_lines_of_input_are_translated_in_order(client, model, texts, tmp_path):
    assert client(stdin="two\n\nтри\r\n".encode()) == (0, "TWO\n\nТРИ\n", "")
    model.requests.clear()
    files = [texts / "dev.en", texts / "test.en"]
    result = client("--batch_size=5", *files)
    assert result == (0, "".join(path.read_text().upper() for path in files), "")
    assert max(len(request.inputs["text"]) for request in model.requests) == 5
    (tmp_path / "out").write_text("an older file\n")
    assert client(f"--output={tmp_path}/out", *files) == (0, "", "")
    assert (tmp_path / "out").read_text() == result.out
    assert os.listdir(tmp_path) == ["out"]


_ODD = "a\nb\tc\rd\x85e"
_CUT = "1 line (1): longer than the model reads (max_source_length); the end is not read\n"


@pytest.mark.parametrize(
    ("arguments", "answer", "out", "err"),
    [
        (["--scores"], None, "1\t-3.0000\tTWO\n", ""),
        (["--model_version=1"], None, "TWO\n", ""),
        ([], {"translations": [[_ODD, _ODD]], "scores": [[-1.0, -2.0]]},
         "1\t-1.0000\ta b c d e\n1\t-2.0000\ta b c d e\n", ""),
        # An empty place of a list is not written.
        ([], {"translations": [["TWO", ""]], "scores": [[-1.0, -1e9]]}, "1\t-1.0000\tTWO\n", ""),
        ([], {"translations": [["TWO"]], "scores": [[-1.0]], "source_cut": [True]}, "TWO\n", _CUT),
    ],
)  # fmt: skip
def test_forms_of_output(client, model, arguments, answer, out, err):
    if answer is not None:
        model.versions[1] = lambda *_: answer
    assert client(*arguments, stdin=b"two\n") == (0, out, err)


def test_options_are_sent(client, model):
    options = ("--length_penalty=0.5", "--max_length=7")
    result = client(*options, stdin=b"four\ntwo\n")
    assert (result.code, result.err) == (0, "")
    (request,) = model.requests
    assert request.signature == "translate_options"
    assert request.inputs == {
        "text": ["four", "two"],
        "length_penalty": [0.5, 0.5],
        "max_length": [7, 7],
        "seed": [-1, -1],
        "prefix": ["", ""],
    }


def test_references_are_scored_and_aligned(client, tmp_path):
    result = client("--alignments", stdin=b"one two\nthree four\n")
    assert result == (0, "ONE TWO\t1-0 0-1\nTHREE FOUR\t1-0 0-1\n", "")
    (tmp_path / "references").write_text("eins zwei\ndrei\n")
    references = f"--references={tmp_path}/references"
    first, second = "1\t-0.7500\t-0.2500\t-0.2500\t-0.2500", "2\t-0.5000\t-0.2500\t-0.2500"
    assert client(references, stdin=b"one two\nthree\n") == (0, f"{first}\n{second}\n", "")
    (tmp_path / "references").write_text("eins zwei\n")
    result = client(references, "--alignments", stdin=b"one two\n")
    assert result == (0, f"{first}\t1-0 0-1\n", "")


@pytest.mark.parametrize("protocol", list(SERVE))
def test_client_loads_no_tensorflow_and_writes_no_log(run, model, certificates, tmp_path, protocol):
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was loaded')")
    path = os.pathsep.join(map(str, (tmp_path, pathlib.Path(__file__).parents[2])))
    lines = tmp_path / "lines"
    lines.write_text("one two\nthree four\n")
    pair = (certificates / "server.pem", certificates / "server.key", None)
    wrong = ("--tls", f"--root_certificates={certificates}/other.pem", "--retries=0")
    for tls, flags, code, printed, logged in (
        (None, ("--alignments",), 0, 2, 0),
        (pair, wrong, 1, 0, 1),
    ):
        with SERVE[protocol](model, tls=tls) as address:
            client = ("serve_client.py", f"--server={address}", f"--protocol={protocol}", lines)
            result = run(*client, *flags, env={"PYTHONPATH": path})
        counts = len(result.out.splitlines()), len(result.err.splitlines())
        assert (result.code, *counts) == (code, printed, logged)
    assert "CERTIFICATE_VERIFY_FAILED" in result.err


@pytest.mark.parametrize(
    ("arguments", "lines", "parts"),
    [
        (["--top_k=3"], b"two\n", ["top_k"]),
        (["--model=other"], b"two\n", ["NOT_FOUND from the rest server"]),
        ([], b"a\n\xff\n", ["standard input, line 2 is not UTF-8"]),
        (["--batch_size=3"], b"one\nbad\nsix\nno\n", ["line 1, 2, 3: INVALID_ARGUMENT", "is bad"]),
        (["--references=references"], b"a\nbad\n", ["line 1, 2: INVALID_ARGUMENT"]),
    ],
)
def test_rejected_lines_are_named_and_an_older_file_stays(
    client, model, refused, tmp_path, monkeypatch, arguments, lines, parts
):
    monkeypatch.chdir(tmp_path)
    model.rejection = FaultError("INVALID_ARGUMENT", "it is bad")
    for name, content in (("out", "an older file\n"), ("references", "a\nb\n")):
        (tmp_path / name).write_text(content)
    refused(client("--output=out", *arguments, stdin=lines), *parts)
    assert (tmp_path / "out").read_text() == "an older file\n"
    assert sorted(os.listdir(tmp_path)) == ["out", "references"]


def test_certificates_and_headers_are_read_from_files(call, model, refused, certificates, tmp_path):
    model.required_headers = {"authorization": "Bearer s3cret"}
    names = ("server.pem", "server.key", "ca.pem")
    (tmp_path / "token").write_text("authorization: Bearer s3cret\n\nx-team: mt\n")
    trust = ("--protocol=rest", "--tls", f"--root_certificates={certificates}/ca.pem")
    pair = (
        f"--client_certificate={certificates}/client.pem",
        f"--client_key={certificates}/client.key",
    )
    headers = f"--headers_file={tmp_path}/token"
    with SERVE["rest"](model, tls=[certificates / name for name in names]) as address:
        command = ("serve_client.py", f"--server={address}", *trust)
        assert call(*command, *pair, headers, stdin=b"two\n") == (0, "TWO\n", "")
        assert model.headers["x-team"] == "mt"
        refused(call(*command, *pair, stdin=b"two\n"), "a valid token is required")
        refused(call(*command, headers, "--retries=0", stdin=b"two\n"), "UNAVAILABLE")
        (tmp_path / "wrong").write_text("Bearer s3cret\n")
        result = call(*command, f"--headers_file={tmp_path}/wrong")
        refused(result, "wrong, line 1 must be name: value")
        assert "s3cret" not in result.err


def test_program_that_waits_for_an_answer_gets_it(start, model):
    with SERVE["rest"](model) as address:
        command = ("serve_client.py", f"--server={address}", "--protocol=rest")
        process = start(*command, stdin=subprocess.PIPE)
        for line in ("one", "two\nthree"):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            for part in line.split():
                assert select.select([process.stdout], [], [], 60)[0]
                answer = os.read(process.stdout.fileno(), len(part) + 1)
                assert answer.decode() == f"{part}\n".upper()
        assert process.communicate()[0] == ""
        assert process.returncode == 0
