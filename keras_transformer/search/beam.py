"""Beam search with a length penalty (Vaswani et al. 2017, section 6.1).

Shapes: B sentences, W beams, R beams that are read (1 at the first step, then W), K candidates of
a beam, N hypotheses a sentence that are returned, L their longest length.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.config import END_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor
from keras_transformer.errors import InputError
from keras_transformer.search import scoring
from keras_transformer.search.greedy import greedy_search
from keras_transformer.search.hypotheses import (
    Finished,
    Hypotheses,
    make_hypotheses,
    none_finished,
)
from keras_transformer.search.loop import repeat
from keras_transformer.search.scoring import IMPOSSIBLE
from keras_transformer.search.task import Memory, Request, Task, extend, make_task, read


class _Beams(NamedTuple):
    """Open hypotheses ("beams") and finished ones. Those that do not exist are at -inf."""

    log_probs: Tensor  # float32 [B, W], best first
    memory: Memory
    best: Finished  # N, best first


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
    task, request, memory = make_task(step, state, beam_size, **arguments)
    # One empty hypothesis; the others do not exist yet.
    first = tf.where(tf.range(beam_size) == 0, 0.0, IMPOSSIBLE)  # [W]
    beams = _Beams(
        log_probs=tf.broadcast_to(first, tf.shape(memory.ids)),
        memory=memory,
        best=none_finished(memory.symbols, num_hypotheses),
    )
    best = repeat(
        lambda time, request, beams: _advance(time, request, beams, task),
        request,
        beams,
        is_open=lambda beams: beams.log_probs[:, 0] > IMPOSSIBLE,
        result_of=lambda beams: beams.best,
        shrinks=not task.is_static,
    )
    return make_hypotheses(best, request, task)


def _advance(time: Tensor, request: Request, beams: _Beams, task: Task) -> _Beams:
    """Reads the last symbol of every beam and replaces the beams with their best continuations."""
    logits, memory = read(task, request, beams.memory, time)
    beam_size = task.num_hypotheses
    num_candidates = 2 * beam_size
    gains, ids = scoring.next_symbols(logits, num_candidates, time, request, task)  # [B, W, K]
    width = gains.shape[1] * gains.shape[2]
    log_probs = tf.reshape(gains + beams.log_probs[..., None], [-1, width])
    log_probs, index = tf.math.top_k(log_probs, num_candidates)  # [B, 2W]
    parents = index // gains.shape[2]
    ids = tf.gather(tf.reshape(ids, [-1, width]), index, batch_dims=1)  # [B, 2W]

    has_ended = ids == task.end_id
    ended = tf.where(has_ended, log_probs, IMPOSSIBLE)
    best = _finish(time, request, beams, ended, parents)
    # No more than one continuation of a beam ends: at least W do not.
    log_probs, index = tf.math.top_k(tf.where(has_ended, IMPOSSIBLE, log_probs), beam_size)
    parents = tf.gather(parents, index, batch_dims=1)  # [B, W]
    ids = tf.gather(ids, index, batch_dims=1)
    # What is open may still win: a log-probability, at most 0, only falls.
    is_open = log_probs[:, :1] / _largest_penalty(request) > best.scores[:, -1:]  # [B, 1]
    return _Beams(
        # Without an open hypothesis a sentence finishes no more, and so stays as it is.
        log_probs=tf.where(is_open, log_probs, IMPOSSIBLE),
        memory=extend(task, memory, ids, parents, time),
        best=best,
    )


def _finish(
    time: Tensor, request: Request, beams: _Beams, log_probs: Tensor, parents: Tensor
) -> Finished:
    """Returns the best of old and new finished hypotheses.

    Args:
        time: int32 [], symbols of the new ones before END.
        request: what is searched for.
        beams: holds the old ones.
        log_probs: float32 [B, 2W] of the new ones, -inf for candidates that did not end.
        parents: int32 [B, 2W], the beams that their END continues.
    """
    scores = log_probs / scoring.length_penalty(time + 1, request.alpha[:, None])
    old = beams.best
    count = old.scores.shape[1]
    # The old come first among equals.
    scores, index = tf.math.top_k(tf.concat([old.scores, scores], axis=1), count)  # [B, N]
    symbols = tf.gather(beams.memory.symbols, parents, batch_dims=1)  # [B, 2W, L]
    symbols = tf.concat([old.symbols, symbols], axis=1)
    lengths = tf.concat([old.lengths, tf.fill(tf.shape(parents), time + 1)], axis=1)
    return Finished(
        scores,
        tf.gather(symbols, index, batch_dims=1),
        tf.gather(lengths, index, batch_dims=1),
    )


def _largest_penalty(request: Request) -> Tensor:
    """Returns the largest length penalty that a sentence can meet, [B, 1].

    That is the longest translation's where alpha is positive, and the shortest's, which is 1,
    where alpha is negative.
    """
    longest = scoring.length_penalty(request.max_lengths + 1, request.alpha)
    return tf.maximum(longest, 1.0)[:, None]
