"""The house rules, read from the source: who may import whom, and what is left to others."""

import ast
import pathlib
from collections.abc import Iterator

import pytest

import keras_transformer

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "keras_transformer"
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))

# A file imports from its own folder and from lower floors, never sideways or upwards.
FLOORS = {
    "atomic_files": 0, "atomic_folders": 0, "config": 0, "cores": 0, "decoding": 0, "errors": 0,
    "export_versions": 0,    "text_files": 0,
    "client": 1, "layers": 1, "search": 1, "text": 1,
    "data": 2, "models": 2,
    "training": 3,
    "inference": 4, "interop": 5,
    "serving": 6,
    "commands": 7,
}  # fmt: skip
TENSORFLOW = {"tensorflow", "tensorflow_text", "tensorflow_datasets"}
MAY_USE_TENSORFLOW = {
    "text", "data", "search", "inference", "interop", "serving", "training", "commands",
}  # fmt: skip
TENSORFLOW_STEP = pathlib.Path("models", "tensorflow_step.py")
GRPC_TRANSPORT = pathlib.Path("client", "grpc_transport.py")
# Inside `if keras.backend.backend() == "tensorflow":`
MAY_USE_TENSORFLOW_IF_ASKED = {
    pathlib.Path("models", "training_step.py"),
    pathlib.Path("layers", "dropout.py"),
}


def parse(path: pathlib.Path) -> ast.Module:
    return ast.parse((PACKAGE / path).read_text(encoding="utf-8"))


def place_of(path: pathlib.Path) -> str:
    """Gives the folder of a file, or the name of one that stands at the top."""
    return path.parts[0].removesuffix(".py")


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Yields the full dotted name of everything that is imported, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def forbidden_imports(path: pathlib.Path, tree: ast.AST) -> list[str]:
    """Gives the names that a file imports against the order of the floors."""
    place = place_of(path)
    forbidden = []
    for name in imported_names(tree):
        package, _, rest = name.partition(".")
        if package not in ("", PACKAGE.name):
            continue
        origin = rest.partition(".")[0]
        lower = FLOORS.get(origin, len(FLOORS)) < FLOORS[place]
        both_at_the_bottom = FLOORS.get(origin) == FLOORS[place] == 0
        if not (package and (lower or both_at_the_bottom or origin == place)):
            forbidden.append(name)
    return forbidden


def uses(tree: ast.AST, packages: set[str]) -> bool:
    return any(name.partition(".")[0] in packages for name in imported_names(tree))


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_type_checkers_see_the_names_that_are_imported_when_they_are_used():
    module = keras_transformer
    tree = parse(pathlib.Path(module.__file__))
    seen = {
        name for node in filter(is_for_type_checkers, tree.body) for name in imported_names(node)
    }
    assert seen == {f"keras_transformer.{home}.{name}" for name, home in module._HOMES.items()}
    for name in module._HOMES:
        assert getattr(module, name).__name__ == name


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_imports_from_lower_floors_and_its_own_folder_only(path):
    if path.name == "__init__.py" and len(path.parts) == 1:
        tree = parse(path)
        tree.body = [node for node in tree.body if not is_for_type_checkers(node)]
        assert not [name for name in imported_names(tree) if PACKAGE.name in name]
    else:
        assert forbidden_imports(path, parse(path)) == []


@pytest.mark.parametrize(
    ("path", "line", "allowed"),
    [
        ("layers/encoder.py", "from keras_transformer.layers.masks import causal_bias", True),
        ("layers/encoder.py", "from keras_transformer import errors", True),
        ("data/plan.py", "import keras_transformer.text.vocabulary", True),
        ("config/model.py", "from keras_transformer.errors import InputError", True),
        ("layers/encoder.py", "from keras import ops", True),
        ("layers/encoder.py", "from keras_transformer.models import Transformer", False),
        ("layers/encoder.py", "def f():\n    import keras_transformer.text", False),
        ("data/plan.py", "from keras_transformer.models import Transformer", False),
        ("errors.py", "from keras_transformer import layers", False),
        ("training/fit.py", "from keras_transformer import Translator", False),
        ("training/fit.py", "from . import losses", False),
        ("training/fit.py", "from ..serving import export", False),
    ],
)
def test_a_wrong_import_would_be_found(path, line, allowed):
    assert (forbidden_imports(pathlib.Path(path), ast.parse(line)) == []) == allowed


def test_every_folder_and_file_at_the_top_has_a_floor():
    assert {place_of(path) for path in FILES} - {"__init__"} == FLOORS.keys()


@pytest.mark.parametrize("path", FILES, ids=str)
def test_tensorflow_is_named_only_where_any_backend_would_not_do(path):
    tree = parse(path)
    if path in MAY_USE_TENSORFLOW_IF_ASKED:
        asked = [
            node
            for node in tree.body
            if isinstance(node, ast.If)
            and ast.unparse(node.test) == "keras.backend.backend() == 'tensorflow'"
        ]
        tree.body = [node for node in tree.body if node not in asked]
        assert asked
    elif place_of(path) in MAY_USE_TENSORFLOW or path in (TENSORFLOW_STEP, GRPC_TRANSPORT):
        return
    assert not uses(tree, TENSORFLOW)
    assert not [name for name in imported_names(tree) if TENSORFLOW_STEP.stem in name]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_nothing_is_asserted_that_python_without_assertions_would_skip(path):
    assert not [node.lineno for node in ast.walk(parse(path)) if isinstance(node, ast.Assert)]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_flags_belong_to_the_commands(path):
    assert place_of(path) == "commands" or not uses(parse(path), {"absl"})
