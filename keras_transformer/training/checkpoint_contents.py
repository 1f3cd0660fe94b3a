"""What a checkpoint holds: weights, random states and the optimizer's variables, each by a name.

A name follows from the path of a weight or layer within the model, never from the order in which
Keras keeps variables: that order may change with a version of Keras.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.errors import InputError

Variable = Any  # keras.Variable or tf.Variable, also a mirrored one
# TensorFlow's variables, or what a strategy has made of them, by group and name. The files are the
# same for any number of devices.
Contents = Mapping[str, Mapping[str, Variable]]


def training_contents(
    model: keras.Model,
    average_weights: Mapping[str, Variable] | None,
    extra: Mapping[str, Variable] | None,
) -> dict[str, dict[str, Variable]]:
    """Returns all that training resumes from; see `Checkpoints.save`."""
    contents = {
        "weights": by_name(model, model.weights),
        "seeds": _seed_states(model),
        "optimizer": _optimizer_state(model),
    }
    for group, variables in (("average_weights", average_weights), ("extra", extra)):
        if variables:
            contents[group] = {name: _value(variable) for name, variable in variables.items()}
    return contents


def first_not_finite(contents: Contents) -> str | None:
    """Returns the name of a weight with a NaN or infinite entry, None where all are finite."""
    for group in ("weights", "average_weights"):
        for name, weight in contents.get(group, {}).items():
            if weight.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(weight)):
                return name
    return None


def by_name(model: keras.Model, weights: Sequence[keras.Variable]) -> dict[str, Variable]:
    """Returns some of a model's weights under names that are the same in any process."""
    return _unique((_path_within(model, weight), weight) for weight in weights)


def _path_within(model: keras.Model, weight: keras.Variable) -> str:
    # The path begins with the model's own name, which Keras numbers by process.
    return str(weight.path).removeprefix(f"{model.name}/")


def _seed_states(model: keras.Model) -> dict[str, Variable]:
    """Returns the states of random number generators by the names of the layers that have them."""
    states: dict[int, tuple[str, Variable]] = {}

    def visit(layer: keras.Layer, prefix: str) -> None:
        for attribute, value in vars(layer).items():
            if isinstance(value, keras.random.SeedGenerator):
                found = (f"{prefix}{attribute}", value.state)
                # A layer that several share has the first name in alphabetical order.
                states[id(value.state)] = min(found, states.get(id(value.state), found))
        for inner in layer._flatten_layers(include_self=False, recursive=False):
            visit(inner, f"{prefix}{inner.name}/")

    visit(model, "")
    known = {id(weight) for weight in model.weights} | states.keys()
    for variable in model.variables:
        if id(variable) not in known:
            raise InputError(
                f"{variable.path} cannot be saved: it is neither a weight nor the state of a "
                "SeedGenerator that is an attribute of a layer; make it one of them"
            )
    return _unique(states.values())


def _optimizer_state(model: keras.Model) -> dict[str, Variable]:
    """Returns the optimizer's variables: moments as <kind>/<weight's path>, others by name."""
    # Keras names a moment after its weight's path, with "/" as "_", and its kind.
    weights = {
        f"{weight.path.replace('/', '_')}_": _path_within(model, weight)
        for weight in model.trainable_weights
    }
    if len(weights) < len(model.trainable_weights):
        raise InputError("two weights have the same name; give the model's layers other names")
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", None)  # of LossScaleOptimizer
    of_inner = {id(variable) for variable in inner.variables} if inner else set()

    def name_of(variable: keras.Variable) -> str:
        parts = variable.name.split("_")
        # The longest path: "a_b/c" rather than "a/b" and a kind of moment "c_momentum".
        for length in range(len(parts) - 1, 0, -1):
            start = "_".join(parts[:length]) + "_"
            if start in weights:
                return f"{'_'.join(parts[length:])}/{weights[start]}"
        return f"inner/{variable.name}" if id(variable) in of_inner else str(variable.name)

    return _unique((name_of(variable), variable) for variable in optimizer.variables)


def _unique(named: Iterable[tuple[str, Variable]]) -> dict[str, Variable]:
    """Returns variables by name; `InputError` where two have the same one."""
    variables: dict[str, Variable] = {}
    for name, variable in named:
        if name in variables:
            raise InputError(
                f"two variables have the name {name}, so a checkpoint cannot tell them apart; "
                "give the model's layers other names"
            )
        variables[name] = _value(variable)
    return variables


def _value(variable: Variable) -> Variable:
    return variable.value if isinstance(variable, keras.Variable) else variable
