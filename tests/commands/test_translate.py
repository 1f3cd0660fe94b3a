"""The commands translate and evaluate: lines in and out, scores, invalid input."""

import functools
import hashlib
import json
import os
import pty
import random
import select
import shutil
import time

import pytest

from keras_transformer.client import Translation
from keras_transformer.commands import line_io
from keras_transformer.inference import BatchTranslator
from keras_transformer.serving import export as serving_export


@pytest.fixture(scope="session")
def exported(run, trained, tmp_path_factory):
    """A SavedModel of the trained run, made by scripts/export.py."""
    folder = tmp_path_factory.mktemp("exports")
    result = run("export.py", f"--run_dir={trained}", f"--export_dir={folder}")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1].startswith(f"Exported checkpoint average to {folder}/1 (")
    return folder / "1"


@pytest.fixture
def evaluate(call, trained, share_translators):
    """Runs evaluate with the trained run."""
    return functools.partial(call, "evaluate.py", f"--run_dir={trained}")


def test_standard_input_is_translated_line_by_line(run, trained, texts):
    with open(texts / "dev.a") as lines:
        result = run("translate.py", f"--run_dir={trained}", stdin=lines)
    assert (result.code, result.err) == (0, "")
    assert len(result.out.splitlines()) == 10


def test_files_are_translated_as_standard_input(translate, texts):
    files = [texts / "dev.a", texts / "test.a"]
    both = translate(*files)
    assert (both.code, both.err) == (0, "")
    assert both.out.count("\n") == 10 + 12
    text = b"".join(path.read_bytes() for path in files)
    assert translate(stdin=text).out == both.out


def test_scores_come_with_line_numbers(translate):
    lines = "p q\n\n  \nq\r\n木".encode()
    result = translate("--scores", stdin=lines)
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [number for number, _, _ in rows] == ["1", "2", "3", "4", "5"]
    assert rows[1][1:] == rows[2][1:] == ["0.0000", ""]
    assert all(float(score) < 0 for _, score, _ in (rows[0], rows[3], rows[4]))


def test_n_best_lists_are_sorted_by_score(translate):
    options = ("--num_translations=3", "--batch_size=1")
    result = translate(*options, stdin=b"p q\nc\n")
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [number for number, _, _ in rows] == ["1"] * 3 + ["2"] * 3
    scores = [float(score) for _, score, _ in rows]
    assert scores == sorted(scores[:3], reverse=True) + sorted(scores[3:], reverse=True)


@pytest.mark.slow
def test_export_translates_as_its_run(translate, call, exported, texts):
    arguments = ("--scores", texts / "test.a")
    ours = translate(*arguments)
    theirs = call("translate.py", f"--saved_model={exported}", *arguments)
    assert (theirs.code, theirs.err) == (0, "")
    assert theirs.out == ours.out
    assert ours.out.count("\n") == 12


@pytest.mark.slow
def test_export_has_options_and_fixed_settings(call, exported, refused):
    export = f"--saved_model={exported}"
    result = call("translate.py", export, "--max_length=2", stdin=b"p q r s t\n")
    assert result.code == 0, result.err
    assert len(result.out.split()) <= 2
    refused(call("translate.py", export, "--beam_size=2"), "--beam_size was fixed when")
    result = call("translate.py", export, "--max_extra_length=99")
    refused(result, "--max_extra_length can be at most 50,")


@pytest.mark.slow
def test_phrases_and_prefixes_are_kept(call, trained, tmp_path):
    run_dir = f"--run_dir={trained}"
    banned = ("--banned_phrases=b", "--banned_phrases=d")
    (line,) = call("translate.py", run_dir, *banned, stdin=b"p q r s\n").out.splitlines()
    assert line and not {"b", "d"} & set(line)
    (tmp_path / "prefixes").write_text("\nd e\n")
    options = (f"--prefixes={tmp_path}/prefixes", "--min_length=3")
    plain, begun = call("translate.py", run_dir, *options, stdin=b"p q\nr s\n").out.splitlines()
    assert begun.startswith("d e") and not plain.startswith("d e")


