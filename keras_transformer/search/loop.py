"""A loop whose state may grow, such as keys and values that a model appends at every step."""

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from keras_transformer.decoding import Tensor

State = TypeVar("State")


def repeat(
    advance: Callable[[State], State], state: State, goes_on: Callable[[State], Tensor]
) -> State:
    """Advances the state once, and then for as long as `goes_on` is True.

    The first round runs outside of the loop: it may change the number of hypotheses, and shows
    which dimensions grow.

    Args:
        advance: gives the next state, a nest of the same structure.
        state: nest of tensors and tensor arrays. The first two dimensions of a tensor may change
            in the first round only, the others in every round.
        goes_on: gives a bool [] tensor.
    """
    first = advance(state)
    (end,) = tf.while_loop(
        goes_on,
        lambda state: (advance(state),),
        (first,),
        shape_invariants=(tf.nest.map_structure(_lasting_shape, state, first),),
    )
    return end


def _lasting_shape(before: Any, after: Any) -> tf.TensorShape:
    """Returns what stays known of a shape: a dimension that one round changed may always change.

    The rest stays known, since models may need it for reshaping.
    """
    if isinstance(after, tf.TensorArray):
        return after.flow.shape
    pairs = zip(before.shape[2:], after.shape[2:], strict=True)
    return after.shape[:2].concatenate([new if new == old else None for old, new in pairs])
