"""LSTM and SSRU: first biases, masks, precision; tests of models have oracles of their numbers."""

import numpy as np
import pytest

from keras_transformer.layers import LSTM, SSRU, LSTMState


def test_the_forget_gate_is_open_at_first():
    layer = LSTM(3)
    layer.build((None, None, 2))
    assert layer.projection.bias.numpy().tolist() == [0] * 3 + [1] * 3 + [0] * 6


@pytest.mark.parametrize("layer", [LSTM(3), SSRU()])
def test_hidden_tokens_leave_the_state_as_it_is(layer):
    x = np.random.default_rng(1).normal(size=(2, 5, 3)).astype("float32")
    found = layer(x, mask=np.array([[True, False, True, False, True]] * 2))
    np.testing.assert_allclose(found[:, ::2], layer(x[:, ::2]), atol=1e-6)


def test_in_half_precision_the_cell_still_adds_up_small_numbers():
    # 256 steps that each add 2^-10 to a cell near 1: bfloat16, whose next number is 1 + 2^-7,
    # would stay where it is.
    layer = LSTM(1, dtype="mixed_bfloat16")
    layer.build((None, None, 1))
    layer.recurrent_kernel.assign([[0.0, 0.0, 0.0, 0.0]])
    layer.projection.kernel.assign([[0.0, 0.0, 2.0**-10, 0.0]])
    layer.projection.bias.assign([20.0, 20.0, 0.0, 20.0])
    x, one = np.ones((1, 256, 1), "float32"), np.ones((1, 1), "float32")
    _, state = layer.call(x, state=LSTMState(one, one), return_state=True)
    np.testing.assert_allclose(state.cell, 1.25, rtol=1e-3)
