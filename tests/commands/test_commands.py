"""What all commands share: help, one line for each error, and what happens to their output."""

import re
import shutil
import signal
import sys
import textwrap
import time

import pytest
from absl import flags

import keras_transformer
from keras_transformer.commands.main import COMMANDS, main


@pytest.fixture
def write_script(tmp_path):
    """Writes a script whose main has the given body."""

    def write(body):
        path = tmp_path / "small.py"
        path.write_text(
            "import sys\nfrom keras_transformer.commands.main import run\n"
            "from keras_transformer.errors import InputError\n"
            f"def main(arguments):\n{textwrap.indent(body, '    ')}\n"
            "run(main, ['small.py', *sys.argv[1:]], '')\n"
        )
        return path

    return write


@pytest.mark.parametrize("script", COMMANDS)
def test_help_explains_every_flag(call, script):
    result = call(f"{script}.py", "--help")
    assert (result.code, result.err) == (0, "")
    assert f"keras-transformer {script} " in result.out  # an example
    explained = dict(re.findall(r"^  --(?:\[no\])?(\w+): (.+)$", result.out, re.M))
    assert explained.keys() == {*re.findall(r"^  --(?:\[no\])?(\w+)", result.out, re.M)}
    assert all(len(text) > 10 for text in explained.values())
    assert "None" not in result.out


@pytest.fixture
def command(monkeypatch, capsys):
    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["/usr/bin/keras-transformer", *arguments])
        others = set(flags.FLAGS)
        try:
            main()
        except SystemExit as error:
            return error.code, *capsys.readouterr()
        finally:
            for name in set(flags.FLAGS) - others:
                delattr(flags.FLAGS, name)
            for name in COMMANDS:
                sys.modules.pop(f"keras_transformer.commands.{name}", None)
        return 0, *capsys.readouterr()

    return command


def test_installed_command_lists_and_names_its_commands(command):
    code, listing, errors = command("--help")
    assert (code, errors) == (0, "")
    assert re.findall(r"^  (\w+)  +[a-z]", listing, re.M) == list(COMMANDS)
    assert command() == (listing.rstrip("\n"), "", "")  # Python writes it and exits with 1
    wrong, _, _ = command("trian")
    assert wrong.startswith("keras-transformer: unknown command 'trian'; did you mean train?\n")
    assert command("--version") == (0, f"keras-transformer {keras_transformer.__version__}\n", "")
    code, text, _ = command("compare", "--help")
    assert "\nkeras-transformer compare runs/" in text
    error, _, _ = command("train")
    assert error.startswith("keras-transformer train: ") and "--run_dir" in error


# Lines of commands, and what the one line of their error names.
_WRONG_FLAGS = [
    ("train", "--run_dir"),
    ("train --run_dri=x", "run_dri", "run_dir"),
    ("train --run_dir=", "--run_dir"),
    ("train --run_dir=x --train_steps=many", "--train_steps=many"),
    ("train --run_dir=x --train_steps=none", "--train_steps=none"),
    ("train --run_dir=x --reverse=yes?", "--reverse=yes?"),
    ("train --run_dir=x --precision=half", "--precision=half", "float32"),
    ("train --run_dir=x", "x has no run yet"),
    ("train --run_dir=x --dataset=number_names/en-de --num_steps=3", "num_steps"),
    ("train --run_dir=x more", "'more'"),
    ("train --flagfile=absent", "absent"),
    ("train --run_dir=x --user_module nowhere.py", "nowhere.py"),
    ("translate", "--run_dir", "--model", "--saved_model"),
    ("translate --run_dir=x --num_translations=5 --beam_size=3", "num_translations 5"),
    ("translate --saved_model=exports/1 --beam_size=3", "exports/1"),
    ("translate --model=en-de --checkpoint=best", "--checkpoint"),
    ("translate --run_dir=x --scores --references=y", "--scores", "--references"),
    ("translate --saved_model=exports/1 --checkpoint=best", "--checkpoint"),
    ("translate --run_dir=x --references=y --beam_size=2", "--beam_size", "--references"),
    ("translate --run_dir=x --split_sentences=en --num_translations=2", "--num_translations"),
    ("evaluate --run_dir=x --source=y", "--target"),
    ("evaluate --run_dir=x --task=parsing", "--task"),
    ("evaluate --run_dir=x --output=none/out", "none/out"),
    ("compare a a", "two or more"),
    ("export --run_dir=x --export_dir=y --format=ctranslate2 --beam_size=1", "--beam_size"),
    ("explore p", "--run_dir"),
    ("explore --run_dir=x --output=a.html", "--output=page.html"),
    ("explore --run_dir=x --model=en-de --output=a.html p", "--run_dir", "--model"),
    ("import_model --run_dir=x --model=y --source_spm=z", "--target_spm"),
    ("serve_client --server=localhost:1 --length_penalty=-1", "length_penalty"),
    ("serve_client --server=localhost:1 --references=y --length_penalty=1", "--length_penalty"),
    ("serve_client --server=localhost:1 --output=.", ". cannot be written"),
    ("serve_client --server=localhost:1 --headers_file=absent", "absent"),
]


@pytest.mark.parametrize("case", _WRONG_FLAGS, ids=[line for line, *_ in _WRONG_FLAGS])
def test_wrong_flags_fail_before_anything_loads(call, refused, tmp_path, monkeypatch, case):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # importing it fails
    monkeypatch.chdir(tmp_path)
    line, *names = case
    name, *arguments = line.split()
    refused(call(f"{name}.py", *arguments), *names)
    assert not any(tmp_path.iterdir())