@pytest.mark.slow
def test_samples_follow_the_seed(translate):
    def sampled(seed):
        options = ("--method=sampling", "--num_translations=3", "--temperature=9", f"--seed={seed}")
        return translate(*options, stdin=b"p q r s\n").out

    assert sampled(1) == sampled(1) != sampled(2)
    assert sampled(1).count("\n") == 3


@pytest.mark.slow
def test_references_are_scored_and_aligned(translate, call, exported, tmp_path, refused):
    (tmp_path / "references").write_text("a b c\n\n")
    option = f"--references={tmp_path}/references"
    ours = translate(option, "--alignments", stdin=b"p q r\ns\n")
    assert (ours.code, ours.err) == (0, "")
    first, second = (line.split("\t") for line in ours.out.splitlines())
    assert [first[0], second[0]] == ["1", "2"]
    assert float(first[1]) == pytest.approx(sum(map(float, first[2:-1])), abs=1e-3)
    assert [pair.split("-")[1] for pair in first[-1].split()] == ["0", "1", "2"]
    assert second[-1] == ""
    export = ("translate.py", f"--saved_model={exported}")
    assert call(*export, option, "--alignments", stdin=b"p q r\ns\n").out == ours.out
    refused(translate(option, stdin=b"p\n"), "has more lines")
    refused(translate(option, "--beam_size=2"), "--references scores given translations")


def test_translations_are_aligned(translate):
    options = ("--alignments", "--num_translations=2")
    best, other = translate(*options, stdin=b"p q r s\n").out.splitlines()
    text, pairs = best.split("\t")[2:]
    assert [int(pair.split("-")[1]) for pair in pairs.split()] == list(range(len(text.split())))
    assert len(other.split("\t")) == 3


