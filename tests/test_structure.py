"""The architecture, checked in the source: who may import whom, and what loads TensorFlow."""

import ast
import graphlib
import pathlib
import types
from collections.abc import Iterator

import keras_transformer

TOP = keras_transformer.__name__
PACKAGE = pathlib.Path(keras_transformer.__file__).parent
TREES = {
    ".".join((TOP, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): (
        ast.parse(path.read_text(encoding="utf-8"))
    )
    for path in sorted(PACKAGE.rglob("*.py"))
}

# A module imports from its own folder and from lower floors, never sideways or upwards.
FLOORS = {
    "config": 0, "decoding": 0, "errors": 0, "files": 0, "host": 0,
    "outputs": 0, "paragraphs": 0, "protobuf": 0, "registration": 0, "sentences": 0, "version": 0,
    "client": 1, "layers": 1, "objectives": 1, "search": 1, "text": 1,
    "data": 2, "models": 2,
    "tasks": 3, "inference": 4, "callbacks": 5, "training": 5,
    "explorer": 6, "interop": 6, "pretrained": 6, "serving": 6,
    "loading": 7, "commands": 8,
}  # fmt: skip
# The most lines of a folder. A change that needs more names what goes for it, or raises the number
# and says why; a change that needs fewer lowers it.
MOST_LINES = {
    "client": 502, "commands": 1795, "config": 1154, "data": 1235, "explorer": 372,
    "inference": 993, "interop": 2608, "layers": 2505, "models": 1777, "pretrained": 48,
    "search": 1474, "serving": 586, "tasks": 1565, "text": 936, "training": 2286,
}  # fmt: skip
# These load without TensorFlow, the last three on other Keras backends.
WITHOUT_TENSORFLOW = (
    "client", "commands.main", "config", "decoding", "errors", "files", "host",
    "outputs", "paragraphs", "sentences", "serving.model_folder", "tasks", "layers", "models",
    "objectives",
)  # fmt: skip


def place_of(module: str) -> str:
    """Returns the folder of a module, or the name of one at the top level."""
    return module.split(".")[1] if "." in module else "__init__"


def imported_by(tree: ast.AST) -> Iterator[str]:
    """Yields the modules that a module imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            for alias in node.names:
                whole = f"{origin}.{alias.name}"
                yield whole if whole in TREES else origin


IMPORTS = {module: set(imported_by(tree)) for module, tree in TREES.items() if module != TOP}


def test_names_of_the_stub_can_be_imported():
    assert keras_transformer.__all__
    for name in keras_transformer.__all__:
        assert not isinstance(getattr(keras_transformer, name), types.ModuleType)


def test_modules_import_from_lower_floors_only():
    assert set(map(place_of, IMPORTS)) == FLOORS.keys()
    upwards = [
        f"{module} imports {other}"
        for module, others in IMPORTS.items()
        for other in others
        if other.partition(".")[0] in ("", TOP)
        and (here := place_of(module)) != (there := place_of(other))
        and not FLOORS.get(there, 99) < FLOORS[here]
        and not FLOORS.get(there) == FLOORS[here] == 0
    ]
    assert upwards == []


def test_no_import_cycles():
    graphlib.TopologicalSorter(IMPORTS).prepare()  # raises CycleError


def test_modules_load_without_tensorflow(run_python):
    imports = "\n".join(f"import keras_transformer.{name}" for name in WITHOUT_TENSORFLOW)
    program = f"{imports}\nimport sys\nprint('tensorflow' in sys.modules)"
    assert run_python("-c", program, KERAS_BACKEND="jax").strip() == "False"


def test_only_commands_use_absl_flags():
    users = {
        place_of(module)
        for module, others in IMPORTS.items()
        if any(other.partition(".")[0] == "absl" for other in others)
    }
    assert users == {"commands"}


def test_folders_keep_to_their_lines():
    lines = dict.fromkeys(MOST_LINES, 0)
    for path in PACKAGE.glob("*/**/*.py"):
        folder = path.relative_to(PACKAGE).parts[0]
        lines[folder] += len(path.read_text(encoding="utf-8").splitlines())
    too_long = [
        f"{name}: {n} lines, at most {MOST_LINES[name]}"
        for name, n in lines.items()
        if n > MOST_LINES[name]
    ]
    assert too_long == []