def test_help_and_wrong_flags_answer_within_a_second_without_tensorflow(run_python):
    """In processor time; the client needs no TensorFlow either."""
    program = """
import importlib, sys, time
from absl import flags
from keras_transformer import Client
from keras_transformer.commands.main import COMMANDS, main
others = set(flags.FLAGS)
try:
    main()
except SystemExit as error:
    print(error)
seconds = time.process_time()
for name in COMMANDS:
    for flag in set(flags.FLAGS) - others:
        delattr(flags.FLAGS, flag)
    sys.modules.pop(f"keras_transformer.commands.{name}", None)
    importlib.import_module(f"keras_transformer.commands.{name}")
print({"tensorflow", "keras"} & sys.modules.keys(), seconds < 1)
"""
    for flag, part in (("--help", "--train_steps: "), ("--train_step=3", "train_steps")):
        output = run_python("-c", program, "train", flag)
        assert part in output and output.endswith("set() True\n")


_TEXT = (
    "--run_dir=new --train_source=two --train_target=two --vocabulary_kind=char --vocabulary_size=6"
)
_START = "--run_dir=new --start_from=run --train_source=two --train_target=two"
_WRONG_FILES = [
    (f"train {_TEXT} --train_source=absent", "absent"),
    (f"train {_TEXT} --test_source=absent --test_target=two", "absent"),
    ("train --run_dir=new --start_from=run", "--start_from"),
    (f"train {_START} --start_from=run/checkpoints/step-9", "step-9"),
    (f"train {_START} --num_layers=3", "--num_layers"),
    ("train --run_dir=run --num_layers=3 --train_steps=350", "num_layers is 1 there and 3 here"),
    ("translate --run_dir=run --checkpoint=7", "checkpoint", "7"),
    ("translate --run_dir=run absent", "absent"),
    ("translate --run_dir=run --references=two three", "two has fewer lines than the input"),
    ("translate --run_dir=run --references=three two", "three has more lines than the input"),
    ("translate --run_dir=run --output=two two", "two is read"),
    ("translate --run_dir=damaged --checkpoint=300 two", "damaged"),
    ("translate --run_dir=empty two", "no checkpoint in"),
    ("evaluate --run_dir=run --source=two --target=three", "two", "three"),
    ("evaluate --run_dir=run --output={texts}/test.xx", "test.xx is read"),
    ("evaluate --task=parsing --answers=blank", "--file"),
    ("evaluate --task=parsing --answers=blank --file=blank", "no sentence in"),
    ("compare run run/checkpoints/average", "one checkpoint twice"),
    ("compare run run/checkpoints/..", "one checkpoint twice"),
    ("compare run absent", "absent"),
    ("export --run_dir=run --export_dir=exports --warm_up_file=absent", "absent"),
]


@pytest.mark.parametrize("case", _WRONG_FILES, ids=[line for line, *_ in _WRONG_FILES])
def test_rejected_command_writes_nothing(
    call, refused, tmp_path, run_dir, texts, monkeypatch, case
):
    for name, content in {"two": "a\nb\n", "three": "a\nb\nc\n", "blank": "\n \n"}.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "run").symlink_to(run_dir)
    for name in ("damaged", "empty"):
        shutil.copytree(run_dir, tmp_path / name)
        for data in (tmp_path / name / "checkpoints").iterdir():
            if name == "empty":
                data.unlink()
            elif data.suffix == ".safetensors":
                data.write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    read = (run_dir / "config.json", texts / "test.xx", tmp_path / "two")
    before = sorted(tmp_path.rglob("*")), [path.read_bytes() for path in read]
    line, *names = case
    name, *arguments = line.format(texts=texts).split()
    refused(call(f"{name}.py", *arguments), *names)
    assert (sorted(tmp_path.rglob("*")), [path.read_bytes() for path in read]) == before


@pytest.mark.parametrize(
    ("body", "code", "out", "err"),
    [
        ("raise InputError('no such thing')", 1, "", "small.py: no such thing\n"),
        ("open('nowhere/file', 'w')", 1, "",
         "small.py: cannot read or write nowhere/file: No such file or directory\n"),
        ("raise ValueError('oh')", 1, "", "ValueError: oh\n"),
        ("print('木 Bäume')", 0, "木 Bäume\n", ""),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_output_is_utf_8(run, write_script, tmp_path, body, code, out, err):
    environment = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    result = run(write_script(body), env=environment, encoding="utf-8", cwd=tmp_path)
    assert (result.code, result.out) == (code, out)
    assert result.err.endswith(err) and ("Traceback" in result.err) == ("ValueError" in err)


def test_full_disk_behind_stdout_is_one_line(run, write_script, refused):
    for count in (1, 100_000):  # found at the end, or on the way
        with open("/dev/full", "w") as full:
            script = write_script(f"for _ in range({count}): print('a line')")
            process = run(script, stdout=full)
        refused(process, "cannot read or write: No space left on device")


def test_closed_pipe_ends_a_command_silently(start, write_script):
    process = start(write_script("for _ in range(100000): print('a line')"))
    assert process.stdout.readline() == "a line\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 1


def test_ctrl_c_exits_with_130_and_one_line(start, write_script):
    script = write_script("import time\nprint('ready', flush=True)\ntime.sleep(60)")
    process = start(script, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip().splitlines()[-1]) == (130, "small.py: interrupted")
