"""What pages name exists: flags, files, headings; blocks run or are listed. Nothing runs here."""

import json
import pathlib
import re

import pytest
from helpers import user_modules

from keras_transformer.commands.main import COMMANDS

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PAGES = ["README.md", "BUILD_NOTES.md", "CONTRIBUTING.md", "SECURITY.md", *sorted(
    page.relative_to(_ROOT).as_posix()
    for folder in ("tutorials", "guides", "explanation", "results", "reference")
    for page in (_ROOT / "docs" / folder).glob("*.md")
    if page.name != "changelog.md"  # includes CHANGELOG.md
)]  # fmt: skip
_BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.M | re.S)
_OF_OTHERS = {  # flags of TensorFlow, the model server, docker, absl, scripts and examples
    "tensorflow_session_config_file", "tf_xla_persistent_cache_directory",
    "xla_gpu_enable_triton_gemm", "help", "cpus", "memory", "flagfile", "print", "check",
    "recompute", "overlap_with", "categories_of",
}  # fmt: skip


def _read(page):
    return (_ROOT / page).read_text("utf-8")


@pytest.fixture
def flags(call, known=set()):  # noqa: B006  (collected once)
    """The flags of all commands."""
    for command in () if known else COMMANDS:
        with user_modules():
            text = call(f"{command}.py", "--help").out
        for no, name in re.findall(r"^  --(\[no\])?(\w+):", text, re.M):
            known |= {name, f"no{name}"} if no else {name}
    return known


@pytest.mark.parametrize("page", _PAGES)
def test_flags_exist(page, flags):
    whole = _read(page).replace("\\\n", " ")
    text = _BLOCK.sub("", whole)
    if page.endswith("coming_from.md"):  # its other columns have the flags of other toolkits
        text = re.sub(r"^(\|[^|]*\|).*", r"\1", text, flags=re.M)
    # Some blocks do not run. A module of the user's may add flags.
    commands = re.findall(r"keras-transformer \w+ (?!.*user_module)(.*)", whole)
    named = re.findall(r"`--(\w+)", text) + re.findall(r"(?<= )--(\w+)", " ".join(["", *commands]))
    assert set(named) - _OF_OTHERS <= flags


@pytest.mark.parametrize("page", _PAGES)
def test_links_lead_to_files_and_headings(page):
    path, text = _ROOT / page, _BLOCK.sub("", _read(page))
    assert len(re.findall(r"^# ", text, re.M)) == 1
    for link in re.findall(r"\]\(((?!http)[^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        is_heading = target.suffix == ".md" and not anchor.startswith("keras_transformer.")
        if anchor and is_heading:  # no line of code, and no entry that the site makes
            headings = re.findall(r"^#+ (.*)", target.read_text("utf-8"), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
            assert anchor in slugs, link


def test_every_block_runs_or_is_listed_with_the_reason():
    exceptions = json.loads(_read("tests/docs/blocks.json"))
    tests = _read("tests/docs/test_pages.py")
    listed = {
        (page, start) for pages in exceptions.values() for page in pages for start in pages[page]
    }
    for page in _PAGES:
        blocks = _BLOCK.findall(_read(page))
        assert {language for language, _ in blocks} <= {"bash", "python", "text"}, page
        runs = page.removeprefix("docs/").removesuffix(".md") in tests
        for language, text in blocks:
            starts = exceptions["not compared" if language == "text" else "not run"].get(page, {})
            matching = {(page, start) for start in starts if text.startswith(start)}
            assert matching or runs or language == "text" or not page.startswith("docs"), text
            listed -= matching
    assert not listed, "no such block"
