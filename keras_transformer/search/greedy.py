"""Greedy search: the most probable symbol at every step.

Shapes: B sentences, L the longest length of a result.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import END_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor
from keras_transformer.search import scoring
from keras_transformer.search.hypotheses import Hypotheses, make_hypotheses, new_history
from keras_transformer.search.loop import repeat
from keras_transformer.search.task import Task, make_task


class _Greedy(NamedTuple):
    time: Tensor  # int32 []: symbols chosen so far
    ids: Tensor  # int32 [B, 1]: the last of them
    log_probs: Tensor  # float32 [B, 1]
    lengths: Tensor  # int32 [B, 1]: END included; 0 while the translation is open
    history: tf.TensorArray  # at each step int32 [B, 1]: the symbol
    cache: Any  # leaves [B, 1, ...]


def greedy_search(
    step: StepFunction,
    state: DecodingState,
    *,
    start_ids: Tensor,
    max_lengths: Tensor,
    length_penalty: Tensor = 0.0,
    longest: int | None = None,
    end_id: int = END_ID,
    pad_id: int = PAD_ID,
) -> Hypotheses:
    """Returns one translation of each sentence: the most probable symbol at every step.

    A translation ends at its first END, or takes END once it has `max_lengths` symbols.
    Arguments, result and errors are those of `beam_search` with `beam_size` 1.
    """
    task = make_task(
        state.context,
        start_ids=start_ids,
        max_lengths=max_lengths,
        length_penalty=length_penalty,
        longest=longest,
        end_id=end_id,
        pad_id=pad_id,
    )
    ids = task.start_ids[:, None]  # [B, 1]
    end = repeat(
        lambda greedy: _advance(step, greedy, task),
        _Greedy(
            time=tf.constant(0),
            ids=ids,
            log_probs=tf.zeros_like(ids, tf.float32),
            lengths=tf.zeros_like(ids),
            history=new_history(task, 1),
            cache=state.cache,
        ),
        goes_on=lambda greedy: tf.reduce_any(greedy.lengths == 0),
    )
    scores = end.log_probs / scoring.length_penalty(end.lengths, task.alpha)
    return make_hypotheses(end.history, scores, end.lengths, task)


def _advance(step: StepFunction, greedy: _Greedy, task: Task) -> _Greedy:
    """Appends the best symbol to every open translation; finished ones stay as they are."""
    logits, (_, cache) = step(greedy.ids, DecodingState(task.context, greedy.cache))
    logits.set_shape(greedy.ids.shape.concatenate([None]))
    log_probs, ids = scoring.next_symbols(logits, 1, greedy.time, task)  # [B, 1, K]
    best = tf.argmax(log_probs, axis=-1, output_type=tf.int32)  # [B, 1]
    ids = tf.gather(ids, best, batch_dims=2)
    is_open = greedy.lengths == 0
    time = greedy.time + 1
    return _Greedy(
        time=time,
        ids=ids,
        log_probs=greedy.log_probs + tf.where(is_open, tf.reduce_max(log_probs, axis=-1), 0.0),
        lengths=tf.where(is_open & (ids == task.end_id), time, greedy.lengths),
        history=greedy.history.write(greedy.time, ids),
        cache=cache,
    )
