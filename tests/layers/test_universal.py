"""Adaptive computation time: the weights of the steps, how many are taken, and the remainders."""

import numpy as np

from keras_transformer.layers import universal

EPSILON = 0.01


def run(probabilities, is_real=None):
    """Takes a step for each row of probabilities [N, T]; gives weights [N, T] and the end."""
    probabilities = np.asarray(probabilities, "float32")
    is_real = np.ones(probabilities.shape[1], bool) if is_real is None else np.array(is_real)
    state, weights = universal.start(is_real), []
    for step, row in enumerate(probabilities):
        is_last = step == len(probabilities) - 1
        weight, state = universal.advance(state, row, EPSILON, is_last)
        weights.append(weight)
    return np.array(weights), state


def test_halting_of_a_worked_example():
    # The first token halts at its second step, the second at its first, the third is forced to.
    weights, end = run([[0.6, 0.995, 0.1], [0.5, 0.3, 0.2], [0.9, 0.9, 0.3]])
    expected = [[0.6, 1.0, 0.1], [0.4, 0.0, 0.2], [0.0, 0.0, 0.7]]
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    np.testing.assert_array_equal(end.steps, [2, 1, 3])
    np.testing.assert_allclose(end.remainders, [0.4, 1.0, 0.7], atol=1e-6)
    assert not np.any(end.is_running)


def test_padding_takes_no_step_and_has_no_weight():
    weights, end = run([[0.5, 0.5], [0.4, 0.4]], is_real=[True, False])
    np.testing.assert_array_equal(weights[:, 1], [0, 0])
    assert (end.steps[1], end.remainders[1]) == (0, 0)


def test_halting_weights_of_a_token_sum_to_one():
    probabilities = np.random.default_rng(1).uniform(0, 0.6, size=(9, 500))
    weights, end = run(probabilities)
    np.testing.assert_allclose(weights.sum(axis=0), 1.0, atol=1e-6)
    assert set(np.asarray(end.steps)) > {3, 4, 5, 6}
