"""Log-probabilities of next tokens and the length penalty."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import DecodingState
from keras_transformer.search.loop_state import prepare_search, stages
from keras_transformer.search.scoring import final_scores, length_penalty, next_tokens


def asked(limits):
    """Returns the inputs and the spec of sentences with these limits."""
    spec, inputs, _ = prepare_search(
        None, DecodingState(), 1, bos_ids=tf.fill([len(limits)], 2),
        max_lengths=tf.constant(limits), length_penalty=0.6,
    )  # fmt: skip
    return inputs, spec


def test_length_penalty_equals_numbers_worked_by_hand():
    lengths = tf.constant([1, 7, 19])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(0.0)), [1, 1, 1])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(1.0)), [1, 2, 4])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(0.5)), [1, 2**0.5, 2], rtol=1e-6)


def test_what_is_impossible_stays_so_under_an_infinite_length_penalty():
    inputs = asked([9])[0]._replace(alpha=tf.constant([1e6]))
    log_probs = tf.constant([[-1.0, -float("inf")]])
    scores = final_scores(log_probs, tf.constant(9), None, inputs)
    np.testing.assert_array_equal(scores, [[0.0, -np.inf]])


def test_next_tokens_are_the_best_of_the_full_softmax_without_pad_and_start():
    logits = np.random.default_rng(0).standard_normal((2, 3, 50)).astype("f")
    logits[..., [0, 2]] = 9.0
    logits = tf.constant(logits)
    log_probs, ids = next_tokens(logits, logits, 4, tf.constant(0), *asked([5, 5]))
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
    log_probs, ids = next_tokens(logits, logits, 4, tf.constant(3), *asked([3, 4]))
    assert ids[0][np.isfinite(log_probs[0])].numpy().tolist() == [3]
    np.testing.assert_allclose(np.max(log_probs[0]), tf.nn.log_softmax(logits)[0, 0, 3], rtol=1e-6)
    assert np.isfinite(log_probs[1]).sum() >= 4


@pytest.mark.parametrize("shift", [-1e4, 0.0, 1e4])
def test_log_probabilities_do_not_lose_digits_to_huge_logits(shift):
    logits = tf.constant([[[-40.0, -40.0, -40.0, 1.0, 0.5, 0.25, -1.0]]])
    log_probs, _ = next_tokens(logits + shift, logits + shift, 2, tf.constant(0), *asked([5]))
    expected, _ = next_tokens(logits, logits, 2, tf.constant(0), *asked([5]))
    np.testing.assert_allclose(log_probs, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        (0, (1,)),
        (19, (20,)),
        (22, (23,)),
        (23, (16, 24)),
        (65, (16, 32, 66)),
        (200, (16, 32, 64, 128, 201)),
    ],
)
def test_room_doubles_from_stage_to_stage_and_ends_at_the_longest_translation(longest, expected):
    assert stages(longest) == expected
