"""Architectures of the user on the command line: --user_module."""

import pathlib

import pytest

TOY = pathlib.Path(__file__).parents[1] / "models" / "toy_architecture.py"


def test_file_with_the_name_of_a_standard_module_is_loaded(call, refused, tmp_path):
    (tmp_path / "sibling.py").write_text("WORD = 'mine'\n")
    program = (
        "import sibling, tomllib\nraise SystemExit(f'{sibling.WORD}, {bool(tomllib.loads)}')\n"
    )
    (tmp_path / "tomllib.py").write_text(program)
    result = call("train.py", "--run_dir=x", f"--user_module={tmp_path}/tomllib.py")
    assert (result.code, result.err) == (1, "mine, True\n")


@pytest.mark.slow
def test_user_architecture_trains_and_translates(run, refused, train_flags, tmp_path):
    own = f"--user_module={TOY}"
    assert "--[no]reverse_source" in run("train.py", own, "--help").out
    not_of_it = ("--preset", "--num_", "--feed_forward")
    flags = [flag for flag in train_flags if not flag.startswith(not_of_it)]
    flags += ["--architecture=toy", f"--run_dir={tmp_path}/run", "--train_steps=2"]
    refused(
        run("train.py", own, *flags, "--num_steps=3"),
        "--num_steps is a setting of architecture universal, and this run's is toy; remove it",
    )
    result = run("train.py", own, *flags)
    assert result.code == 0, result.err
    (tmp_path / "text").write_text("ein\n")
    arguments = ["translate.py", f"--run_dir={tmp_path}/run", str(tmp_path / "text")]
    refused(run(*arguments), "got 'toy'", "--user_module")
    translated = run(*arguments, own)
    assert translated.code == 0, translated.err
    assert len(translated.out.splitlines()) == 1
