"""Adaptive computation time (Graves 2016), for each token by itself.

Shapes: B batch, T length.
"""

from typing import NamedTuple

from keras import ops

from keras_transformer.decoding import Tensor


class Halting(NamedTuple):
    """How far each token has come.

    Attributes:
        is_running: bool, whether it has not halted; padding never runs.
        total: float32, its halting probabilities so far.
        steps: float32, the steps that it has taken, N.
        remainders: float32, 1 less its halting probabilities before its last step, R; 0 before
            that.
    """

    is_running: Tensor  # [B, T], or of any shape, as all of these
    total: Tensor
    steps: Tensor
    remainders: Tensor


def start(is_real: Tensor) -> Halting:
    """Returns the state before the first step, for a mask that is True at real tokens."""
    zeros = ops.zeros_like(is_real, dtype="float32")
    return Halting(is_real, zeros, zeros, zeros)


def advance(
    halting: Halting, probabilities: Tensor, epsilon: float, is_last: bool
) -> tuple[Tensor, Halting]:
    """Takes one step (Graves 2016, eq. 5 to 9).

    Args:
        halting: of the steps before.
        probabilities: float32, those that the tokens halt now.
        epsilon: a token halts where its probabilities sum to more than 1 - epsilon.
        is_last: whether all tokens halt at this step. They get their remainder then too, so that
            their weights sum to 1 and the ponder cost has a gradient; tensor2tensor gives them
            none.

    Returns:
        The float32 weight of each token's state after this step, 0 where it had halted before, and
        how far it has come then.
    """
    running = halting.is_running
    rest = 1.0 - halting.total
    halts = running if is_last else running & (probabilities > rest - epsilon)
    goes_on = running & ~halts
    weights = ops.where(halts, rest, ops.where(goes_on, probabilities, 0.0))
    return weights, Halting(
        is_running=goes_on,
        total=halting.total + ops.where(goes_on, probabilities, 0.0),
        steps=halting.steps + ops.cast(running, "float32"),
        remainders=ops.where(halts, rest, halting.remainders),
    )
