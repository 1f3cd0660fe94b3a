"""Which tokens may come next, and how probable they are.

Shapes: B sentences, W hypotheses a sentence, V vocabulary, K candidates, P tokens to try.
"""

import functools
import operator
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.constraints import OpenHypotheses, ProgressConstraint
from keras_transformer.search.loop_state import LoopState, SearchSpec, SentenceInputs
from keras_transformer.search.scoring import IMPOSSIBLE
from keras_transformer.search.top_k import top_k


class ConstrainedLogits(NamedTuple):
    """Logits of the next tokens, and what constraints say of them.

    Attributes:
        logits: float32 [B, W, V], of the distribution that translations are scored with.
        allowed: the same with -inf for what is forbidden; `logits` itself where nothing can be.
        forbidden_ids: each int32, broadcasting with [B, W, 1]: one more token that is forbidden.
        extra_ids: int32 [B, W, P], tokens to try however improbable; PAD stands for none.
    """

    logits: Tensor
    allowed: Tensor
    forbidden_ids: tuple[Tensor, ...] = ()
    extra_ids: Tensor | None = None

    def is_forbidden(self, ids: Tensor) -> Tensor:
        """Returns whether ids are among `forbidden_ids`, bool that broadcasts with [B, W, any]."""
        return functools.reduce(operator.or_, [tf.equal(ids, i) for i in self.forbidden_ids])


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
    forbidden = [tf.constant(spec.pad_id), inputs.forbidden_ids[:, None, None]]
    extra = []
    for constraint, view in pairs:
        view = view._replace(logits=logits)
        allowed = constraint.restrict(allowed, view)
        ids = constraint.forbidden_ids(view)
        if ids is not None:
            forbidden += [ids] if ids.shape[2] == 1 else tf.split(ids, ids.shape[2], axis=2)
        if isinstance(constraint, ProgressConstraint):
            extra.append(constraint.next_ids(view))
    return ConstrainedLogits(
        logits, allowed, tuple(forbidden), tf.concat(extra, axis=-1) if extra else None
    )


def best_next_tokens(
    constrained: ConstrainedLogits,
    count: int,
    time: Tensor,
    inputs: SentenceInputs,
    spec: SearchSpec,
) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and ids of the most probable next tokens of each hypothesis.

    Probabilities are over the whole vocabulary, as in training: PAD, BOS and what constraints
    forbid are left out afterwards, and the others do not get their share.

    The log-softmax is taken of the candidates only. That saves writing [B, W, V] numbers and
    chooses the same tokens, since it subtracts the same number from all logits of a hypothesis.

    Args:
        constrained: the logits.
        count: how many tokens of each hypothesis.
        time: int32 [], tokens that the hypotheses have. At its maximum length a hypothesis has EOS
            as the only candidate.
        inputs, spec: of the search.

    Returns:
        float32 log-probabilities and int32 ids, both [B, W, K]. The most probable come first, the
        lower id first among equals; then `extra_ids`; the last entry is EOS where a hypothesis
        must end. Candidates that are not allowed have log-probability -inf.
    """
    logits, allowed, forbidden_ids, extra_ids = constrained
    # Forbidden tokens may be among the best ones.
    num_candidates = count + len(forbidden_ids)
    width = min(num_candidates, logits.shape[-1])
    top_logits, ids = top_k(allowed, width)  # [B, W, width]
    # Differences from the largest logit stay exact where logits are huge. It is not the slice
    # [..., :1] of the top: XLA would then sort all V logits instead of using its quick top-k.
    largest = tf.reduce_max(top_logits if allowed is logits else logits, axis=-1, keepdims=True)
    log_sum = tf.math.log(tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True))

    if extra_ids is not None:
        is_new = tf.reduce_all(extra_ids[..., None] != ids[:, :, None], axis=-1)  # [B, W, P]
        is_new &= ~_occurred_before(extra_ids)
        extra_ids = tf.where(is_new, extra_ids, spec.pad_id)
        top_logits = tf.concat([top_logits, tf.gather(allowed, extra_ids, batch_dims=2)], axis=-1)
        ids = tf.concat([ids, extra_ids], axis=-1)
    must_end = (time >= inputs.max_lengths)[:, None, None]  # [B, 1, 1]
    is_forbidden = must_end | constrained.is_forbidden(ids)
    eos_logits = logits[..., spec.eos_id : spec.eos_id + 1]  # [B, W, 1]
    parts = [
        tf.where(is_forbidden, IMPOSSIBLE, top_logits),
        tf.where(must_end, eos_logits, IMPOSSIBLE),
    ]
    log_probs = (tf.concat(parts, axis=-1) - largest) - log_sum
    missing = num_candidates - width  # of a vocabulary smaller than the beam
    if missing:
        padding = [[0, 0], [0, 0], [missing, 0]]
        log_probs = tf.pad(log_probs, padding, constant_values=IMPOSSIBLE)
    return log_probs, tf.pad(ids, [[0, 0], [0, 0], [missing, 1]], constant_values=spec.eos_id)


def _occurred_before(ids: Tensor) -> Tensor:
    """Returns whether an id also stands further to the left, bool of the shape of ids [B, W, P]."""
    index = tf.range(tf.shape(ids)[-1])
    is_same = ids[..., None] == ids[:, :, None]  # [B, W, P, P]
    return tf.reduce_any(is_same & (index < index[:, None]), axis=-1)
