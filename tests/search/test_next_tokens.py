"""The most probable next tokens and their log-probabilities."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import DecodingState
from keras_transformer.search.loop_state import prepare_search
from keras_transformer.search.next_tokens import best_next_tokens, constrain_logits


def best_tokens(logits, count, time, limits):
    """Returns what `best_next_tokens` gives of sentences with these limits, without constraints."""
    spec, inputs, loop_state = prepare_search(
        None, DecodingState(), 1, bos_ids=tf.fill([len(limits)], 2),
        max_lengths=tf.constant(limits), length_penalty=0.6,
    )  # fmt: skip
    time = tf.constant(time)
    constrained = constrain_logits(logits, time, spec, inputs, loop_state)
    return best_next_tokens(constrained, count, time, inputs, spec)


def test_next_tokens_are_the_best_of_the_full_softmax_without_pad_and_start():
    logits = np.random.default_rng(0).standard_normal((2, 3, 50)).astype("f")
    logits[..., [0, 2]] = 9.0
    logits = tf.constant(logits)
    log_probs, ids = best_tokens(logits, 4, 0, [5, 5])
    logits = logits.numpy()
    exact = logits.astype("d") - np.log(np.exp(logits.astype("d")).sum(-1, keepdims=True))
    exact[..., [0, 2]] = -np.inf
    order = np.argsort(-exact, axis=-1)[..., :4]
    kept = np.isfinite(log_probs)
    assert np.all(kept.sum(-1) == 4)
    np.testing.assert_array_equal(ids[kept].numpy().reshape(2, 3, 4), order)
    expected = np.take_along_axis(exact, order, -1)
    np.testing.assert_allclose(log_probs[kept].numpy().reshape(2, 3, 4), expected, rtol=1e-5)


def test_a_hypothesis_at_its_limit_has_only_end_with_its_true_probability():
    logits = tf.random.stateless_normal([2, 1, 50], [1, 2])
    log_probs, ids = best_tokens(logits, 4, 3, [3, 4])
    assert ids[0][np.isfinite(log_probs[0])].numpy().tolist() == [3]
    np.testing.assert_allclose(np.max(log_probs[0]), tf.nn.log_softmax(logits)[0, 0, 3], rtol=1e-6)
    assert np.isfinite(log_probs[1]).sum() >= 4


@pytest.mark.parametrize("shift", [-1e4, 0.0, 1e4])
def test_log_probabilities_do_not_lose_digits_to_huge_logits(shift):
    logits = tf.constant([[[-40.0, -40.0, -40.0, 1.0, 0.5, 0.25, -1.0]]])
    log_probs, _ = best_tokens(logits + shift, 2, 0, [5])
    expected, _ = best_tokens(logits, 2, 0, [5])
    np.testing.assert_allclose(log_probs, expected, rtol=1e-6)
