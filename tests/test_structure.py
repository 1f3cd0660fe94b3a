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
    "atomic_files": 0, "atomic_folders": 0, "config": 0, "decoding": 0, "errors": 0, "host": 0,
    "export_versions": 0, "batch_by_length": 0, "text_files": 0,
    "client": 1, "layers": 1, "objectives": 1, "search": 1, "text": 1,
    "data": 2, "models": 2,
    "tasks": 3, "inference": 4, "training": 5,
    "explorer": 6, "interop": 6, "serving": 6,
    "commands": 7,
}  # fmt: skip
TENSORFLOW = {"tensorflow", "tensorflow_text", "tensorflow_datasets"}
MAY_USE_TENSORFLOW = {
    "text", "data", "search", "inference", "explorer", "interop", "serving", "training",
    "commands",
}  # fmt: skip
TENSORFLOW_STEP = pathlib.Path("models", "tensorflow_train_step.py")
GRPC_TRANSPORT = pathlib.Path("client", "grpc_transport.py")
# Inside `if keras.backend.backend() == "tensorflow":`
MAY_USE_TENSORFLOW_IF_ASKED = {
    pathlib.Path("models", "train_step.py"),
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


def is_function(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef)


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
        ("data/epoch_plan.py", "import keras_transformer.text.vocabulary", True),
        ("config/model.py", "from keras_transformer.errors import InputError", True),
        ("layers/encoder.py", "from keras import ops", True),
        ("layers/encoder.py", "from keras_transformer.models import Transformer", False),
        ("layers/encoder.py", "def f():\n    import keras_transformer.text", False),
        ("data/epoch_plan.py", "from keras_transformer.models import Transformer", False),
        ("errors.py", "from keras_transformer import layers", False),
        ("training/fit.py", "from keras_transformer import Translator", False),
        ("training/fit.py", "from . import session", False),
        ("training/fit.py", "from ..serving import export", False),
    ],
)
def test_a_wrong_import_would_be_found(path, line, allowed):
    assert (forbidden_imports(pathlib.Path(path), ast.parse(line)) == []) == allowed


def test_every_folder_and_file_at_the_top_has_a_floor():
    assert {place_of(path) for path in FILES} - {"__init__"} == FLOORS.keys()


def module_name(path: pathlib.Path) -> str:
    parts = [PACKAGE.name, *path.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Gives the modules that each module imports, inside functions and for type checkers too.

    A name from a package counts as the module that defines it where that is a module of its own,
    and else as the package.
    """
    return {
        importer: {
            name if name in trees else name.rpartition(".")[0]
            for name in imported_names(tree)
            if name in trees or name.rpartition(".")[0] in trees
        }
        for importer, tree in trees.items()
    }


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Gives the modules of a cycle of imports, or none."""
    done: set[str] = set()

    def visit(module: str, above: list[str]) -> list[str]:
        if module in above:
            return [*above[above.index(module) :], module]
        if module in done:
            return []
        for imported in sorted(graph[module]):
            if cycle := visit(imported, [*above, module]):
                return cycle
        done.add(module)
        return []

    return next(filter(None, (visit(module, []) for module in sorted(graph))), [])


def test_no_module_imports_itself_by_way_of_others_not_even_inside_functions():
    trees = {module_name(path): parse(path) for path in FILES}
    # The names at the top are for type checkers and users: no file of the package takes them from
    # there, see the test of the floors.
    del trees[PACKAGE.name]
    assert find_cycle(import_graph(trees)) == []


def test_a_cycle_inside_functions_would_be_found():
    sources = {
        "p.a": "from p.b import f",
        "p.b": "if TYPE_CHECKING:\n    from p import c",
        "p.c": "def f():\n    from p.a import g",
        "p.d": "import p.a",
    }
    trees = {name: ast.parse(source) for name, source in sources.items()}
    assert find_cycle(import_graph(trees)) == ["p.a", "p.b", "p.c", "p.a"]
    trees["p.c"] = ast.parse("import os")
    assert find_cycle(import_graph(trees)) == []


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
    tree.body = [node for node in tree.body if not is_for_type_checkers(node)]
    imported = list(imported_names(tree))
    assert not [name for name in imported if TENSORFLOW_STEP.stem in name]
    # Importing a folder imports TensorFlow too, but for imports that wait in a function.
    at_import = [
        name for node in tree.body if not is_function(node) for name in imported_names(node)
    ]
    assert not MAY_USE_TENSORFLOW & {
        name.split(".")[1] for name in at_import if PACKAGE.name in name
    }


@pytest.mark.parametrize("path", FILES, ids=str)
def test_nothing_is_asserted_that_python_without_assertions_would_skip(path):
    assert not [node.lineno for node in ast.walk(parse(path)) if isinstance(node, ast.Assert)]


def lines_of_code(function: ast.FunctionDef, source: list[str]) -> int:
    """Counts the lines of a function's body, without docstring, comments and blank lines."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    if not body:
        return 0
    lines = map(str.strip, source[body[0].lineno - 1 : function.end_lineno])
    return sum(bool(line) and not line.startswith("#") for line in lines)


@pytest.mark.parametrize("root", ["keras_transformer", "scripts"])
def test_functions_and_files_are_short(root):
    long = []
    for path in sorted((PACKAGE.parent / root).rglob("*.py")):
        source = path.read_text(encoding="utf-8").splitlines()
        if len(source) > 250:
            long.append(f"{path}: {len(source)} lines")
        for node in ast.walk(ast.parse("\n".join(source))):
            if isinstance(node, ast.FunctionDef) and lines_of_code(node, source) > 40:
                long.append(f"{path}:{node.lineno} {node.name}: {lines_of_code(node, source)}")
    assert not long


@pytest.mark.parametrize("path", FILES, ids=str)
def test_flags_belong_to_the_commands(path):
    assert place_of(path) == "commands" or not uses(parse(path), {"absl"})
