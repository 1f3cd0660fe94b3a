"""What all commands share: flags, help, one-line errors, and what happens to their output."""

import json
import os
import pathlib
import re
import signal
import sys
import textwrap
import time

import pytest
import tiny_run
from absl import flags

import keras_transformer
from keras_transformer.commands import common
from keras_transformer.commands.main import COMMANDS, main
from keras_transformer.errors import InputError

_FOLDER = pathlib.Path(__file__).resolve().parents[2] / "scripts"
_SCRIPTS = ("benchmark", *COMMANDS)


@pytest.fixture
def write_script(tmp_path):
    """Writes a script whose main has the given body."""

    def write(body):
        path = tmp_path / "small.py"
        path.write_text(
            "from keras_transformer.commands.main import run\n"
            "from keras_transformer.errors import InputError\n"
            f"def main(arguments):\n{textwrap.indent(body, '    ')}\nrun(main)\n"
        )
        return path

    return write


def test_all_scripts_are_covered():
    assert {path.stem for path in _FOLDER.glob("*.py")} == {"results", *_SCRIPTS}


@pytest.mark.parametrize("script", _SCRIPTS)
def test_help_explains_every_flag(call, script):
    result = call(f"{script}.py", "--help")
    assert (result.code, result.err) == (0, "")
    assert f"python scripts/{script}.py " in result.out  # an example
    explained = dict(re.findall(r"^  --(?:\[no\])?(\w+): (.+)$", result.out, re.M))
    assert explained.keys() == {*re.findall(r"^  --(?:\[no\])?(\w+)", result.out, re.M)}
    assert all(len(text) > 10 for text in explained.values())
    assert "None" not in result.out


def test_commands_define_their_flags_without_tensorflow(run_python):
    program = """
import importlib, sys
from absl import flags
from keras_transformer.commands import command_flags
from keras_transformer.commands.main import COMMANDS
sys.modules["tensorflow"] = None
others = set(flags.FLAGS)
for name in COMMANDS:
    importlib.import_module(f"keras_transformer.commands.{name}")
    for flag in set(flags.FLAGS) - others:
        delattr(flags.FLAGS, flag)
    print(name)
"""
    assert run_python("-c", program).split() == list(COMMANDS)


def test_help_groups_flags_and_lists_defaults_per_preset(call):
    result = call("train.py", "--help")
    assert call("train.py", "-h") == result
    headings = re.findall(r"^([A-Z][\w ,]+):$", result.out, re.M)
    assert headings[0] == "Flags"
    assert {"Model", "Data", "Vocabulary", "Training", "Task parsing"} <= set(headings)
    universal = result.out.partition("\nModel, architecture universal:\n")[2].partition("\n\n")[0]
    assert "--num_steps: " in universal and "--dropout" not in universal
    text = " ".join(result.out.split())
    assert "Default: 128 in tiny and tiny-fast, 512 in small and base, 1024 in big." in text
    assert "num_layers if not given. Default: 1 in tiny-fast." in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train", "--run_dir must be given; --help lists the flags"),
        ("train --run_dri=x", "unknown flag --run_dri; did you mean --run_dir?"),
        ("train --run_dir=", "--run_dir is empty; give it a value, or remove it"),
        ("train --run_dir", "Missing value for flag --run_dir"),
        ("train --run_dir=x --train_steps=many", "--train_steps must be an integer, got 'many'"),
        ("train --run_dir=x --reverse=yes?", "--reverse must be true or false, got 'yes?'"),
        ("train --run_dir=x", "x has no run yet, and no data is named for one; give --train"),
        ("train --run_dir=x --num_steps=3", "--num_steps is a setting of architecture universal, "),
        ("train --run_dir=x more", "unexpected argument 'more'; all options are flags, as in --na"),
        ("train --flagfile=absent", "--flagfile=absent cannot be read: No such file"),
        ("translate", "give --run_dir, --model or --saved_model, one of the three"),
        ("translate --run_dir=x --batch_size=-1", "--batch_size must be a positive integer, got"),
        ("translate --run_dir=x --num_translations=5 --beam_size=3", "5 is larger than beam_size"),
        ("translate --saved_model=exports/1 --beam_size=3", "no SavedModel in exports/1: it"),
        ("translate --run_dir=x --scores --details", "--scores cannot be combined with --details"),
        ("translate --run_dir=x --alignments --split_sentences=en", "--alignments cannot be comb"),
        ("translate --run_dir=x --references=y --scores", "--scores cannot be combined with --ref"),
        ("translate --run_dir=x --num_translations=2 --split_sentences=en",
         "--num_translations cannot be combined with --split_sentences"),
        ("translate --run_dir=x --references=y --prefixes=z", "--references scores given transla"),
        ("evaluate --run_dir=x --source=y", "--source and --target must be given together"),
        ("evaluate --run_dir=x --output=none/out", "the folder none does not exist; make it first"),
        ("evaluate --run_dir=x --each=.", ". is a folder; give the name of a file"),
        ("explore --run_dir=x --port=1 --output=a.html p", "--port needs --serve; give that too"),
        ("learn_vocabulary --output=x", "no text files; name one or several"),
    ],
)  # fmt: skip
def test_wrong_flags_fail_before_anything_loads(
    call, refused, tmp_path, monkeypatch, line, message
):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # importing it fails
    monkeypatch.chdir(tmp_path)
    name, *arguments = line.split()
    refused(call(f"{name}.py", *arguments), message)
    assert not (tmp_path / "x").exists()


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


