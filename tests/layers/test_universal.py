"""Adaptive computation time: the weights of the steps, how many are taken, and the remainders."""

import numpy as np

from keras_transformer.layers import universal


def test_halting_of_a_worked_example():
    # The first token halts at its second step, the second at its first, the third is forced to;
    # the last one is padding.
    state = universal.start(np.array([True, True, True, False]))
    rows = [[0.6, 0.995, 0.1, 0.5], [0.5, 0.3, 0.2, 0.5], [0.9, 0.9, 0.3, 0.5]]
    weights = []
    for step, probabilities in enumerate(np.array(rows, "float32")):
        weight, state = universal.advance(state, probabilities, 0.01, step == 2)
        weights.append(weight)
    expected = [[0.6, 1.0, 0.1, 0.0], [0.4, 0.0, 0.2, 0.0], [0.0, 0.0, 0.7, 0.0]]
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    np.testing.assert_array_equal(state.steps, [2, 1, 3, 0])
    np.testing.assert_allclose(state.remainders, [0.4, 1.0, 0.7, 0.0], atol=1e-6)
    assert not np.any(state.is_running)
