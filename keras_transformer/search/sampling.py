"""Sampling: each next token is drawn from the model's distribution.

Shapes: B sentences, N samples a sentence, V vocabulary.
"""

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor, VocabularySubset
from keras_transformer.errors import InputError
from keras_transformer.search.constraints import Constraint
from keras_transformer.search.hypotheses import Hypotheses
from keras_transformer.search.logits_processors import (
    FORBIDDEN,
    apply_temperature,
    keep_most_probable,
)
from keras_transformer.search.loop_state import SearchSpec, SentenceInputs, prepare_search
from keras_transformer.search.next_tokens import ConstrainedLogits
from keras_transformer.search.random_numbers import draw_tokens
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
    length_penalty_form: str = "gnmt",
    coverage_penalty: Tensor = 0.0,
    constraints: Sequence[Constraint] = (),
    max_length_bound: int | None = None,
    vocabulary: VocabularySubset | None = None,
    eos_id: int = EOS_ID,
    pad_id: int = PAD_ID,
) -> Hypotheses:
    """Returns translations that are sampled token by token, those of the best scores first.

    Scores and log-probabilities are those of the model, whatever temperature and filters make of
    its distribution. A sentence gets the same samples in any batch.

    Args:
        step, state, bos_ids, max_lengths: as in `beam_search`.
        num_translations: N, samples of each sentence, that the state was made for.
        temperature: what logits are divided by, a number or float [B].
        top_k: tokens to sample from; 0 means all; a number or int [B].
        top_p: probability of the tokens to sample from, a number or float [B].
        seed: a number or int [B]. With one number the samples of different sentences are
            correlated; `sentence_seeds` gives each a seed of its own.
        length_penalty: as in `beam_search`, but 0 by default.
        length_penalty_form, coverage_penalty, constraints, max_length_bound, vocabulary, eos_id,
            pad_id: as in `beam_search`.

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
        length_penalty_form=length_penalty_form,
        coverage_penalty=coverage_penalty,
        constraints=constraints,
        max_length_bound=max_length_bound,
        vocabulary=vocabulary,
        reads_logits=True,
        eos_id=eos_id,
        pad_id=pad_id,
        options=dict(
            temperature=tf.cast(temperature, tf.float32),
            top_k=tf.cast(top_k, tf.int32),
            top_p=tf.cast(top_p, tf.float32),
            seed=tf.cast(seed, tf.int64),
        ),
    )
    return search_single_path(
        spec,
        inputs,
        loop_state,
        lambda constrained, time, inputs: _sample_tokens(constrained, time, inputs, spec),
    )


def _sample_tokens(
    constrained: ConstrainedLogits, time: Tensor, inputs: SentenceInputs, spec: SearchSpec
) -> tuple[Tensor, Tensor]:
    """Returns sampled tokens and their log-probabilities, both [B, N]."""
    logits = constrained.logits
    ids = tf.range(logits.shape[-1])  # [V]
    allowed = tf.where(constrained.is_forbidden(ids), FORBIDDEN, constrained.allowed)
    must_end = (time >= inputs.max_lengths)[:, None, None]  # [B, 1, 1]
    only_eos = tf.where(ids == spec.eos_id, logits, FORBIDDEN)
    allowed = tf.where(must_end, only_eos, allowed)
    allowed = apply_temperature(allowed, inputs.options["temperature"])
    allowed = keep_most_probable(allowed, inputs.options["top_k"], inputs.options["top_p"])
    ids = draw_tokens(allowed, inputs.options["seed"], time)  # [B, N]
    log_probs = tf.gather(logits, ids, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)
    # Where every token is forbidden, so is the one that was drawn.
    is_possible = tf.gather(allowed, ids, batch_dims=2) > FORBIDDEN
    return ids, tf.where(is_possible, log_probs, FORBIDDEN)
