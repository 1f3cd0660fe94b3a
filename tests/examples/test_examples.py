"""The programs in examples/ do what their docstrings say."""

import pathlib
import runpy
import sys

import pytest

_EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a program in this process, which has loaded TensorFlow already; gives its output."""

    def run(name, *arguments):
        path = str(_EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", ["copy_digits", "classify_sequences"])
def test_models_learn_almost_everything(run, name):
    assert float(run(name).split()[-1]) >= 0.95


def test_constraints_hold(run):
    free, no_repetition, limited = (eval(line) for line in run("write_constraints").splitlines())
    assert all(row == [1, 1, 1, 1, 1, 1, 3] for row in free)  # the model repeats itself
    for rows in (no_repetition, limited):
        for row in rows:
            tokens = row[: row.index(3)]
            assert all(a != b for a, b in zip(tokens, tokens[1:], strict=False))
    evens = [sum(token > 3 and token % 2 == 0 for token in row) for row in limited]
    assert evens[0] == 0 and evens[1] == 2
    assert [sum(token == 6 for token in row) for row in no_repetition] == [3, 3]


def test_python_alone_trains_and_exports(run, tmp_path):
    output = run("train_and_export", tmp_path / "work")
    assert "a small red tree -> ein kleiner roter Baum (" in output
    assert (tmp_path / "work" / "export" / "1" / "saved_model.pb").is_file()


def test_own_task_trains_by_its_own_metric(run, call, tmp_path):
    lines = tmp_path / "lines.tsv"
    run("reverse_words", lines)
    task = f"--user_module={_EXAMPLES / 'reverse_words.py'}"
    files = (f"--train_file={lines}", f"--dev_file={lines}")
    short = ("--learning_rate=0.003", "--warmup_steps=20", "--train_steps=40",
             "--checkpoint_steps=20", "--average_last=1")  # fmt: skip
    trained = call("train.py", f"--run_dir={tmp_path}/run", task, "--task=reverse_words",
                   "--preset=rnn-tiny", *files, *short)  # fmt: skip
    assert trained.code == 0, trained.err
    assert "words in place" in trained.out
    answer = call("translate.py", f"--run_dir={tmp_path}/run", task, stdin=b"one two\n")
    assert answer.code == 0 and len(answer.out.splitlines()) == 1
