"""Sampling: each next symbol drawn from the model's distribution.

Shapes: B sentences, N samples a sentence, V vocabulary.
"""

from typing import Any

import tensorflow as tf

from keras_transformer.decoding import DecodingState, StepFunction, Tensor
from keras_transformer.errors import InputError
from keras_transformer.search.draws import draw
from keras_transformer.search.hypotheses import Hypotheses
from keras_transformer.search.rules import FORBIDDEN, apply_temperature, keep_most_probable
from keras_transformer.search.straight import search_straight
from keras_transformer.search.task import Request, make_task


def sample(
    step: StepFunction,
    state: DecodingState,
    *,
    start_ids: Tensor,
    max_lengths: Tensor,
    num_translations: int = 1,
    temperature: Tensor = 1.0,
    top_k: Tensor = 0,
    top_p: Tensor = 1.0,
    seed: Tensor = 0,
    length_penalty: Tensor = 0.0,
    **options: Any,
) -> Hypotheses:
    """Returns translations that are drawn symbol by symbol, those of the best scores first.

    The scores and log-probabilities are those of the model, whatever temperature and filters make
    of its distribution. A sentence gets the same samples in any batch.

    Args:
        step, state, start_ids, max_lengths: as of `beam_search`.
        num_translations: samples of each sentence, N, that the state was made for.
        temperature: what logits are divided by, a number or float [B].
        top_k: symbols that are drawn from; 0 means all; a number or int [B].
        top_p: probability of the symbols that are drawn from, a number or float [B].
        seed: a number or int [B]. With one number the samples of different sentences go together;
            `sentence_seeds` gives each a seed of its own.
        length_penalty: as of `beam_search`, but 0 unless it is given.
        **options: the others of `beam_search`.

    Raises:
        InputError: `num_translations` is below 1, or END = PAD.
    """
    if num_translations < 1:
        raise InputError(f"num_translations must be at least 1, got {num_translations}")
    task, request, memory = make_task(
        step,
        state,
        num_translations,
        start_ids=start_ids,
        max_lengths=max_lengths,
        length_penalty=length_penalty,
        own=dict(
            temperature=tf.cast(temperature, tf.float32),
            top_k=tf.cast(top_k, tf.int32),
            top_p=tf.cast(top_p, tf.float32),
            seed=tf.cast(seed, tf.int64),
        ),
        **options,
    )

    def drawn(
        logits: Tensor, allowed: Tensor, time: Tensor, request: Request
    ) -> tuple[Tensor, Tensor]:
        ids = tf.range(logits.shape[-1])  # [V]
        barred = (ids == task.pad_id) | (ids == request.barred_ids[:, None, None])  # [B, 1, V]
        if "min_lengths" in request.wishes:
            is_early = (time < request.wishes["min_lengths"])[:, None, None]
            barred |= is_early & (ids == task.end_id)
        allowed = tf.where(barred, FORBIDDEN, allowed)
        must_end = (time >= request.max_lengths)[:, None, None]  # [B, 1, 1]
        only_end = tf.where(ids == task.end_id, logits, FORBIDDEN)
        allowed = tf.where(must_end, only_end, allowed)
        wanted = request.options
        allowed = apply_temperature(allowed, wanted["temperature"])
        allowed = keep_most_probable(allowed, wanted["top_k"], wanted["top_p"])
        ids = draw(allowed, wanted["seed"], time)  # [B, N]
        log_probs = tf.gather(logits, ids, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)
        # Where nothing is allowed, what was drawn is impossible.
        is_possible = tf.gather(allowed, ids, batch_dims=2) > FORBIDDEN
        return ids, tf.where(is_possible, log_probs, FORBIDDEN)

    return search_straight(task, request, memory, drawn)
