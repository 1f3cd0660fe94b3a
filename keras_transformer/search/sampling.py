"""Sampling: each next token drawn from the model's distribution.

Shapes: B sentences, N samples a sentence, V vocabulary.
"""

from typing import Any

import tensorflow as tf

from keras_transformer.decoding import DecodingState, StepFunction, Tensor
from keras_transformer.errors import InputError
from keras_transformer.search.hypotheses import Hypotheses
from keras_transformer.search.logits_processors import (
    FORBIDDEN,
    apply_temperature,
    keep_most_probable,
)
from keras_transformer.search.loop_state import SentenceInputs, prepare_search
from keras_transformer.search.random_numbers import draw
from keras_transformer.search.single_path import search_single_path


def sample(
    step: StepFunction,
    state: DecodingState,
    *,
    bos_ids: Tensor,
    max_lengths: Tensor,
    num_translations: int = 1,
    temperature: Tensor = 1.0,
    top_k: Tensor = 0,
    top_p: Tensor = 1.0,
    seed: Tensor = 0,
    length_penalty: Tensor = 0.0,
    **options: Any,
) -> Hypotheses:
    """Returns translations that are drawn token by token, those of the best scores first.

    The scores and log-probabilities are those of the model, whatever temperature and filters make
    of its distribution. A sentence gets the same samples in any batch.

    Args:
        step, state, bos_ids, max_lengths: as in `beam_search`.
        num_translations: samples of each sentence, N, that the state was made for.
        temperature: what logits are divided by, a number or float [B].
        top_k: tokens that are drawn from; 0 means all; a number or int [B].
        top_p: probability of the tokens that are drawn from, a number or float [B].
        seed: a number or int [B]. With one number the samples of different sentences go together;
            `sentence_seeds` gives each a seed of its own.
        length_penalty: as in `beam_search`, but 0 unless it is given.
        **options: the others of `beam_search`.

    Raises:
        InputError: `num_translations` is below 1, or EOS = PAD.
    """
    if num_translations < 1:
        raise InputError(f"num_translations must be at least 1, got {num_translations}")
    spec, inputs, loop_state = prepare_search(
        step,
        state,
        num_translations,
        bos_ids=bos_ids,
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
        logits: Tensor, allowed: Tensor, time: Tensor, inputs: SentenceInputs
    ) -> tuple[Tensor, Tensor]:
        ids = tf.range(logits.shape[-1])  # [V]
        barred = (ids == spec.pad_id) | (ids == inputs.barred_ids[:, None, None])  # [B, 1, V]
        if "min_lengths" in inputs.constraints:
            is_early = (time < inputs.constraints["min_lengths"])[:, None, None]
            barred |= is_early & (ids == spec.eos_id)
        allowed = tf.where(barred, FORBIDDEN, allowed)
        must_end = (time >= inputs.max_lengths)[:, None, None]  # [B, 1, 1]
        only_end = tf.where(ids == spec.eos_id, logits, FORBIDDEN)
        allowed = tf.where(must_end, only_end, allowed)
        wanted = inputs.options
        allowed = apply_temperature(allowed, wanted["temperature"])
        allowed = keep_most_probable(allowed, wanted["top_k"], wanted["top_p"])
        ids = draw(allowed, wanted["seed"], time)  # [B, N]
        log_probs = tf.gather(logits, ids, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)
        # Where nothing is allowed, what was drawn is impossible.
        is_possible = tf.gather(allowed, ids, batch_dims=2) > FORBIDDEN
        return ids, tf.where(is_possible, log_probs, FORBIDDEN)

    return search_single_path(spec, inputs, loop_state, drawn)
