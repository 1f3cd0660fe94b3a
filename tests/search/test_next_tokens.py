"""The most probable next tokens and their log-probabilities."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import DecodingState
from keras_transformer.search.beam import best_continuations, constrain_logits, prepare_search


def best_of_each(logits, count, time, limits):
    """Returns log-probabilities and ids of the best continuations of each hypothesis alone."""
    zeros = tf.zeros(tf.shape(logits)[:2])
    found = continuations(logits, count, time, limits, zeros, logits.shape[1])
    return found.log_probs, found.ids


def continuations(logits, count, time, limits, log_probs, num_sets):
    """Returns what `best_continuations` gives of sentences with these limits."""
    spec, inputs, loop_state = prepare_search(
        None, DecodingState(), 1, bos_ids=tf.fill([len(limits)], 2),
        max_lengths=tf.constant(limits), length_penalty=0.6,
    )  # fmt: skip
    time = tf.constant(time)
    constrained = constrain_logits(logits, time, spec, inputs, loop_state)
    return best_continuations(constrained, log_probs, num_sets, count, time, inputs, spec)


def test_next_tokens_are_the_best_of_the_full_softmax_without_pad_and_start():
    logits = np.random.default_rng(0).standard_normal((2, 3, 50)).astype("f")
    logits[..., [0, 2]] = 9.0
    logits = tf.constant(logits)
    log_probs, ids = best_of_each(logits, 4, 0, [5, 5])
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
    log_probs, ids = best_of_each(logits, 4, 3, [3, 4])
    assert ids[0][np.isfinite(log_probs[0])].numpy().tolist() == [3]
    np.testing.assert_allclose(np.max(log_probs[0]), tf.nn.log_softmax(logits)[0, 0, 3], rtol=1e-6)
    assert np.isfinite(log_probs[1]).sum() >= 4


@pytest.mark.parametrize("shift", [-1e4, 0.0, 1e4])
def test_log_probabilities_do_not_lose_digits_to_huge_logits(shift):
    logits = tf.constant([[[-40.0, -40.0, -40.0, 1.0, 0.5, 0.25, -1.0]]])
    log_probs, _ = best_of_each(logits + shift, 2, 0, [5])
    expected, _ = best_of_each(logits, 2, 0, [5])
    np.testing.assert_allclose(log_probs, expected, rtol=1e-6)


@pytest.mark.parametrize("size", [1.0, 90.0])  # beyond 64 logits are shifted before exp()
def test_continuations_of_a_set_are_the_best_of_all_its_hypotheses(size):
    random = np.random.default_rng(2)
    logits = random.uniform(-size, size, (2, 4, 600)).astype("f")
    log_probs = np.array([[-1.0, -2.0, -3.0, -np.inf], [-4.0, -1.0, -1.5, -2.0]], "f")
    found = continuations(tf.constant(logits), 5, 1, [9, 9], tf.constant(log_probs), 2)
    exact = logits.astype("d") - np.logaddexp.reduce(logits.astype("d"), -1, keepdims=True)
    totals = exact + log_probs[..., None]
    totals[..., [0, 2]] = -np.inf  # PAD and BOS
    totals = totals.reshape(2, 2, 1200)
    order = np.argsort(-totals, axis=-1)[..., :5]
    best = np.argsort(-found.log_probs.numpy(), axis=-1)[..., :5]
    got = [np.take_along_axis(part.numpy(), best, -1) for part in found]
    np.testing.assert_allclose(got[0], np.take_along_axis(totals, order, -1), rtol=1e-6)
    np.testing.assert_array_equal(got[1], order // 600 + np.array([[0], [2]]))
    np.testing.assert_array_equal(got[2], order % 600)
