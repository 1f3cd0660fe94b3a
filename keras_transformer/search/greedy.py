"""Greedy search: the most probable symbol at every step.

Shapes: B sentences, L the longest length of a result.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.config import END_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor
from keras_transformer.search import scoring
from keras_transformer.search.hypotheses import Finished, Hypotheses, make_hypotheses
from keras_transformer.search.loop import repeat
from keras_transformer.search.task import Memory, Request, Task, extend, make_task, read


class _Greedy(NamedTuple):
    log_probs: Tensor  # float32 [B, 1]
    lengths: Tensor  # int32 [B, 1]: END included; 0 while the translation is open
    memory: Memory


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
    task, request, memory = make_task(
        step,
        state,
        1,
        start_ids=start_ids,
        max_lengths=max_lengths,
        length_penalty=length_penalty,
        longest=longest,
        end_id=end_id,
        pad_id=pad_id,
    )
    log_probs, symbols, lengths = repeat(
        lambda time, request, greedy: _advance(time, request, greedy, task),
        request,
        _Greedy(tf.zeros_like(memory.ids, tf.float32), tf.zeros_like(memory.ids), memory),
        is_open=lambda greedy: greedy.lengths[:, 0] == 0,
        result_of=lambda greedy: (greedy.log_probs, greedy.memory.symbols, greedy.lengths),
        shrinks=not task.is_static,
    )
    scores = log_probs / scoring.length_penalty(lengths, request.alpha[:, None])
    return make_hypotheses(Finished(scores, symbols, lengths), request, task)


def _advance(time: Tensor, request: Request, greedy: _Greedy, task: Task) -> _Greedy:
    """Appends the best symbol to every open translation; finished ones stay as they are."""
    logits, memory = read(task, request, greedy.memory, time)
    log_probs, ids = scoring.next_symbols(logits, 1, time, request, task)  # [B, 1, K]
    best = tf.argmax(log_probs, axis=-1, output_type=tf.int32)  # [B, 1]
    ids = tf.gather(ids, best, batch_dims=2)
    is_open = greedy.lengths == 0
    return _Greedy(
        log_probs=greedy.log_probs + tf.where(is_open, tf.reduce_max(log_probs, axis=-1), 0.0),
        lengths=tf.where(is_open & (ids == task.end_id), time + 1, greedy.lengths),
        memory=extend(task, memory, ids, None, time),
    )
