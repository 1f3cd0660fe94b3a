"""LSTM: its first biases and its precision; oracles of its numbers are in the tests of models."""

import numpy as np
from keras import ops

from keras_transformer.layers import LSTM, LSTMState


def test_the_forget_gate_is_open_at_first():
    layer = LSTM(3)
    layer.build((None, None, 2))
    assert layer.projection.bias.numpy().tolist() == [0] * 3 + [1] * 3 + [0] * 6


def test_in_half_precision_the_cell_still_adds_up_small_numbers():
    # 256 steps that each add 2^-10 to a cell near 1: bfloat16, whose next number is 1 + 2^-7,
    # would stay where it is.
    layer = LSTM(1, dtype="mixed_bfloat16")
    layer.build((None, None, 1))
    layer.recurrent_kernel.assign([[0.0, 0.0, 0.0, 0.0]])
    layer.projection.kernel.assign([[0.0, 0.0, 2.0**-10, 0.0]])
    layer.projection.bias.assign([20.0, 20.0, 0.0, 20.0])
    ones = ops.ones((1, 1), "float32")
    _, state = layer.call(
        np.ones((1, 256, 1), "float32"), state=LSTMState(ones, ones), return_state=True
    )
    np.testing.assert_allclose(state.cell, 1.25, rtol=1e-3)
