"""Code blocks of all pages: flags, names, arguments and links exist. Nothing runs here."""

import ast
import importlib
import inspect
import json
import pathlib
import re
import shlex

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PAGES = ["README.md", *sorted(
    page.relative_to(_ROOT).as_posix()
    for folder in ("tutorials", "guides", "explanation", "results")
    for page in (_ROOT / "docs" / folder).glob("*.md")
)]  # fmt: skip
_OF_OTHERS = {  # programs that are not ours
    "tensorflow_session_config_file", "tensorflow_inter_op_parallelism", "grpc_max_threads",
    "rest_api_num_threads",
    "xla_cpu_compilation_enabled", "xla_cpu_prefer_vector_width",
    "model_config_file_poll_wait_seconds", "grpc_channel_arguments", "slow", "help", "version",
    "flagfile",
    "overlap_with", "categories_of",  # of tasks in examples/
}  # fmt: skip


@pytest.fixture(scope="module")
def known_flags():
    """The flags of each command, collected once."""
    return {}


def _flags(call, known, script, *arguments):
    key = (script, *arguments)
    if key not in known:
        text = call(f"{script}.py", *arguments, "--help").out
        names = re.findall(r"^  --(\[no\])?(\w+):", text, re.M)
        known[key] = {name for _, name in names} | {f"no{name}" for no, name in names if no}
    return known[key]


def _commands(page):
    """Yields program and arguments of each command line of ours in bash blocks."""
    text = (_ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```$", text, re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.split(" | "):
                found = re.search(r"(?:python scripts/|keras-transformer )(\w+)(?:\.py)?(.*)", part)
                if found and not line.startswith("#"):
                    yield found[1], shlex.split(found[2], comments=True)


def _python(page):
    text = (_ROOT / page).read_text(encoding="utf-8")
    return [
        ast.parse(block) for block in re.findall(r"^```py(?:thon)?\n(.*?)^```$", text, re.M | re.S)
    ]


@pytest.mark.parametrize("page", _PAGES)
def test_flags_of_commands_exist(call, known_flags, page):
    for script, arguments in _commands(page):
        if script in ("benchmark",):
            arguments = []
        module = [each for each in arguments if each.startswith("--user_module=examples/")]
        module = [each.replace("examples", str(_ROOT / "examples")) for each in module]
        known = _flags(call, known_flags, script, *module)
        if any(each.startswith("--user_module=") for each in arguments) and not module:
            continue  # a module that the page itself describes may add flags
        for argument in arguments:
            if argument.startswith("--") and argument != "--":
                assert argument[2:].partition("=")[0] in known, f"{script}: {argument}"


@pytest.mark.parametrize("page", _PAGES)
def test_flags_named_in_text_exist(call, known_flags, page):
    scripts = [path.stem for path in (_ROOT / "scripts").glob("*.py")]
    known = set().union(*(_flags(call, known_flags, script) for script in scripts))
    text = re.sub(r"^```.*?^```$", "", (_ROOT / page).read_text("utf-8"), flags=re.M | re.S)
    named = set(re.findall(r"`--(\w+)", text)) - _OF_OTHERS
    if page.endswith("serving.md") or page.endswith("serve.md"):  # flags of the model server
        named -= {"enable_batching", "model_config_file", "batching_parameters_file"}
    assert named <= known, named - known


@pytest.mark.parametrize("page", _PAGES)
def test_imported_names_exist_and_take_these_arguments(page):
    names = {}
    for tree in _python(page):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("keras_transformer"):
                module = importlib.import_module(node.module)
                names |= {alias.asname or alias.name: getattr(module, alias.name)
                          for alias in node.names}  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                _check_call(names.get(node.func.id), node)


def _check_call(function, node):
    if function is None:
        return
    parameters = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    given = {keyword.arg for keyword in node.keywords if keyword.arg}
    assert given <= parameters.keys(), f"{ast.unparse(node)}: {given - parameters.keys()}"


@pytest.mark.parametrize("page", _PAGES)
def test_links_lead_to_files_and_headings(page):
    path = _ROOT / page
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.M | re.S)
    assert len(re.findall(r"^# ", text, re.M)) == 1
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)", target.read_text("utf-8"), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
            assert anchor in slugs, link


def test_request_to_the_server_is_valid_json():
    text = (_ROOT / "docs/tutorials/serve.md").read_text("utf-8")
    for body in re.findall(r"-d '(.*)'", text):
        assert json.loads(body).keys() <= {"inputs", "signature_name"}
