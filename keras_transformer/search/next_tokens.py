"""Which tokens may come next, and how probable they are.

Shapes: B sentences, W hypotheses a sentence, V vocabulary, K candidates, P tokens to try.
"""

import functools
import operator
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.candidates import Candidates
from keras_transformer.search.constraints import OpenHypotheses, ProgressConstraint
from keras_transformer.search.loop_state import LoopState, SearchSpec, SentenceInputs
from keras_transformer.search.scoring import IMPOSSIBLE
from keras_transformer.search.top_k import Groups, in_groups, top_k_of_groups

# float32 holds the exponentials of logits below it and their sum over any vocabulary. Far below
# what overflows, so that the difference of two logits loses no digit that matters.
_SMALL = 64.0


class ConstrainedLogits(NamedTuple):
    """Logits of the next tokens, and what constraints say of them.

    Attributes:
        logits: float32 [B, W, V], of the distribution that translations are scored with.
        allowed: the same with -inf for what is forbidden; `logits` itself where nothing can be.
        forbidden_ids: each int32 [B or 1, W or 1, 1]: one more token that is forbidden.
        extra_ids: int32 [B, W, P], tokens to try however improbable; PAD stands for none.
    """

    logits: Tensor
    allowed: Tensor
    forbidden_ids: tuple[Tensor, ...] = ()
    extra_ids: Tensor | None = None

    def is_forbidden(self, ids: Tensor, parents: Tensor | None = None) -> Tensor:
        """Returns whether ids are among `forbidden_ids`, bool that broadcasts with theirs.

        Args:
            ids: int32 [B or 1, W or 1, any], after each hypothesis; with `parents` [B, any, any].
            parents: int32, the hypotheses that the ids continue, of the same shape.
        """

        def of_parents(forbidden: Tensor) -> Tensor:
            if parents is None or forbidden.shape[1] == 1:
                return forbidden
            return tf.gather(forbidden[..., 0], parents, batch_dims=1)

        return functools.reduce(
            operator.or_, [tf.equal(ids, of_parents(each)) for each in self.forbidden_ids]
        )


def constrain_logits(
    logits: Tensor, time: Tensor, spec: SearchSpec, inputs: SentenceInputs, loop_state: LoopState
) -> ConstrainedLogits:
    """Asks all constraints about logits [B, W, V] of the tokens after `time` others."""
    views = [
        OpenHypotheses(
            its_inputs, state, loop_state.tokens, time, inputs.max_lengths, spec.eos_id, logits
        )
        for its_inputs, state in zip(inputs.constraints, loop_state.constraints, strict=True)
    ]
    pairs = list(zip(spec.constraints, views, strict=True))
    for constraint, view in pairs:
        logits = constraint.adjust(logits, view)
    allowed = logits
    forbidden = [tf.constant([[[spec.pad_id]]]), inputs.forbidden_ids[:, None, None]]
    extra = []
    for constraint, view in pairs:
        view = view._replace(logits=logits)
        allowed = constraint.restrict(allowed, view)
        ids = constraint.forbidden_ids(view)
        if ids is not None:
            forbidden += tf.split(ids, ids.shape[2], axis=2)
        if isinstance(constraint, ProgressConstraint):
            extra.append(constraint.next_ids(view))
    return ConstrainedLogits(
        logits, allowed, tuple(forbidden), tf.concat(extra, axis=-1) if extra else None
    )


