"""Code blocks of the documentation, and how they run.

A block of bash or python runs as printed, in the page's folder, unless the line before it is
`<!-- not run: REASON -->`. A block of text after one that ran is its output: losses and scores may
differ by a tenth, other numbers may be any, and `...` stands for anything.
`<!-- not compared: REASON -->` before it means that it differs.
"""

import dataclasses
import doctest
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"(?:<!-- not (run|compared): [^\n]*-->\n+)?^```(\w+)\n(.*?)^```$", re.M | re.S)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    is_exempt: bool  # not run, or not compared

    @property
    def lines(self) -> list[str]:
        """The commands of a bash block, continued lines joined, without comments."""
        joined = self.text.replace("\\\n", " ")
        return [line for line in joined.splitlines() if line.strip() and line[0] != "#"]


def blocks(page: pathlib.Path) -> list[Block]:
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(language, text, bool(mark)) for mark, language, text in found]


@pytest.fixture(scope="session")
def pages() -> dict[str, pathlib.Path]:
    """The pages with code, by their path below the repository."""
    folders = ("tutorials", "guides", "explanation")
    found = [ROOT / "README.md", *(p for f in folders for p in (ROOT / "docs" / f).glob("*.md"))]
    return {page.relative_to(ROOT).as_posix(): page for page in found}


@pytest.fixture
def run_page(monkeypatch, call, capsys):
    """Runs the blocks of a page in this process, which has loaded TensorFlow already.

    `short` is flags for each training, and shortens evaluations too; `replace` is pairs of text and
    what replaces it. A block whose first line is `# NAME.py` is saved under that name.
    """

    def run_page(name: str, folder: pathlib.Path, short: str = "", replace=()) -> None:
        monkeypatch.chdir(folder)
        for link in ("scripts", "tests", "examples"):
            if not (folder / link).is_symlink():
                (folder / link).symlink_to(ROOT / link)
        variables = {"__name__": "__main__"}
        output = None
        for block in blocks(ROOT / name):
            text = block.text
            for old, new in replace:
                text = text.replace(old, new)
            if block.language == "text":
                if output is not None and not block.is_exempt:
                    compare(text, output)
                output = None
            elif block.is_exempt:
                output = None
            elif block.language == "bash":
                commands = dataclasses.replace(block, text=text).lines
                output = "".join(run_line(line, short) for line in commands)
            elif block.language == "python" and (file := re.match(r"# (\w+\.py)\n", text)):
                (folder / file[1]).write_text(text, encoding="utf-8")
                output = None
            elif block.language == "python":
                capsys.readouterr()
                exec(compile(text, name, "exec"), variables)
                output = capsys.readouterr().out

    def run_line(line: str, short: str) -> str:
        command, _, last = line.rpartition(" | ")
        program = re.match(r"(?:python scripts/|keras-transformer )(\w+)(?:\.py)?(.*)", last)
        if program is None or "--user_module" in line:  # registers for the whole process
            line = line.replace("python ", f"{sys.executable} ", 1) if program else line
            done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            return done.stdout
        stdin = b""
        if command:
            stdin = subprocess.run(command, shell=True, capture_output=True, check=True).stdout
        script, arguments = program[1], shlex.split(program[2], comments=True)
        target = None
        for sign in "<>":
            if sign in arguments:
                index = arguments.index(sign)
                path = pathlib.Path(arguments[index + 1])
                del arguments[index : index + 2]
                if sign == "<":
                    stdin = path.read_bytes()
                else:
                    target = path
        if script == "train":
            arguments += short.split()
        elif script == "evaluate" and short and "--answers" not in line:
            # After few updates, no translation ends by itself.
            arguments.append("--max_extra_length=5")
        result = call(f"{script}.py", *arguments, stdin=stdin)
        assert result.code == 0, f"{line}\n{result.err}"
        if target is None:
            return result.out
        target.write_text(result.out, encoding="utf-8")
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
    for line in expected.splitlines():
        if "..." not in line and _FIGURE.search(line):
            printed = [each for each in found.splitlines() if masked(each) == masked(line)]
            assert any(_is_close(line, each) for each in printed), (line, printed)


def _is_close(expected: str, found: str) -> bool:
    """Tells whether losses and scores of two lines, which begin alike, are about the same."""
    pairs = zip(_FIGURE.findall(expected), _FIGURE.findall(found), strict=True)
    return expected.split()[0] == found.split()[0] and all(
        float(printed)
        == pytest.approx(float(shown), rel=0.1, abs=15 if name in _IN_PERCENT else 0.1)
        for (name, shown), (_, printed) in pairs
    )


_IN_PERCENT = ("acc", "BLEU", "sacreBLEU", "chrF")
_FIGURE = re.compile(r"\b(acc|BLEU|sacreBLEU|chrF|loss|ppl|exact match|accuracy:) +([\d.]*\d)")


@pytest.fixture(autouse=True)
def _keep_environment(monkeypatch):
    """What a page exports is not for later tests."""
    for name in ("TF_CONFIG", "KERAS_BACKEND"):
        if name in os.environ:
            monkeypatch.setenv(name, os.environ[name])