def test_installed_command_lists_its_commands(command):
    code, listing, errors = command("--help")
    assert (code, errors) == (0, "")
    assert re.findall(r"^  (\w+)  +[a-z]", listing, re.M) == list(COMMANDS)
    assert command() == (listing.rstrip("\n"), "", "")  # Python writes it and exits with 1
    wrong, _, _ = command("trian")
    assert wrong.startswith("keras-transformer: unknown command 'trian'; did you mean train?\n")
    assert wrong.endswith(listing.rstrip("\n"))
    assert command("--version") == (0, f"keras-transformer {keras_transformer.__version__}\n", "")


def test_installed_command_is_named_in_help_and_errors(command):
    code, text, _ = command("average_checkpoints", "--help")
    assert code == 0
    assert "\nkeras-transformer average_checkpoints --run_dir=runs/mine --last=20\n" in text
    error, _, _ = command("average_checkpoints")
    assert error.startswith("keras-transformer average_checkpoints: --run_dir must be given; ")
    expected = (0, f"keras-transformer train {keras_transformer.__version__}\n", "")
    assert command("train", "--version") == expected


def test_input_errors_are_one_line_bugs_keep_tracebacks(run, write_script, refused, tmp_path):
    refused(run(write_script("raise InputError('no such thing; name another')")), "name another")
    unwritable = write_script("open('nowhere/file', 'w')")
    refused(run(unwritable, cwd=tmp_path), "cannot read or write nowhere/file: No such file")
    defect = run(write_script("raise ValueError('oh')"))
    assert (defect.code, "Traceback" in defect.err) == (1, True)


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


@pytest.mark.parametrize(
    ("stream", "body", "message"),
    [
        (1, "print('a line')", "output is closed; redirect it to a file, or to /dev/null"),
        (0, "from keras_transformer.commands.line_io import Job\nlist(Job().groups())", "input is"),
    ],
)
def test_closed_standard_streams_are_rejected(run, write_script, refused, stream, body, message):
    result = run(write_script(body), preexec_fn=lambda: os.close(stream))
    refused(result, f"standard {message}")


def test_output_is_utf_8_in_any_locale(run, write_script):
    script = write_script("print('木 Bäume')")
    result = run(script, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}, encoding="utf-8")
    assert (result.code, result.out) == (0, "木 Bäume\n")


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_batches_in_progress(start, write_script):
    script = write_script(
        "import time\n"
        "from keras_transformer.inference.batch_translator import _run_parallel\n"
        "print('ready', flush=True)\n"
        "_run_parallel(lambda batch: time.sleep(600), [[0], [1], [2]], [1, 1, 1], 2)\n"
    )
    process = start(script, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip().splitlines()[-1]) == (130, "small.py: interrupted")


@pytest.mark.slow
def test_legacy_keras_is_one_line(run, write_script, refused):
    environment = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = run(write_script("from keras_transformer import Tokenizer"), env=environment)
    refused(result, "TF_USE_LEGACY_KERAS=1", "unset it: this package needs Keras 3")


def test_ctrl_c_exits_with_130_and_one_line(start, write_script):
    script = write_script("import time\nprint('ready', flush=True)\ntime.sleep(60)")
    process = start(script, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=1200)
    assert process.returncode == 130
    assert err.strip() == "small.py: interrupted"


def test_ensemble_of_different_tasks_is_rejected(tmp_path):
    runs = [tiny_run.create(tmp_path / name) for name in ("translates", "parses")]
    config = json.loads((runs[1].path / "config.json").read_text())
    config["task"] = {"name": "parsing"}
    (runs[1].path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"parses is parsing, that of .*translates is translation"):
        common.load_translator([(run, "average") for run in runs])
