"""translate and serve_client with --details and --split_sentences."""

import json

import pytest
from fake_server import FaultError, serve_grpc, upper_case_model


def test_details_are_lines_of_json(translate):
    lines = "p q r\n\nq 木\n".encode()
    result = translate("--details", stdin=lines)
    assert (result.code, result.err) == (0, "")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["line"] for row in rows] == [1, 2, 3]
    plain = translate("--scores", "--alignments", stdin=lines).out.splitlines()
    for row, line in zip(rows, plain, strict=True):
        number, score, text, alignment = line.split("\t")
        assert (row["line"], f"{row['score']:.4f}") == (int(number), score)
        assert (row["text"], row["alignment"]) == (text, alignment)
        assert len(row["tokens"]) == len(row["token_scores"])
        assert (row["source_cut"], row["output_cut"]) == (False, False)
    assert rows[0]["source_tokens"] == ["▁p", "▁q", "▁r", "</s>"]
    assert rows[1]["tokens"] == []


def test_details_say_what_was_cut(translate):
    result = translate("--details", "--max_source_length=2", "--max_length=1", stdin=b"p q r\np\n")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["source_cut"] for row in rows] == [True, False]
    assert [row["output_cut"] for row in rows] == [True, True]
    assert "1 of 2 lines have more than 2 tokens" in result.err


def test_n_best_details_are_one_line_each(translate):
    result = translate("--details", "--num_translations=2", stdin=b"p q\nq\n")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["line"] for row in rows] == [1, 1, 2, 2]
    assert all(row["token_scores"] for row in rows)


@pytest.mark.parametrize("other", ["--scores", "--alignments", "--references=x"])
@pytest.mark.parametrize("flag", ["--details", "--split_sentences=en"])
def test_flags_that_exclude_each_other(translate, refused, flag, other):
    refused(translate(flag, other, stdin=b"p\n"), "cannot be combined", other.partition("=")[0])


@pytest.mark.slow
def test_export_writes_the_details_of_its_run(translate, call, trained, texts, tmp_path, refused):
    arguments = (f"--run_dir={trained}", f"--export_dir={tmp_path}", "--details")
    result = call("export.py", *arguments)
    assert (result.code, result.err) == (0, "")
    assert "source_cut" in result.out
    ours = translate("--details", texts / "test.a")
    theirs = call("translate.py", f"--saved_model={tmp_path}/1", "--details", texts / "test.a")
    assert (theirs.code, theirs.err) == (0, "")
    for left, right in zip(ours.out.splitlines(), theirs.out.splitlines(), strict=True):
        left, right = json.loads(left), json.loads(right)
        for name in ("score", "token_scores"):
            assert left.pop(name) == pytest.approx(right.pop(name), abs=2e-4)
        assert left == right
    refused(call("export.py", *arguments, "--xla"), "--details cannot be combined with --xla")


# Sentences of a line.


def test_sentences_are_translated_by_themselves(translate):
    pytest.importorskip("pysbd")
    lines = "  Pp qq. Rr ss.  \n\n \nTt!\n"
    result = translate("--split_sentences=en", stdin=lines.encode())
    assert (result.code, result.err) == (0, "")
    single = translate(stdin=b"Pp qq.\nRr ss.\nTt!\n").out.splitlines()
    assert result.out == f"  {single[0]} {single[1]}  \n\n \n{single[2]}\n"


def test_tabs_between_sentences_are_kept(translate):
    pytest.importorskip("pysbd")
    single = translate(stdin=b"Pp qq.\nRr ss.\n").out.splitlines()
    result = translate("--split_sentences=en", stdin=b"\tPp qq.\tRr ss.\n")
    assert result.out == f"\t{single[0]}\t{single[1]}\n"


def test_long_lines_are_read_whole_in_sentences(translate):
    pytest.importorskip("pysbd")
    line = " ".join(["P q r s."] * 5) + "\n"
    options = ("--max_source_length=6", "--max_extra_length=2")
    whole = translate(*options, stdin=line.encode())
    assert "1 of 1 lines have more than 6 tokens" in whole.err
    split = translate(*options, "--split_sentences=en", stdin=line.encode())
    assert split.err == ""
    single = translate(*options, stdin=b"P q r s.\n").out.strip()
    assert split.out.strip() == " ".join([single] * 5)
    long = translate(*options, "--split_sentences=en", stdin=b"P q. P q r s t u v w.\n")
    assert "1 of 1 lines have sentences that have more than 6 tokens" in long.err


def test_unknown_language_is_reported_at_once(translate, refused):
    pytest.importorskip("pysbd")
    refused(translate("--split_sentences=xx", stdin=b"p\n"), "must be one of am, ar", "'xx'")


def test_client_reports_the_line_of_a_failed_sentence(call):
    pytest.importorskip("pysbd")
    model = upper_case_model()
    answer = model.versions[1]

    def predict(signature, inputs):
        if any("bad" in text for text in inputs["text"]):
            raise FaultError("INVALID_ARGUMENT", "no bad words")
        return answer(signature, inputs)

    model.versions[1] = predict
    with serve_grpc(model) as address:
        flags = (f"--server={address}", "--split_sentences=en")
        result = call(
            "serve_client.py", *flags, stdin=b"One is. Two are.\nFine. A bad one.\nYes.\n"
        )
    assert (result.code, result.out) == (1, "")
    assert "line 1, 2, 3: the grpc server" in result.err
