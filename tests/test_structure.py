"""The architecture, checked in the source: who may import whom, and what loads TensorFlow."""

import ast
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import keras_transformer

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
TREES = {
    path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}

# A module imports from its own folder and from lower floors, never sideways or upwards.
FLOORS = {
    "config": 0, "decoding": 0, "errors": 0, "files": 0, "host": 0,
    "paragraphs": 0, "results": 0,
    "client": 1, "layers": 1, "objectives": 1, "search": 1, "text": 1,
    "data": 2, "models": 2,
    "tasks": 3, "inference": 4, "training": 5,
    "explorer": 6, "interop": 6, "serving": 6,
    "commands": 7,
}  # fmt: skip
# These load without TensorFlow, the last three on other Keras backends.
WITHOUT_TENSORFLOW = (
    "client", "commands.main", "config", "decoding", "errors", "files", "host",
    "paragraphs", "results", "tasks", "layers", "models", "objectives",
)  # fmt: skip


def place_of(path: pathlib.Path) -> str:
    """Returns the folder of a module, or the name of one at the top level."""
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
    """Returns the imports of a module that break the order of the floors."""
    place = place_of(path)
    forbidden = []
    for name in imported_names(tree):
        package, _, rest = name.partition(".")
        if package not in ("", PACKAGE.name) or rest == "__version__":
            continue
        origin = rest.partition(".")[0]
        is_lower = FLOORS.get(origin, len(FLOORS)) < FLOORS[place]
        both_at_the_bottom = FLOORS.get(origin) == FLOORS[place] == 0
        if not (package and (is_lower or both_at_the_bottom or origin == place)):
            forbidden.append(name)
    return forbidden


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_public_names_are_the_same_for_type_checkers():
    names = {
        name
        for node in filter(is_for_type_checkers, TREES[pathlib.Path("__init__.py")].body)
        for name in imported_names(node)
    }
    homes = keras_transformer._HOMES
    assert names == {f"keras_transformer.{home}.{name}" for name, home in homes.items()}
    for name in homes:
        assert getattr(keras_transformer, name).__name__ == name


def test_modules_import_from_lower_floors_only():
    assert {place_of(path) for path in TREES} - {"__init__"} == FLOORS.keys()
    forbidden = {
        str(path): forbidden_imports(path, tree)
        for path, tree in TREES.items()
        if path.parts != ("__init__.py",)
    }
    assert {path: names for path, names in forbidden.items() if names} == {}


def module_name(path: pathlib.Path) -> str:
    return ".".join((PACKAGE.name, *path.with_suffix("").parts)).removesuffix(".__init__")


def find_cycle(trees: dict[str, ast.Module]) -> list[str]:
    """Returns the modules of an import cycle, imports inside functions included, or []."""
    # A name counts as the module that it is, and else as the module that it comes from.
    graph = {
        importer: {
            name if name in trees else name.rpartition(".")[0]
            for name in imported_names(tree)
            if name in trees or name.rpartition(".")[0] in trees
        }
        for importer, tree in trees.items()
    }
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


def test_no_import_cycles():
    trees = {module_name(path): tree for path, tree in TREES.items()}
    del trees[PACKAGE.name]  # no module of the package imports the names at its top
    assert find_cycle(trees) == []


def test_modules_load_without_tensorflow():
    imports = "\n".join(f"import keras_transformer.{name}" for name in WITHOUT_TENSORFLOW)
    program = f"{imports}\nimport sys\nprint('tensorflow' in sys.modules)"
    environment = os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr[-500:]


def test_only_commands_use_absl_flags():
    users = {
        place_of(path)
        for path, tree in TREES.items()
        if any(name.partition(".")[0] == "absl" for name in imported_names(tree))
    }
    assert users == {"commands"}
