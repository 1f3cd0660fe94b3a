"""Hypotheses that never branch: what greedy search and sampling share.

Shapes: B sentences, W hypotheses a sentence, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.decode_loop import decode_loop
from keras_transformer.search.hypotheses import Finished, Hypotheses, best_of, make_hypotheses
from keras_transformer.search.loop_state import LoopState, SearchSpec, SentenceInputs
from keras_transformer.search.loop_steps import extend, grow_cache, read
from keras_transformer.search.next_tokens import ConstrainedLogits, constrain_logits
from keras_transformer.search.scoring import IMPOSSIBLE, final_scores

# From the logits, time and inputs to the next ids and their log-probabilities, both [B, W].
Choose = Callable[[ConstrainedLogits, Tensor, SentenceInputs], tuple[Tensor, Tensor]]


class _Paths(NamedTuple):
    log_probs: Tensor  # float32 [B, W]
    scores: Tensor  # float32 [B, W], of those that are complete
    lengths: Tensor  # int32 [B, W], EOS included; 0 while the translation is open
    loop_state: LoopState


def search_single_path(
    spec: SearchSpec, inputs: SentenceInputs, loop_state: LoopState, choose: Choose
) -> Hypotheses:
    """Returns the W translations of each sentence whose tokens `choose` takes, best first."""
    zeros = tf.zeros_like(loop_state.ids)
    no_scores = tf.fill(tf.shape(zeros), IMPOSSIBLE)
    finished = decode_loop(
        lambda time, inputs, paths, capacity: _advance(time, inputs, paths, capacity, spec, choose),
        inputs,
        _Paths(tf.zeros_like(no_scores), no_scores, zeros, loop_state),
        is_open=lambda paths: tf.reduce_any(paths.lengths == 0, axis=1),
        result_of=lambda paths: Finished(
            paths.scores, paths.log_probs, paths.loop_state.tokens, paths.lengths
        ),
        grow_cache=lambda paths, *sizes: paths._replace(
            loop_state=grow_cache(paths.loop_state, *sizes)
        ),
        max_steps=spec.result_length,
        capacities=spec.capacities,
    )
    return make_hypotheses(best_of([finished], spec.num_hypotheses), spec)


def _advance(
    time: Tensor,
    inputs: SentenceInputs,
    paths: _Paths,
    capacity: int | None,
    spec: SearchSpec,
    choose: Choose,
) -> _Paths:
    """Appends a token to every open translation; finished ones stay as they are."""
    logits, loop_state = read(spec, inputs, paths.loop_state, time, capacity)
    constrained = constrain_logits(logits, time, spec, inputs, loop_state)
    ids, gains = choose(constrained, time, inputs)
    is_open = paths.lengths == 0
    has_ended = is_open & (ids == spec.eos_id)
    log_probs = paths.log_probs + tf.where(is_open, gains, 0.0)
    scores = final_scores(
        log_probs, time + 1, loop_state.model.get("coverage"), inputs, spec.length_penalty_form
    )
    return _Paths(
        log_probs=log_probs,
        scores=tf.where(has_ended, scores, paths.scores),
        lengths=tf.where(has_ended, time + 1, paths.lengths),
        loop_state=extend(spec, inputs, loop_state, ids, None, time),
    )