def best_continuations(
    constrained: ConstrainedLogits,
    log_probs: Tensor,
    num_sets: int,
    count: int,
    time: Tensor,
    inputs: SentenceInputs,
    spec: SearchSpec,
) -> Candidates:
    """Returns the most probable continuations of each set of hypotheses.

    Probabilities are over all tokens that there are logits of, as in training: PAD, BOS and what
    constraints forbid are left out afterwards, and the others do not get their share.

    Args:
        constrained: the logits.
        log_probs: float32 [B, W], of the hypotheses.
        num_sets: sets that the hypotheses of a sentence are cut into, W / `num_sets` after one
            another in each; W where there are `extra_ids`.
        count: how many continuations of each set.
        time: int32 [], tokens that the hypotheses have. At its maximum length a hypothesis has EOS
            as the only continuation.
        inputs, spec: of the search.

    Returns:
        Candidates, each part [B, `num_sets`, K]: the most probable come first, among equals those
        of the lower hypothesis, then of the lower id; then `extra_ids`; at last EOS of each
        hypothesis, where it must end. What is not allowed has log-probability -inf.
    """
    allowed, extra_ids = constrained.allowed, constrained.extra_ids
    num_hypotheses, vocabulary_size = allowed.shape[1:]
    size, subset = num_hypotheses // num_sets, spec.subset
    # Forbidden tokens may be among the best ones.
    num_candidates = count + size * len(constrained.forbidden_ids)
    width = min(num_candidates, size * (vocabulary_size or num_candidates))
    groups, shift, log_sum = _normalize(constrained, in_groups(allowed, width, size))
    offsets = log_probs - log_sum  # [B, W]
    found = Candidates(*top_k_of_groups(groups, width, offsets, num_sets))
    if subset is not None:
        places = tf.minimum(found.ids, tf.size(subset.ids) - 1)  # of none of them, at -inf
        found = found._replace(ids=tf.gather(subset.ids, places))
    numbers = tf.reshape(tf.range(num_hypotheses), [num_sets, size])
    if extra_ids is not None:
        is_new = tf.reduce_all(extra_ids[..., None] != found.ids[:, :, None], axis=-1)  # [B, W, P]
        extra_ids = tf.where(is_new & ~_occurred_before(extra_ids), extra_ids, spec.pad_id)
        logits = tf.gather(allowed, extra_ids, batch_dims=2) - shift[..., None]
        extra = (logits + offsets[..., None], numbers + tf.zeros_like(extra_ids), extra_ids)
        found = _join(found, Candidates(*extra))
    must_end = (time >= inputs.max_lengths)[:, None, None]  # [B, 1, 1]
    is_forbidden = must_end | constrained.is_forbidden(found.ids, found.parents)
    found = found._replace(log_probs=tf.where(is_forbidden, IMPOSSIBLE, found.log_probs))
    eos_place = spec.eos_id if subset is None else subset.places[spec.eos_id]
    end = tf.reshape(constrained.logits[..., eos_place] - shift + offsets, [-1, num_sets, size])
    eos_ids = tf.fill(tf.shape(end), spec.eos_id)
    end = tf.where(must_end, end, IMPOSSIBLE)
    found = _join(found, Candidates(end, numbers + tf.zeros_like(eos_ids), eos_ids))
    padding = [[0, 0], [0, 0], [0, num_candidates - width]]  # of a vocabulary smaller than the beam
    padded = [tf.pad(part, padding) for part in found[1:]]
    return Candidates(tf.pad(found.log_probs, padding, constant_values=IMPOSSIBLE), *padded)


def _join(*parts: Candidates) -> Candidates:
    return Candidates(*(tf.concat(fields, axis=-1) for fields in zip(*parts, strict=True)))


def _normalize(constrained: ConstrainedLogits, groups: Groups) -> tuple[Groups, Tensor, Tensor]:
    """Returns the groups of allowed logits, shifted by a number per hypothesis, and this shift.

    It is 0 unless logits are large, since subtracting it reads and writes all of them. The third
    result is the log-sum-exp of all shifted logits; it and the shift are [B, W].
    """
    logits, allowed, *_ = constrained
    largest = tf.reduce_max(groups.maxima if allowed is logits else logits, axis=2)  # [B, W]
    is_small = tf.reduce_all(tf.abs(largest) < _SMALL)
    shift = tf.where(is_small, 0.0, largest)

    def shifted(values: Tensor) -> Tensor:
        less = tf.reshape(shift, [-1, shift.shape[1], *[1] * (values.shape.rank - 2)])
        return tf.cond(is_small, lambda: values, lambda: values - less)

    shifted_groups = Groups(shifted(groups.values), groups.maxima - shift[..., None])
    if allowed is logits:
        total = tf.reduce_sum(tf.exp(shifted_groups.values), axis=(2, 3))
    else:
        total = tf.reduce_sum(tf.exp(shifted(logits)), axis=2)
    return shifted_groups, shift, tf.math.log(total)


def _occurred_before(ids: Tensor) -> Tensor:
    """Returns whether an id also stands further to the left, bool of the shape of ids [B, W, P]."""
    index = tf.range(tf.shape(ids)[-1])
    is_same = ids[..., None] == ids[:, :, None]  # [B, W, P, P]
    return tf.reduce_any(is_same & (index < index[:, None]), axis=-1)