@pytest.fixture
def fake_export(monkeypatch, tmp_path):
    """Makes the flag of an export that gives one translation to all sentences."""

    def fake_export(translation, *, remove_bpe=False, num_translations=1):
        class Model:
            """Aligns each word of the translation with the one at half its place."""

            def translate(self, sentences, **options):
                return [[Translation(translation, -1.0)] for _ in sentences]

            def align(self, sentences, translations, **options):
                return [[(place // 2, place) for place in range(len(translations[0].split()))]]

        card = {
            "training": [{"task": {"name": "translation", "remove_bpe": remove_bpe}}],
            "search": {
                "max_extra_length": 50,
                "max_source_length": 512,
                "num_translations": num_translations,
            },
            "signatures": {},
            "precision": {"computation": "float32"},
        }
        monkeypatch.setattr(serving_export, "load_exported", lambda version: Model())
        path = tmp_path / "assets.extra" / "model_card.json"
        path.parent.mkdir()
        path.write_text(json.dumps(card))
        (tmp_path / "saved_model.pb").touch()
        return f"--saved_model={tmp_path}"

    return fake_export


def test_several_translations_of_an_export_have_scores(call, fake_export):
    export = fake_export("x y", num_translations=2)
    assert call("translate.py", export, stdin=b"a\n").out == "1\t-1.0000\tx y\n"


@pytest.mark.parametrize("joins", [True, False])
def test_alignments_number_the_written_words(call, fake_export, joins):
    export = fake_export("un@@ happ@@ y dogs un@@", remove_bpe=joins)
    command = ("translate.py", export, "--alignments")
    joined = (0, "unhappy dogs un\t0-0 1-0 1-1 2-2\n", "")
    pieces = (0, "un@@ happ@@ y dogs un@@\t0-0 0-1 1-2 1-3 2-4\n", "")
    text = b"m@@ is@@ erable\n"
    assert call(*command, stdin=text) == (joined if joins else pieces)
    assert call(*command, "--remove_bpe", stdin=text) == joined
    assert call(*command, "--noremove_bpe", stdin=text) == pieces


def test_control_characters_split_no_line(call, fake_export, evaluate, monkeypatch, tmp_path):
    export = fake_export("a\nb\tc\r")
    assert call("translate.py", export, stdin=b"p\nq\n") == (0, "a b c \na b c \n", "")
    result = call("translate.py", export, "--scores", stdin=b"p\n")
    assert result.out == "1\t-1.0000\ta b c \n"
    answers = lambda self, sentences, *rest: [[Translation("a\nb\tc", 0.0)]] * len(sentences)  # noqa: E731
    monkeypatch.setattr(BatchTranslator, "translate", answers)
    result = evaluate(f"--output={tmp_path}/out", f"--each={tmp_path}/each")
    assert result.code == 0, result.err
    assert (tmp_path / "out").read_text() == "a b c\n" * 12
    assert (tmp_path / "each").read_text().count("\n") == 1 + 12


def test_truncated_lines_are_counted(call, fake_export, translate, evaluate):
    result = translate("--max_source_length=3", stdin=b"p q r s t\np\n")
    assert result.code == 0
    assert "1 of 2 lines have more than 3 tokens (--max_source_length)" in result.err
    result = evaluate("--max_source_length=4")
    assert "of 12 lines have more than 4 tokens" in result.err
    result = call("translate.py", fake_export("a"), stdin=b"p " * 3000)
    assert result.err.startswith("At least 1 of 1 lines have more than 512 tokens")


def test_export_has_no_other_checkpoint(call, refused):
    result = call("translate.py", "--saved_model=x", "--checkpoint=best")
    refused(result, "--checkpoint was chosen when the model was exported; remove it")


def test_checkpoints_and_runs_form_an_ensemble(translate, call, trained, texts, tmp_path, refused):
    copy = shutil.copytree(trained, tmp_path / "copy")
    arguments = ("--scores", texts / "test.a")
    twice = call("translate.py", f"--run_dir={trained},{copy}", *arguments)
    assert (twice.code, twice.err) == (0, "")
    assert twice.out == translate(*arguments).out
    both = translate("--checkpoint=20,40", *arguments)
    assert both.code == 0, both.err
    assert both.out != twice.out
    refused(translate("--checkpoint=20,7"), "no checkpoint step-7")


def test_empty_input_has_empty_output(translate):
    assert translate(stdin=b"") == (0, "", "")


@pytest.mark.slow
def test_checkpoint_is_chosen(translate):
    outputs = {
        name: translate(f"--checkpoint={name}", "--scores",
                   stdin=b"p q r s\n").out
        for name in ("auto", "average", "latest", "20", "40")
    }  # fmt: skip
    assert outputs["auto"] == outputs["average"]
    assert outputs["latest"] == outputs["40"] != outputs["20"] != outputs["average"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--checkpoint=7"], ["no checkpoint step-7 in ", "there is step-20, step-40, average"]),
        (
            ["--checkpoint=first"],
            ["no checkpoint 'first'", "auto, latest, best, average or a step;"],
        ),
        (
            ["absent.txt"],
            ["absent.txt does not exist; name files, or give sentences on standard input"],
        ),
        (["--run_dir=absent"], ["no training run in absent: it has no config.json; give the"]),
    ],
)
def test_missing_files_are_named(translate, refused, arguments, parts):
    refused(translate(*arguments), *parts)


@pytest.mark.slow
def test_missing_export_names_a_version_nearby(call, exported, refused):
    result = call("translate.py", f"--saved_model={exported.parent}", stdin=b"a\n")
    refused(result, "it has no saved_model.pb; give the folder of one version, such as", exported)


def test_invalid_utf_8_is_reported_with_its_line(translate, refused):
    result = translate(stdin=b"p q\n\xff\n")
    refused(result, "standard input, line 2 is not UTF-8", "convert it first")
    assert result.out == ""


def test_byte_order_mark_is_removed(translate):
    plain = translate("--scores", stdin=b"p q\n")
    marked = translate("--scores", stdin=b"\xef\xbb\xbfp q\n")
    assert marked.out == plain.out


def test_output_that_is_read_too_is_refused(call, trained, tmp_path, refused):
    text = tmp_path / "text"
    text.write_text("hello\n")
    run = f"--run_dir={trained}"
    refused(call("translate.py", run, f"--output={text}", text), "text is read and would be repl")
    read = f"--prefixes={text}"
    refused(call("translate.py", run, read, f"--output={text}"), "is read and would be replaced")
    files = [f"--source={text}", f"--target={text}"]
    refused(call("evaluate.py", run, f"--each={text}", *files), "is read and would be replaced")
    assert text.read_text() == "hello\n"


def test_model_of_another_toolkit_is_no_run(call, tmp_path, refused):
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    (tmp_path / "model.safetensors").touch()
    result = call("translate.py", f"--run_dir={tmp_path}")
    refused(result, "is no run but a model of another toolkit; make a run of it with keras-transf")


def test_missing_and_damaged_checkpoints_are_reported(call, trained, tmp_path, refused):
    copy = shutil.copytree(trained, tmp_path / "copy")
    for data in (copy / "checkpoints").glob("*.data*"):
        data.write_bytes(b"")
    names = ("average", "step-40", "step-20")
    damaged = [f"{name} is damaged" for name in names]
    refused(call("translate.py", f"--run_dir={copy}"), "is whole", *damaged)
    shutil.rmtree(copy / "checkpoints")
    refused(
        call("translate.py", f"--run_dir={copy}"), "no checkpoint in", "yet; train the run first"
    )


def test_evaluate_scores_the_test_files(evaluate):
    result = evaluate("--beam_size=2")
    assert (result.code, result.err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in result.out.splitlines())
    assert lines["checkpoint"] == "average"
    assert lines["sentences"] == "12"
    assert "nrefs:1|case:mixed|" in lines["sacreBLEU"]
    assert "|tok:13a|" in lines["sacreBLEU"]
    assert "nrefs:1" in lines["chrF"]
    assert 0 < float(lines["exact"].split()[-1]) <= 1


def test_evaluate_writes_json_and_translations(translate, evaluate, texts, tmp_path):
    files = (f"--source={texts}/dev.a", f"--target={texts}/dev.b", f"--output={tmp_path}/out")
    result = evaluate(*files, "--json", "--checkpoint=20")
    assert (result.code, result.err) == (0, "")
    scores = json.loads(result.out)
    assert scores["checkpoint"] == "step-20"
    assert scores["sentences"] == 10
    assert {"bleu", "bleu_signature", "chrf", "chrf_signature", "exact_match"} <= set(scores)
    assert scores["search"]["beam_size"] == 4 and {"keras", "tensorflow"} <= set(scores["versions"])
    lines = (texts / "dev.a").read_text("utf-8") + (texts / "dev.b").read_text("utf-8")
    assert scores["test_set_sha256"] == hashlib.sha256(lines.encode()).hexdigest()
    other = json.loads(evaluate(*files[:2], "--json").out)
    assert other["test_set_sha256"] == scores["test_set_sha256"]
    assert other["checkpoint_sha256"] != scores["checkpoint_sha256"]
    translations = (tmp_path / "out").read_text(encoding="utf-8")
    options = ("--checkpoint=20", texts / "dev.a")
    assert translate(*options).out == translations


def test_evaluate_takes_a_split_of_its_own_text_only(evaluate, refused, texts, tmp_path):
    files = (f"--source={texts}/dev.a", f"--target={texts}/dev.b")
    refused(evaluate(*files, "--split=test"), "--split is of the run's own text", "--source")
    refused(evaluate("--split=dev"), "split must be one of train, validation, test, got 'dev'")


def test_evaluate_needs_sentences(call, refused, tmp_path):
    (tmp_path / "blank").write_text("\n")
    answers, file = f"--answers={tmp_path}/blank", f"--file={tmp_path}/blank"
    result = call("evaluate.py", "--task=pronunciation", answers, file)
    refused(result, "there is no sentence to evaluate on in", "blank")


def test_evaluate_checks_its_output_first(run, refused, tmp_path):
    # There is no run either: the output is looked at first, and TensorFlow not at all.
    run_dir = f"--run_dir={tmp_path}/absent"
    refused(
        run("evaluate.py", run_dir, f"--output={tmp_path}/none/out"),
        f"the folder {tmp_path}/none does not exist; make it first",
    )
    refused(run("evaluate.py", run_dir, f"--output={tmp_path}"), "is a folder; give the name of")


def test_evaluate_rejects_files_of_different_lengths(evaluate, texts, refused):
    files = (f"--source={texts}/dev.a", f"--target={texts}/test.b")
    refused(evaluate(*files), "dev.a has 10", "test.b has 12")


@pytest.mark.slow
def test_terminal_answers_each_line_at_once(start, call, trained):
    lines = ["p q r s", "t u v w p"]
    arguments = ("translate.py", f"--run_dir={trained}")
    piped = call(*arguments, stdin="".join(f"{line}\n" for line in lines).encode())
    assert answers_on_a_terminal(start, arguments, lines) == piped.out.splitlines()


def answers_on_a_terminal(start, arguments, lines) -> list[str]:
    """Types each line at its prompt, and gives what stands between it and the next prompt."""
    terminal, end = pty.openpty()
    process = start(*arguments, stdin=end, stdout=end, stderr=end)
    os.close(end)
    screen = read_until_prompt(terminal)
    assert "one a line; Ctrl-D ends." in screen
    answers = []
    for line in lines:
        os.write(terminal, line.encode() + b"\n")
        typed, answer, prompt = read_until_prompt(terminal).split("\r\n")
        assert (typed, prompt) == (line, "> ")
        answers.append(answer)
    os.write(terminal, b"\x04")  # Ctrl-D
    assert process.wait(60) == 0
    os.close(terminal)
    return answers


def read_until_prompt(terminal) -> str:
    screen = b""
    while not screen.endswith(b"> "):
        assert select.select([terminal], [], [], 120)[0], screen
        screen += os.read(terminal, 4096)
    return screen.decode()


# Long jobs


def test_output_continues_after_a_fault_in_the_input(call, trained, refused, monkeypatch, tmp_path):
    monkeypatch.setattr(line_io, "_LINES_PER_STEP", 1)
    copy = shutil.copytree(trained, tmp_path / "run")
    command = ("translate.py", f"--run_dir={copy}", f"--output={tmp_path}/out", "--scores")
    latest = (*command, "--checkpoint=latest")
    expected = call(*command[:2], "--scores", "--checkpoint=latest", stdin=b"p q\nr s\nt u\n").out
    result = call(*latest, stdin=b"p q\nr s\n\xff\n")
    refused(result, "standard input, line 3 is not UTF-8")
    assert (tmp_path / "out.part").read_text() == "".join(expected.splitlines(True)[:2])
    beam = call(*latest, "--beam_size=2", stdin=b"p q\nr s\nt u\n")
    refused(beam, "begun by a job with other values of --beam_size")
    for file in (copy / "checkpoints").glob("step-20.*"):
        shutil.copy(file, file.with_name(file.name.replace("step-20", "step-40")))
    changed = call(*latest, stdin=b"p q\nr s\nt u\n")
    refused(changed, "begun by a job with other values of weights of the model")
    shutil.copytree(trained, copy, dirs_exist_ok=True)
    result = call(*latest, "--batch_size=7", stdin=b"p q\nr s\nt u\n")
    assert result == (0, "", f"Continuing {tmp_path}/out.part after 2 lines.\n")
    assert (tmp_path / "out").read_text() == expected


def test_output_is_checked_before_loading(run, refused, tmp_path):
    result = run("translate.py", f"--run_dir={tmp_path}/absent", f"--output={tmp_path}/none/out")
    refused(result, f"the folder {tmp_path}/none does not exist; make it first")


@pytest.mark.slow
def test_killed_translation_writes_the_same_bytes(start, run, trained, tmp_path):
    generator = random.Random(1)
    lines = (generator.choices("pqrstuvw", k=generator.randint(1, 9)) for _ in range(4200))
    (tmp_path / "in").write_text("".join(" ".join(letters) + "\n" for letters in lines))
    command = ("translate.py", f"--run_dir={trained}", "--scores", tmp_path / "in")
    output, record = f"--output={tmp_path}/out", tmp_path / "out.part.json"

    def num_done():
        return json.loads(record.read_text())["progress"]["num_lines"] if record.exists() else 0

    done = 0
    for _ in range(2):
        process = start(*command, output)
        while num_done() <= done:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()  # SIGKILL
        process.wait()
        assert done < num_done() < 4200
        done = num_done()
    result = run(*command, output)
    assert (result.code, result.err) == (
        0,
        f"Continuing {tmp_path}/out.part after {done:,} lines.\n",
    )
    assert (tmp_path / "out").read_text() == run(*command).out
