"""Code blocks of the documentation, and how they run.

A block of bash or python runs as printed, in the page's folder, unless `blocks.json` has its
beginning and why not. A block of text after one that ran is its output, unless that file has it
too: losses and scores may differ by a tenth, other numbers may be any, and `...` is anything.
"""

import doctest
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import urllib.request

import pytest
from helpers import user_modules

ROOT = pathlib.Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_EXCEPTIONS = json.loads(pathlib.Path(__file__).with_name("blocks.json").read_text("utf-8"))


@pytest.fixture
def run_page(monkeypatch, call, capsys, share_translators):
    """Runs the blocks of a page in this process, which has loaded TensorFlow already.

    `short` is flags for each training, and bounds translations, which then do not end by
    themselves; `replace` is pairs of text and what replaces it; `serve` takes the folder of an
    export whose `serve.sh` a line runs. A block whose first line is `# NAME.py` is saved under that
    name.
    """
    monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    for name in ("TF_CONFIG", "KERAS_BACKEND"):  # what a page exports is not for later tests
        if name in os.environ:
            monkeypatch.setenv(name, os.environ[name])

    def run_page(name, folder, short="", replace=(), serve=None):
        monkeypatch.chdir(folder)
        for link in ("scripts", "tests", "examples"):
            if not (folder / link).is_symlink():
                (folder / link).symlink_to(ROOT / link)
        variables = {"__name__": "__main__"}
        output = None
        skipped, different = (
            _EXCEPTIONS[kind].get(name, {}) for kind in ("not run", "not compared")
        )
        for language, text in _BLOCK.findall((ROOT / name).read_text("utf-8")):
            shown, listed = output, skipped if language != "text" else different
            output = None
            if text.startswith(tuple(listed)):
                continue
            for old, new in replace:
                text = text.replace(old, new)
            if language == "text":
                if shown is not None:
                    compare(text, shown)
                continue
            if language == "bash":
                lines = text.replace("\\\n", " ").splitlines()
                commands = [line for line in lines if line.strip() and line[0] != "#"]
                output = "".join(run_line(line, short, serve) for line in commands)
            elif file := re.match(r"# (\w+\.py)\n", text):
                (folder / file[1]).write_text(text, encoding="utf-8")
            else:
                capsys.readouterr()
                exec(compile(text, name, "exec"), variables)
                output = capsys.readouterr().out

    def run_line(line, short, serve):
        if started := re.fullmatch(r"bash (exports/\S+)/serve\.sh(?: +#.*)?", line):
            serve(pathlib.Path(started[1]).resolve())
            return ""
        if request := re.fullmatch(r"curl (\S+)(?: -d '(.*)')?", line):
            url, body = request.groups()
            data = body and body.encode()
            with urllib.request.urlopen(f"http://{url}", data, timeout=60) as answer:
                return answer.read().decode()
        command, _, last = line.rpartition(" | ")
        program = re.match(r"(?:python scripts/|keras-transformer )(\w+)(?:\.py)?(.*)", last)
        if program is None:
            done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            return done.stdout
        stdin = subprocess.run(command, shell=True, capture_output=True, check=True).stdout
        script, arguments = program[1], shlex.split(program[2], comments=True)
        files = {}
        for sign in {"<", ">"} & set(arguments):
            index = arguments.index(sign)
            files[sign] = pathlib.Path(arguments[index + 1])
            del arguments[index : index + 2]
        if "<" in files:
            stdin = files["<"].read_bytes()
        if script == "train":
            arguments += short.split()
        elif script in ("compare", "evaluate", "export") and short and "--answers" not in line:
            arguments.append("--max_extra_length=5")
        if script == "export" and "--format" not in line:  # generated text takes minutes
            pathlib.Path("warm_up.en").write_text("The dog hears a big wolf.\n")
            arguments.append("--warm_up_file=warm_up.en")
        with user_modules():
            result = call(f"{script}.py", *arguments, stdin=stdin)
        assert result.code == 0, f"{line}\n{result.err}"
        if ">" not in files:
            return result.out
        files[">"].write_text(result.out, encoding="utf-8")
        return ""

    return run_page


def compare(expected: str, found: str) -> None:
    """Compares output but for progress that is rewritten, times and speeds, and `...`."""

    def masked(text: str) -> str:
        text = "\n".join(line.rpartition("\r")[2] for line in text.splitlines())
        text = re.sub(r"\b(?:\d+[hms])+\b", "#", text)
        return re.sub(r"\d[\d.,:]*(?:e[+-]?\d+)?[kMGT]?", "#", text).strip() + "\n"

    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    checker = doctest.OutputChecker()
    if not checker.check_output(masked(expected), masked(found), flags):
        example = doctest.Example("", masked(expected))
        raise AssertionError(checker.output_difference(example, masked(found), flags))
    printed = _FIGURE.findall(found)
    for name, shown in _FIGURE.findall(re.sub(r".*\.\.\..*", "", expected)):
        is_percent = name in ("acc", "BLEU", "sacreBLEU", "chrF")
        near = pytest.approx(float(shown), rel=0.1, abs=15 if is_percent else 0.1)
        assert any(other == name and float(value) == near for other, value in printed), name


_FIGURE = re.compile(r"\b(acc|BLEU|sacreBLEU|chrF|loss|ppl|exact match|accuracy:) +([\d.]*\d)")
