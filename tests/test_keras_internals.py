"""What the package leans on in Keras that is not documented, and that Keras still has it.

A new version of Keras that fails here needs a look at the places named below; the oldest and the
newest version that setup.py allows pass.
"""

import ast
import importlib
import inspect
import pathlib

import keras
import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "keras_transformer"

# Private methods by class: the arguments that are given to them, or that they are overridden with.
METHODS = {
    # models/update.py: the layers within a layer
    (keras.layers.Layer, "_flatten_layers"): ("include_self", "recursive"),
    # models/seq2seq.py: overridden, so that subclasses of a built model may add layers
    (keras.layers.Layer, "_lock_state"): (),
    # models/update.py: overridden, for several workers and uneven batches
    (keras.Model, "_maybe_symbolic_build"): ("iterator", "data_batch"),
    (keras.Model, "_symbolic_build"): ("data_batch",),
    # training/optimizer.py: which moments belong to a weight
    (keras.optimizers.Optimizer, "_get_variable_index"): ("variable",),
}
# Private attributes of objects.
ATTRIBUTES = {
    "_loss_tracker": "model",  # models/update.py
    "_distribute_strategy": "model",  # models/update.py
    "_momentums": "optimizer",  # training/optimizer.py
    "_velocities": "optimizer",  # training/optimizer.py
}

# Functions of a private module: layers/masks.py, models/train_step.py.
IMPORTS = {"keras.src.backend": {"get_keras_mask", "set_keras_mask"}}

needs_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only used with TensorFlow"
)


@pytest.fixture(scope="module")
def objects():
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(2, name="dense")],
        name="own_name",
    )
    model.compile(keras.optimizers.Adam(), "mse")
    model.optimizer.build(model.trainable_variables)
    return {"model": model, "optimizer": model.optimizer}


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_private_methods_take_our_arguments(kind, name):
    if kind is keras.Model and keras.backend.backend() != "tensorflow":
        pytest.skip("only used with TensorFlow")
    _, *parameters = inspect.signature(getattr(kind, name)).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = set(METHODS[kind, name])
    assert given <= {parameter.name for parameter in parameters}
    assert given >= {
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variadic
    }


def private_names_of_keras(objects) -> set[str]:
    kinds = (
        keras.Model, keras.layers.Layer, keras.layers.Dropout, keras.optimizers.Adam,
        keras.optimizers.LossScaleOptimizer, keras.metrics.Metric, keras.losses.Loss,
        keras.callbacks.Callback, keras.optimizers.schedules.LearningRateSchedule,
        keras.Variable, keras.random.SeedGenerator,
    )  # fmt: skip
    instances = [*objects.values(), keras.metrics.Mean(), keras.callbacks.Callback()]
    names = {name for kind in kinds for name in dir(kind)}
    names |= {name for instance in instances for name in vars(instance)}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def names_used(tree: ast.Module) -> set[str]:
    """Gives the attributes that a file reads and does not assign, and the methods it defines."""
    nodes = list(ast.walk(tree))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    read = {node.attr for node in attributes if isinstance(node.ctx, ast.Load)}
    assigned = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    within = [each for node in nodes if isinstance(node, ast.ClassDef) for each in ast.walk(node)]
    return (read - assigned) | {each.name for each in within if isinstance(each, ast.FunctionDef)}


def test_keras_does_not_import_the_module_that_a_file_names(run_python, tmp_path):
    """Else registration.py is not needed."""
    (tmp_path / "mine.py").write_text("import keras\nclass Mine(keras.layers.Layer): pass\n")
    program = """
import keras
config = {"module": "mine", "class_name": "Mine", "config": {}, "registered_name": "mine>Mine"}
try:
    keras.saving.deserialize_keras_object(config)
except TypeError as error:
    print("Could not locate class" in str(error))
"""
    assert run_python("-c", program, PYTHONPATH=str(tmp_path)) == "True\n"


@needs_tensorflow
def test_no_other_private_keras_names_are_used(objects):
    private = private_names_of_keras(objects)
    found = {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name in names_used(tree) & private:
            found.setdefault(name, []).append(path.name)
    listed = {name for _, name in METHODS} | ATTRIBUTES.keys()
    assert found.keys() == listed, found
    imported: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and module.startswith("keras.src"):
                imported.setdefault(module, set()).update(alias.name for alias in node.names)
    assert imported == IMPORTS
    for module, names in IMPORTS.items():
        assert all(hasattr(importlib.import_module(module), name) for name in names)
