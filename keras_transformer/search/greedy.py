"""Greedy search: the most probable symbol at every step.

Shapes: B sentences.
"""

from typing import Any

import tensorflow as tf

from keras_transformer.decoding import DecodingState, StepFunction, Tensor
from keras_transformer.search import scoring
from keras_transformer.search.hypotheses import Hypotheses
from keras_transformer.search.straight import search_straight
from keras_transformer.search.task import Request, make_task


def greedy_search(
    step: StepFunction,
    state: DecodingState,
    *,
    start_ids: Tensor,
    max_lengths: Tensor,
    length_penalty: Tensor = 0.0,
    **options: Any,
) -> Hypotheses:
    """Returns one translation of each sentence: the most probable symbol at every step.

    A translation ends at its first END, or takes END once it has `max_lengths` symbols.
    Arguments, result and errors are those of `beam_search` with `beam_size` 1, but for
    `length_penalty`, which is 0 unless it is given.
    """
    task, request, memory = make_task(
        step,
        state,
        1,
        start_ids=start_ids,
        max_lengths=max_lengths,
        length_penalty=length_penalty,
        **options,
    )

    def most_probable(
        logits: Tensor, allowed: Tensor, time: Tensor, request: Request
    ) -> tuple[Tensor, Tensor]:
        log_probs, ids = scoring.next_symbols(logits, allowed, 1, time, request, task)  # [B, 1, K]
        best = tf.argmax(log_probs, axis=-1, output_type=tf.int32)  # [B, 1]
        return tf.gather(ids, best, batch_dims=2), tf.reduce_max(log_probs, axis=-1)

    return search_straight(task, request, memory, most_probable)
