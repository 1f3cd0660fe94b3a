"""Candidates of a beam: continuations of its hypotheses, of which the next beam is chosen.

Shapes: B sentences, A hypotheses of a group, K continuations of a set of hypotheses, C candidates
of a group.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.constraints import ProgressConstraint
from keras_transformer.search.loop_state import LoopState, SearchSpec, SentenceInputs
from keras_transformer.search.scoring import IMPOSSIBLE


class Candidates(NamedTuple):
    """Continuations of the hypotheses of one group."""

    log_probs: Tensor  # float32 [B, C], -inf where impossible
    parents: Tensor  # int32 [B, C], the hypotheses that they continue, 0 to W - 1
    ids: Tensor  # int32 [B, C]


def of_group(candidates: Candidates, group: int, num_groups: int) -> Candidates:
    """Returns the candidates [B, C] of one group from those of all sets, [B, sets, K].

    A group has one set or several after one another.
    """
    width = candidates.ids.shape[2]
    if width is None:  # the number of required phrases differs from batch to batch
        width = tf.shape(candidates.ids)[2]
    width *= candidates.ids.shape[1] // num_groups
    return Candidates(*(tf.reshape(part, [-1, num_groups, width])[:, group] for part in candidates))


def take(candidates: Candidates, index: Tensor) -> Candidates:
    """Returns the candidates at index [B, any]."""
    return Candidates(*(tf.gather(part, index, batch_dims=1) for part in candidates))


def best_indices(
    candidates: Candidates,
    count: int,
    earlier: Sequence[Candidates],
    spec: SearchSpec,
    inputs: SentenceInputs,
    loop_state: LoopState,
) -> Tensor:
    """Returns the indices of the `count` candidates to consider, int32 [B, count], best first.

    Args:
        candidates: of one group.
        count: at most C.
        earlier: what earlier groups chose at this step.
        spec, inputs, loop_state: of the search.
    """
    value = candidates.log_probs  # [B, C]
    for chosen in earlier:
        is_taken = tf.equal(candidates.ids[..., None], chosen.ids[:, None])  # [B, C, A]
        times = tf.math.count_nonzero(is_taken, axis=-1, dtype=tf.float32)
        value -= inputs.options["diversity_penalty"][:, None] * times
    banks = []
    for constraint, its_inputs, state in zip(
        spec.constraints, inputs.constraints, loop_state.constraints, strict=True
    ):
        if isinstance(constraint, ProgressConstraint):
            state = tf.nest.map_structure(
                lambda leaf: tf.gather(leaf, candidates.parents, batch_dims=1), state
            )
            state = constraint.update(state, candidates.ids, its_inputs)
            banks.append(constraint.bank(state, its_inputs))

    def most_probable() -> Tensor:
        return tf.math.top_k(value, count).indices

    if not banks:
        return most_probable()
    bank = tf.add_n(banks)
    return tf.cond(
        tf.reduce_any(bank > 0), lambda: spread_over_banks(value, bank, count), most_probable
    )


def keep_open(candidates: Candidates, count: int, eos_id: int, pad_id: int) -> Candidates:
    """Returns the first `count` of 2 * `count` candidates that do not end.

    No more than one continuation of a hypothesis ends: at least `count` do not. Impossible ones
    have PAD, which no group chooses.
    """
    is_open = (candidates.ids != eos_id) & (candidates.log_probs > IMPOSSIBLE)
    _, index = tf.math.top_k(tf.where(is_open, -tf.range(2 * count), -2 * count), count)
    kept = take(candidates, index)
    is_open = tf.gather(is_open, index, batch_dims=1)
    return kept._replace(
        log_probs=tf.where(is_open, kept.log_probs, IMPOSSIBLE),
        ids=tf.where(is_open, kept.ids, pad_id),
    )


def spread_over_banks(log_probs: Tensor, banks: Tensor, count: int) -> Tensor:
    """Chooses candidates so that every bank gets its share of the beam.

    The best candidates of all banks come first, then the second best of all banks, and so on
    (the vectorised allocation of Hu et al. 2019); among these the higher bank first. Of equally
    probable candidates the first is the better one. Impossible ones come last.

    Args:
        log_probs: float32 [B, C], -inf where impossible.
        banks: int32 [B, C], 0 or more.
        count: how many to choose, at most C.

    Returns:
        int32 [B, count], indices of the chosen candidates.
    """
    banks = tf.where(log_probs > IMPOSSIBLE, banks, -1)
    order = tf.argsort(log_probs, direction="DESCENDING", stable=True)
    by_bank = tf.argsort(tf.gather(banks, order, batch_dims=1), stable=True)
    order = tf.gather(order, by_bank, batch_dims=1)  # by bank, and the best first in each
    banks = tf.gather(banks, order, batch_dims=1)
    # Ranks beyond `count` are never chosen; the clip keeps the product below within 32 bits.
    rank = tf.range(tf.shape(banks)[1]) - tf.searchsorted(banks, banks, side="left")
    num_banks = tf.reduce_max(banks, axis=-1, keepdims=True) + 1
    merit = banks - tf.minimum(rank, count) * num_banks  # a rank weighs more than any bank
    merit = tf.where(banks >= 0, merit, tf.int32.min)
    return tf.gather(order, tf.math.top_k(merit, count).indices, batch_dims=1)
