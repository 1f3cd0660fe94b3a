"""The loop of every search: advance all sentences, and let those that are finished leave.

Shapes: B sentences.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from keras_transformer.decoding import Tensor

Asked = TypeVar("Asked")
State = TypeVar("State")


def decode_loop(
    advance: Callable[[Tensor, Asked, State, int | None], State],
    inputs: Asked,
    state: State,
    *,
    is_open: Callable[[State], Tensor],
    result_of: Callable[[State], Any],
    widen: Callable[[State, int, int], State],
    most: Tensor,
    capacities: Sequence[int] = (),
) -> Any:
    """Advances the state of all sentences until none is open, and returns their results.

    Args:
        advance: gives the next state from the number of steps before this one (int32 []), the
            inputs, the state, and the steps that the state has room for, if that is limited.
            It must leave the result of a sentence that is not open as it is.
        inputs: nest of tensors [B, ...], what the sentences ask for; never changes.
        state: nest of tensors [B, ...]. A dimension of size 0 may grow in every step.
        is_open: gives a bool [B].
        result_of: gives a nest of tensors [B, ...], the same shapes in every step.
        widen: gives a state room for the second number of steps in place of the first.
        most: steps after which no sentence is open, unless the model's logits are no numbers.
        capacities: where all shapes must be known, as for XLA: the steps that the state has room
            for, and those that it is given room for in turn while sentences are open. Else the
            batch shrinks: finished sentences leave it, and no more work is done for them.
    """
    if capacities:
        return _loop_in_stages(advance, inputs, state, is_open, result_of, widen, capacities)
    rows = tf.range(tf.shape(tf.nest.flatten(state)[0])[0])

    def go_on(time: Tensor, rows: Tensor, inputs: Any, state: Any, results: Any) -> Any:
        # Leaving costs a copy of all that stays: it waits for a quarter of the sentences.
        size = tf.shape(rows)[0]
        enough = size - (size + 3) // 4
        time, state = _run_steps(
            lambda time, state: advance(time, inputs, state, None),
            (time, state),
            is_open,
            enough,
            most,
        )
        results = tf.nest.map_structure(
            lambda all_, some: tf.tensor_scatter_nd_update(all_, rows[:, None], some),
            results,
            result_of(state),
        )
        stay = tf.where(is_open(state))[:, 0]
        rows, inputs, state = tf.nest.map_structure(
            lambda leaf: tf.gather(leaf, stay), (rows, inputs, state)
        )
        return time, rows, inputs, state, results

    variables = (tf.constant(0), rows, inputs, state, result_of(state))
    *_, results = tf.while_loop(
        lambda time, rows, *_: (tf.shape(rows)[0] > 0) & (time < most),
        go_on,
        variables,
        shape_invariants=tf.nest.map_structure(_changing_shape, variables),
    )
    return results


def _loop_in_stages(
    advance: Callable[..., Any],
    inputs: Any,
    state: Any,
    is_open: Callable[[Any], Tensor],
    result_of: Callable[[Any], Any],
    widen: Callable[[Any, int, int], Any],
    capacities: Sequence[int],
) -> Any:
    """Repeats within the first capacity, and in the next ones while sentences are open.

    Work grows with the capacity, and most sentences are done before the largest is needed.
    """

    def stage(number: int, time: Tensor, state: Any) -> Any:
        capacity = capacities[number]
        time, state = _run_steps(
            lambda time, state: advance(time, inputs, state, capacity),
            (time, state),
            is_open,
            tf.constant(0),
            capacity,
        )
        if number + 1 == len(capacities):
            return result_of(state)
        return tf.cond(
            tf.reduce_any(is_open(state)),
            lambda: stage(number + 1, time, widen(state, capacity, capacities[number + 1])),
            lambda: result_of(state),
        )

    return stage(0, tf.constant(0), state)


def _run_steps(
    advance: Callable[[Tensor, Any], Any],
    variables: tuple[Tensor, Any],
    is_open: Callable[[Any], Tensor],
    enough: Tensor,
    until: Tensor,
) -> tuple[Tensor, Any]:
    """Advances (time, state) while more than `enough` sentences are open, `until` at most."""
    shapes = tf.nest.map_structure(lambda leaf: _changing_shape(leaf, leaf.shape[:1]), variables)

    def go_on(time: Tensor, state: Any) -> Tensor:
        num_open = tf.math.count_nonzero(is_open(state), dtype=tf.int32)
        return (num_open > enough) & (time < until)

    return tf.while_loop(
        go_on,
        lambda time, state: (time + 1, advance(time, state)),
        variables,
        shape_invariants=shapes,
    )


def _changing_shape(leaf: Tensor, first: Any = (None,)) -> tf.TensorShape:
    """Returns a leaf's shape with `first` as its first dimension, and those of size 0 unknown.

    These grow. The others stay known, since models may need them for reshaping.
    """
    if leaf.shape.rank == 0:
        return leaf.shape
    rest = [None if size == 0 else size for size in leaf.shape[1:]]
    return tf.TensorShape(first).concatenate(rest)
