"""The loop of every search: advance all sentences, and drop those that are finished.

Shapes: B sentences.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from keras_transformer.decoding import Tensor

Inputs = TypeVar("Inputs")
State = TypeVar("State")


def decode_loop(
    advance: Callable[[Tensor, Inputs, State, int | None], State],
    inputs: Inputs,
    state: State,
    *,
    is_open: Callable[[State], Tensor],
    result_of: Callable[[State], Any],
    grow_cache: Callable[[State, int, int], State],
    max_steps: Tensor,
    capacities: Sequence[int] = (),
) -> Any:
    """Advances the state of all sentences until none is open, and returns their results.

    Args:
        advance: gives the next state from the number of steps before this one (int32 []), the
            inputs, the state, and the capacity of the state, None where it has no limit. It must
            leave the result of a sentence that is not open as it is.
        inputs: nest of tensors [B, ...]; never changes.
        state: nest of tensors [B, ...]. A dimension of size 0 may grow in every step.
        is_open: gives a bool [B].
        result_of: gives a nest of tensors [B, ...], the same shapes in every step.
        grow_cache: gives a state the second capacity in place of the first.
        max_steps: steps after which no sentence is open, unless the model's logits are NaN.
        capacities: where all shapes must be known, as for XLA: the steps that the state has room
            for, stage by stage. Else the batch shrinks: finished sentences leave it, and no more
            work is done for them.
    """
    if capacities:
        return _loop_in_stages(advance, inputs, state, is_open, result_of, grow_cache, capacities)
    rows = tf.range(tf.shape(tf.nest.flatten(state)[0])[0])

    def shrink_batch(time: Tensor, rows: Tensor, inputs: Any, state: Any, results: Any) -> Any:
        # Dropping sentences copies the others, so it waits until a quarter has finished.
        size = tf.shape(rows)[0]
        min_open = size - (size + 3) // 4
        time, state = _run_steps(
            lambda time, state: advance(time, inputs, state, None),
            (time, state),
            is_open,
            min_open,
            max_steps,
        )
        results = tf.nest.map_structure(
            lambda all_, some: tf.tensor_scatter_nd_update(all_, rows[:, None], some),
            results,
            result_of(state),
        )
        open_rows = tf.where(is_open(state))[:, 0]
        rows, inputs, state = tf.nest.map_structure(
            lambda leaf: tf.gather(leaf, open_rows), (rows, inputs, state)
        )
        return time, rows, inputs, state, results

    variables = (tf.constant(0), rows, inputs, state, result_of(state))
    *_, results = tf.while_loop(
        lambda time, rows, *_: (tf.shape(rows)[0] > 0) & (time < max_steps),
        shrink_batch,
        variables,
        shape_invariants=tf.nest.map_structure(_changing_shape, variables),
    )
    return results


def kv_cache_capacities(max_length_bound: int) -> tuple[int, ...]:
    """Returns how many tokens a KV cache of fixed capacity has room for, stage by stage.

    The first is the `capacity` that `encode` must be given; each next one is twice as large, and
    the last has room for `max_length_bound` tokens and EOS.

    Args:
        max_length_bound: the most tokens that a translation may have before EOS.
    """
    last = max_length_bound + 1
    capacities = []
    capacity = 16
    while capacity * 3 <= last * 2:  # a last stage that is hardly larger is not worth it
        capacities.append(capacity)
        capacity *= 2
    return (*capacities, last)


def _loop_in_stages(
    advance: Callable[..., Any],
    inputs: Any,
    state: Any,
    is_open: Callable[[Any], Tensor],
    result_of: Callable[[Any], Any],
    grow_cache: Callable[[Any, int, int], Any],
    capacities: Sequence[int],
) -> Any:
    """Runs within the first capacity, and in the next ones while sentences are open.

    Work grows with the capacity, and most sentences finish before the largest is needed.
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
            lambda: stage(number + 1, time, grow_cache(state, capacity, capacities[number + 1])),
            lambda: result_of(state),
        )

    return stage(0, tf.constant(0), state)


def _run_steps(
    advance: Callable[[Tensor, Any], Any],
    variables: tuple[Tensor, Any],
    is_open: Callable[[Any], Tensor],
    min_open: Tensor,
    max_steps: Tensor,
) -> tuple[Tensor, Any]:
    """Advances (time, state) while more than `min_open` sentences are open."""
    shapes = tf.nest.map_structure(lambda leaf: _changing_shape(leaf, leaf.shape[:1]), variables)

    def should_continue(time: Tensor, state: Any) -> Tensor:
        num_open = tf.math.count_nonzero(is_open(state), dtype=tf.int32)
        return (num_open > min_open) & (time < max_steps)

    return tf.while_loop(
        should_continue,
        lambda time, state: (time + 1, advance(time, state)),
        variables,
        shape_invariants=shapes,
    )


def _changing_shape(leaf: Tensor, first: Any = (None,)) -> tf.TensorShape:
    """Returns a leaf's shape with another first dimension, and sizes of 0, which grow, unknown.

    The others stay known, since models may need them for reshaping.
    """
    if leaf.shape.rank == 0:
        return leaf.shape
    rest = [None if size == 0 else size for size in leaf.shape[1:]]
    return tf.TensorShape(first).concatenate(rest)
