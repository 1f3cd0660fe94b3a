"""Greedy search: the most probable token at every step.

Shapes: B sentences.
"""

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor, VocabularySubset
from keras_transformer.search.constraints import Constraint
from keras_transformer.search.hypotheses import Hypotheses
from keras_transformer.search.loop_state import SentenceInputs, prepare_search
from keras_transformer.search.next_tokens import ConstrainedLogits, best_continuations
from keras_transformer.search.single_path import search_single_path


def greedy_search(
    step: StepFunction,
    state: DecodingState,
    *,
    bos_ids: Tensor,
    max_lengths: Tensor,
    length_penalty: Tensor = 0.0,
    length_penalty_form: str = "gnmt",
    coverage_penalty: Tensor = 0.0,
    constraints: Sequence[Constraint] = (),
    max_length_bound: int | None = None,
    vocabulary: VocabularySubset | None = None,
    eos_id: int = EOS_ID,
    pad_id: int = PAD_ID,
) -> Hypotheses:
    """Returns one translation of each sentence: the most probable token at every step.

    A translation ends at its first EOS, or takes EOS once it has `max_lengths` tokens.
    Arguments, result and errors are those of `beam_search` with `beam_size` 1, but that
    `length_penalty` is 0 by default.
    """
    spec, inputs, loop_state = prepare_search(
        step,
        state,
        1,
        bos_ids=bos_ids,
        max_lengths=max_lengths,
        length_penalty=length_penalty,
        length_penalty_form=length_penalty_form,
        coverage_penalty=coverage_penalty,
        constraints=constraints,
        max_length_bound=max_length_bound,
        vocabulary=vocabulary,
        eos_id=eos_id,
        pad_id=pad_id,
    )

    def most_probable(
        constrained: ConstrainedLogits, time: Tensor, inputs: SentenceInputs
    ) -> tuple[Tensor, Tensor]:
        none = tf.zeros_like(inputs.alpha)[:, None]
        found = best_continuations(constrained, none, 1, 1, time, inputs, spec)  # [B, 1, K]
        best = tf.argmax(found.log_probs, axis=-1, output_type=tf.int32)  # [B, 1]
        return tf.gather(found.ids, best, batch_dims=2), tf.reduce_max(found.log_probs, axis=-1)

    return search_single_path(spec, inputs, loop_state, most_probable)
