"""What pages name exists: commands, flags, imported names, files, headings. Nothing runs here."""

import importlib
import json
import pathlib
import re

import pytest
from helpers import user_modules

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PAGES = ["README.md", "BUILD_NOTES.md", "CONTRIBUTING.md", "SECURITY.md", *sorted(
    page.relative_to(_ROOT).as_posix()
    for folder in ("tutorials", "guides", "explanation", "results", "reference")
    for page in (_ROOT / "docs" / folder).glob("*.md")
    if page.name != "changelog.md"  # includes CHANGELOG.md
)]  # fmt: skip
_OF_OTHERS = {  # flags of other programs: of the model server, pytest, docker, absl, pip
    "tensorflow_session_config_file", "tensorflow_inter_op_parallelism", "grpc_max_threads",
    "rest_api_num_threads", "xla_cpu_compilation_enabled", "xla_cpu_prefer_vector_width",
    "xla_gpu_enable_triton_gemm", "tf_xla_persistent_cache_directory",
    "model_config_file_poll_wait_seconds", "grpc_channel_arguments", "slow", "help", "print",
    "build", "cpus", "memory",  # of docker
    "runner", "dask_npartitions",  # of Apache Beam
    "version", "flagfile", "check", "recompute", "presets",
    "overlap_with", "categories_of",  # two of examples
}  # fmt: skip


def _read(page):
    """Returns the code and the text of a page."""
    fenced = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
    whole = (_ROOT / page).read_text("utf-8")
    return "\n".join(fenced.findall(whole)).replace("\\\n", " "), fenced.sub("", whole)


def _flags(call, script, *arguments, known={}):  # noqa: B006  (collected once)
    """Returns the flags of a command."""
    if (key := (script, *arguments)) not in known:
        with user_modules():  # a page's architecture is no other test's
            text = call(f"{script}.py", *arguments, "--help").out
        names = re.findall(r"^  --(\[no\])?(\w+):", text, re.M)
        known[key] = {name for _, name in names} | {f"no{name}" for no, name in names if no}
    return known[key]


@pytest.mark.parametrize("page", _PAGES)
def test_flags_exist(call, page):
    code, text = _read(page)
    if page.endswith("coming_from.md"):  # its other columns have the flags of other toolkits
        text = re.sub(r"^(\|[^|]*\|).*", r"\1", text, flags=re.M)
    for script, rest in re.findall(
        r"(?:python scripts/|keras-transformer )(\w+)(?:\.py)?(.*)", code
    ):
        line = rest.partition(" | ")[0].partition("#")[0]
        module = re.search(r"--user_module=(\S+)", line)
        adds_flags = module and ("--architecture" in line or not module[1].startswith("examples/"))
        if script == "benchmark" or adds_flags:
            continue  # subcommands, an architecture or a module of the page itself may add flags
        more = [f"--user_module={_ROOT / module[1]}"] if module else []
        given = set(re.findall(r" '?--(\w+)", re.sub(r'"[^"]*"', "", line)))
        assert given <= _flags(call, script, *more) | _OF_OTHERS, line
    scripts = [path.stem for path in (_ROOT / "scripts").glob("*.py")]
    known = set().union(*(_flags(call, script) for script in scripts))
    named = set(re.findall(r"`--(\w+)", text)) - _OF_OTHERS
    if page.endswith("serving.md") or page.endswith("serve.md"):  # flags of the model server
        named -= {"enable_batching", "model_config_file", "batching_parameters_file"}
    assert named <= known, named - known


@pytest.mark.parametrize("page", _PAGES)
def test_imported_names_exist(page):
    for module, names in re.findall(
        r"^ *from (keras_transformer\S*) import (.*)$", _read(page)[0], re.M
    ):
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


@pytest.mark.parametrize("page", _PAGES)
def test_links_lead_to_files_and_headings(page):
    path, text = _ROOT / page, _read(page)[1]
    assert len(re.findall(r"^# ", text, re.M)) == 1
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        is_heading = target.suffix == ".md" and not anchor.startswith("keras_transformer.")
        if anchor and is_heading:  # no line of code, and no entry that the site makes
            headings = re.findall(r"^#+ (.*)", target.read_text("utf-8"), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
            assert anchor in slugs, link


def test_every_block_runs_or_is_listed_with_the_reason():
    exceptions = json.loads((_ROOT / "tests/docs/blocks.json").read_text("utf-8"))
    tests = (_ROOT / "tests/docs/test_pages.py").read_text("utf-8")
    listed = {
        (page, start) for pages in exceptions.values() for page in pages for start in pages[page]
    }
    for page in _PAGES:
        blocks = re.findall(
            r"^```(\w+)\n(.*?)^```$", (_ROOT / page).read_text("utf-8"), re.M | re.S
        )
        assert {language for language, _ in blocks} <= {"bash", "python", "text"}, page
        runs = f"{page.removeprefix('docs/').removesuffix('.md')}" in tests
        for language, text in blocks:
            starts = exceptions["not compared" if language == "text" else "not run"].get(page, {})
            matching = {(page, start) for start in starts if text.startswith(start)}
            assert matching or runs or language == "text" or not page.startswith("docs"), text
            listed -= matching
    assert not listed, "no such block"
