"""Beam search with a length penalty (Vaswani et al. 2017, section 6.1).

Shapes: B sentences, W beams, R beams that are read (1 at the first step, then W), K candidates of
a beam, N hypotheses a sentence that are returned, L their longest length.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import END_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor
from keras_transformer.errors import InputError
from keras_transformer.search import scoring
from keras_transformer.search.greedy import greedy_search
from keras_transformer.search.hypotheses import (
    Hypotheses,
    make_hypotheses,
    new_history,
    trace_back,
)
from keras_transformer.search.loop import repeat
from keras_transformer.search.scoring import IMPOSSIBLE
from keras_transformer.search.task import Task, make_task


class _Beams(NamedTuple):
    """Open hypotheses ("beams") and finished ones. Those that do not exist are at -inf."""

    time: Tensor  # int32 []: symbols that every beam has
    ids: Tensor  # int32 [B, R]: the last of them
    log_probs: Tensor  # float32 [B, R], best first
    cache: Any  # leaves [B, R, ...]
    history: tf.TensorArray  # at each step int32 [B, W, 2]: parent beam and symbol of each beam
    scores: Tensor  # float32 [B, N]: the best finished hypotheses, best first
    endings: Tensor  # int32 [B, N, 2]: their length, END included, and the beam that END continues


def beam_search(
    step: StepFunction,
    state: DecodingState,
    *,
    start_ids: Tensor,
    max_lengths: Tensor,
    beam_size: int = 4,
    length_penalty: Tensor = 0.6,
    num_hypotheses: int = 1,
    longest: int | None = None,
    end_id: int = END_ID,
    pad_id: int = PAD_ID,
) -> Hypotheses:
    """Returns the best translations that a beam of `beam_size` hypotheses finds.

    A hypothesis Y is worth log P(Y) / ((5 + |Y|) / 6) ** alpha (Wu et al. 2016, eq. 14), where
    |Y| counts END. At each step every open hypothesis of a sentence is continued, and the
    2 * `beam_size` most probable continuations are looked at: those with END are finished, and
    the best `beam_size` of the others stay open. A hypothesis with `max_lengths` symbols can only
    take END, at END's true probability, so every result is complete. A sentence is done when no
    open hypothesis can come to beat its N best finished ones; from then on it does not change,
    so a sentence gets the same translation in any batch.

    Probabilities are over the whole vocabulary, though PAD and the start symbol are never
    generated. All is counted in float32. Among equals the lower beam and then the lower id wins.
    With `beam_size` 1 this is `greedy_search`, which ends at the first END.

    Args:
        step: gives logits [B, R, V] of the symbol after ids [B, R], and the next state. R is 1
            in the first call and `beam_size` in all others.
        state: what the model knows before START, cache leaves [B, 1, ...]. From step to step
            the leaves may grow along any dimension after the second.
        start_ids: int [B], the symbol that each translation starts with; not in the result.
        max_lengths: int [B], symbols a translation may have before END; 0 or more.
        beam_size: hypotheses that stay open, W.
        length_penalty: alpha, a number or float [B].
        num_hypotheses: N, at most `beam_size`.
        longest: a number that no max length exceeds (larger ones are cut to it), where shapes
            must be known before the graph runs, as for XLA. It makes L = `longest` + 1; else L is
            the largest of `max_lengths` + 1.
        end_id: the symbol that completes a translation.
        pad_id: the symbol that fills up after END.

    Raises:
        InputError: `beam_size` below 1, `num_hypotheses` not in 1 to `beam_size`, or END = PAD.
    """
    if not 1 <= num_hypotheses <= beam_size:
        raise InputError(
            f"num_hypotheses must be from 1 to beam_size, got {num_hypotheses} with beam_size "
            f"{beam_size}; raise beam_size or ask for fewer"
        )
    arguments = dict(
        start_ids=start_ids,
        max_lengths=max_lengths,
        length_penalty=length_penalty,
        longest=longest,
        end_id=end_id,
        pad_id=pad_id,
    )
    if beam_size == 1:
        return greedy_search(step, state, **arguments)
    task = make_task(state.context, **arguments)
    largest_penalty = _largest_penalty(task)
    end = repeat(
        lambda beams: _advance(step, beams, beam_size, largest_penalty, task),
        _start(state.cache, beam_size, num_hypotheses, task),
        goes_on=lambda beams: tf.reduce_any(beams.log_probs[:, 0] > IMPOSSIBLE),
    )
    lengths, parents = tf.unstack(end.endings, axis=-1)
    symbols = trace_back(end.history, lengths, parents, task)
    return make_hypotheses(symbols, end.scores, lengths, task)


def _start(cache: Any, beam_size: int, num_hypotheses: int, task: Task) -> _Beams:
    """Returns one empty hypothesis for each sentence, and none finished."""
    ids = task.start_ids[:, None]  # [B, 1]
    batch_size = tf.shape(ids)[0]
    return _Beams(
        time=tf.constant(0),
        ids=ids,
        log_probs=tf.zeros_like(ids, tf.float32),
        cache=cache,
        history=new_history(task, beam_size, 2),
        scores=tf.fill([batch_size, num_hypotheses], IMPOSSIBLE),
        endings=tf.zeros([batch_size, num_hypotheses, 2], tf.int32),
    )


def _advance(
    step: StepFunction, beams: _Beams, beam_size: int, largest_penalty: Tensor, task: Task
) -> _Beams:
    """Reads the last symbol of every beam and replaces the beams with their best continuations."""
    logits, (_, cache) = step(beams.ids, DecodingState(task.context, beams.cache))
    logits.set_shape(beams.ids.shape.concatenate([None]))
    num_candidates = 2 * beam_size
    gains, ids = scoring.next_symbols(logits, num_candidates, beams.time, task)  # [B, R, K]
    width = gains.shape[1] * gains.shape[2]
    log_probs = tf.reshape(gains + beams.log_probs[..., None], [-1, width])
    log_probs, index = tf.math.top_k(log_probs, num_candidates)  # [B, 2W]
    parents = index // gains.shape[2]
    ids = tf.gather(tf.reshape(ids, [-1, width]), index, batch_dims=1)  # [B, 2W]

    has_ended = ids == task.end_id
    scores, endings = _finish(beams, tf.where(has_ended, log_probs, IMPOSSIBLE), parents, task)
    # No more than one continuation of a beam ends: at least W do not.
    log_probs, index = tf.math.top_k(tf.where(has_ended, IMPOSSIBLE, log_probs), beam_size)
    entries = tf.gather(tf.stack([parents, ids], axis=-1), index, batch_dims=1)  # [B, W, 2]
    parents, ids = tf.unstack(entries, axis=-1)
    # What is open may still win: a log-probability, at most 0, only falls.
    is_open = log_probs[:, :1] / largest_penalty > scores[:, -1:]  # [B, 1]
    return _Beams(
        time=beams.time + 1,
        ids=ids,
        # Without an open hypothesis a sentence finishes no more, and so stays as it is.
        log_probs=tf.where(is_open, log_probs, IMPOSSIBLE),
        cache=tf.nest.map_structure(lambda leaf: tf.gather(leaf, parents, batch_dims=1), cache),
        history=beams.history.write(beams.time, entries),
        scores=scores,
        endings=endings,
    )


def _finish(beams: _Beams, log_probs: Tensor, parents: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """Returns scores [B, N] and endings [B, N, 2] of the best of old and new finished hypotheses.

    Args:
        beams: holds the old ones.
        log_probs: float32 [B, 2W] of the new ones, -inf for candidates that did not end.
        parents: int32 [B, 2W], the beams that their END continues.
        task: what is searched for.
    """
    length = beams.time + 1
    scores = log_probs / scoring.length_penalty(length, task.alpha)
    endings = tf.stack([tf.zeros_like(parents) + length, parents], axis=-1)
    scores = tf.concat([beams.scores, scores], axis=1)  # [B, N + 2W]
    endings = tf.concat([beams.endings, endings], axis=1)
    scores, index = tf.math.top_k(scores, beams.scores.shape[1])  # the old first among equals
    return scores, tf.gather(endings, index, batch_dims=1)


def _largest_penalty(task: Task) -> Tensor:
    """Returns the largest length penalty that a sentence can meet, [B, 1].

    That is the longest translation's where alpha is positive, and the shortest's, which is 1,
    where alpha is negative.
    """
    return tf.maximum(scoring.length_penalty(task.max_lengths[:, None] + 1, task.alpha), 1.0)
