"""Accuracy, perplexity, number of tokens and padding, each with numbers worked out by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.objectives import Padding, Perplexity, TargetTokens, TokenAccuracy

PAD = 0
# The labels have the probabilities 1/2, 1/4 and 1/8; only the first is the most probable.
LABELS = np.array([[1, 2, PAD], [3, PAD, PAD]])
PROBABILITIES = np.array(
    [
        [[2, 4, 1, 1], [3, 2, 2, 1], [8, 0, 0, 0]],
        [[1, 4, 2, 1], [0, 8, 0, 0], [2, 2, 2, 2]],
    ]
)
LOGITS = np.log(PROBABILITIES + 1e-9).astype("float32")


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (TokenAccuracy(), 1 / 3),
        (Perplexity(), (1 / 2 * 1 / 4 * 1 / 8) ** (-1 / 3)),
        (TargetTokens(), 3),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
class TestEveryMetric:
    """What holds for each of them, padding being left out."""

    def test_value_is_as_worked_out_by_hand(self, metric, expected):
        metric.reset_state()
        metric.update_state(LABELS, LOGITS)
        np.testing.assert_allclose(metric.result(), expected, rtol=1e-6)

    def test_batches_count_by_real_tokens(self, metric, expected):
        metric.reset_state()
        for labels, logits in zip(LABELS, LOGITS, strict=True):  # two tokens, then one
            metric.update_state(labels[None], logits[None])
        metric.update_state(np.zeros_like(LABELS), LOGITS)
        np.testing.assert_allclose(metric.result(), expected, rtol=1e-6)

    def test_bfloat16_logits_are_close(self, metric, expected):
        metric.reset_state()
        metric.update_state(LABELS, tf.cast(LOGITS, "bfloat16"))
        assert metric.result().dtype == "float32"
        np.testing.assert_allclose(metric.result(), expected, rtol=0.02)

    def test_batch_of_padding_gives_a_number(self, metric, expected):
        metric.reset_state()
        metric.update_state(np.zeros_like(LABELS), LOGITS)
        assert metric.result() == (1 if isinstance(metric, Perplexity) else 0)

    def test_config_round_trip(self, metric, expected):
        again = keras.metrics.deserialize(keras.metrics.serialize(metric))
        assert type(again) is type(metric)
        assert again.name == metric.name


def test_uniform_model_has_the_perplexity_of_its_vocabulary():
    metric = Perplexity()
    metric.update_state(LABELS, np.full((2, 3, 50), -7.0, "float32"))
    np.testing.assert_allclose(metric.result(), 50, rtol=1e-6)


def test_perplexity_of_huge_logits_is_finite():
    metric = Perplexity()
    metric.update_state(np.array([[1, 2]]), np.array([[[0, 1e4, -1e4], [-1e4, 0, 40.0]]]))
    np.testing.assert_allclose(metric.result(), 1)


def test_ties_for_the_best_token_are_right():
    metric = TokenAccuracy()
    metric.update_state(np.array([[1, 2]]), np.zeros((1, 2, 4), "float32"))
    assert metric.result() == 1


def test_padding_counts_over_batches_of_any_shape():
    metric = Padding()
    metric.update_state(LABELS, LOGITS)  # 3 of 6
    metric.update_state(np.array([[1, PAD, PAD, PAD]]), None)  # 3 of 4
    np.testing.assert_allclose(metric.result(), 0.6)
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert (type(again), again.name) == (Padding, "padding")


@pytest.mark.parametrize("weights", [[1.0, 0.0], [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]])
def test_sample_weights_apply_to_sentences_and_tokens(weights):
    labels = np.array([[1, 2, 0], [3, 1, 1]])
    logits = np.eye(4, dtype="float32")[[[1, 3, 0], [3, 1, 2]]] * 5  # right: 1 of 2, 2 of 3
    for metric in (TokenAccuracy(), Perplexity()):
        expected = type(metric)()
        metric.update_state(labels, logits, sample_weight=np.array(weights))
        expected.update_state(labels[:1], logits[:1])
        assert float(metric.result()) == pytest.approx(float(expected.result()))
