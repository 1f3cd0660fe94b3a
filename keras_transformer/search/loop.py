"""The loop of every search: advance all sentences, and let those that are finished leave.

Shapes: B sentences.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from keras_transformer.decoding import Tensor

Request = TypeVar("Request")
State = TypeVar("State")


def repeat(
    advance: Callable[[Tensor, Request, State], State],
    request: Request,
    state: State,
    *,
    is_open: Callable[[State], Tensor],
    result_of: Callable[[State], Any],
    shrinks: bool,
) -> Any:
    """Advances the state of all sentences until none is open, and returns their results.

    Args:
        advance: gives the next state from the number of rounds before this one (int32 []), the
            request and the state. The state of a sentence that is not open must not matter to
            its result.
        request: nest of tensors [B, ...], what the sentences ask for; never changes.
        state: nest of tensors [B, ...]. A dimension of size 0 may grow in every round.
        is_open: gives a bool [B].
        result_of: gives a nest of tensors [B, ...], the same shapes in every round.
        shrinks: whether finished sentences leave the batch, so that no more work is done for
            them. The batch's size then changes, which XLA does not allow.
    """
    if not shrinks:
        *_, state = _rounds(advance, request, (tf.constant(0), state), is_open, tf.constant(0))
        return result_of(state)
    rows = tf.range(tf.shape(tf.nest.flatten(state)[0])[0])

    def go_on(time: Tensor, rows: Tensor, request: Any, state: Any, results: Any) -> Any:
        # Leaving costs a copy of all that stays: it waits for a quarter of the sentences.
        size = tf.shape(rows)[0]
        time, state = _rounds(advance, request, (time, state), is_open, size - (size + 3) // 4)
        results = tf.nest.map_structure(
            lambda all_, some: tf.tensor_scatter_nd_update(all_, rows[:, None], some),
            results,
            result_of(state),
        )
        stay = tf.where(is_open(state))[:, 0]
        rows, request, state = tf.nest.map_structure(
            lambda leaf: tf.gather(leaf, stay), (rows, request, state)
        )
        return time, rows, request, state, results

    variables = (tf.constant(0), rows, request, state, result_of(state))
    *_, results = tf.while_loop(
        lambda time, rows, *_: tf.shape(rows)[0] > 0,
        go_on,
        variables,
        shape_invariants=tf.nest.map_structure(_changing_shape, variables),
    )
    return results


def _rounds(
    advance: Callable[..., Any],
    request: Any,
    variables: tuple[Tensor, Any],
    is_open: Callable[[Any], Tensor],
    enough: Tensor,
) -> tuple[Tensor, Any]:
    """Advances (time, state) while more than `enough` sentences are open."""
    shapes = tf.nest.map_structure(lambda leaf: _changing_shape(leaf, leaf.shape[:1]), variables)
    return tf.while_loop(
        lambda _, state: tf.math.count_nonzero(is_open(state), dtype=tf.int32) > enough,
        lambda time, state: (time + 1, advance(time, request, state)),
        variables,
        shape_invariants=shapes,
    )


def _changing_shape(leaf: Tensor, first: Any = (None,)) -> tf.TensorShape:
    """Returns what stays known of a shape.

    The rest stays known, since models may need it for reshaping.
    """
    if leaf.shape.rank == 0:
        return leaf.shape
    rest = [None if size == 0 else size for size in leaf.shape[1:]]
    return tf.TensorShape(first).concatenate(rest)
