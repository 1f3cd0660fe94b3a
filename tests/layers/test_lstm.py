"""LSTM: equal to PyTorch's, gate for gate, and blind to padding."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import LSTM, LSTMState

WAYS = ("forwards", "backwards")
TOLERANCE = dict(rtol=0, atol=1e-6)

# What torch.nn.LSTM(2, 2, bidirectional=True, batch_first=True).double() gave, its input packed.
INPUTS = [[[0.0, -1.1], [0.1, 0.6], [-0.4, 0.5]], [[-1.9, -0.6], [0.2, -0.8], [0.5, -0.4]]]
LENGTHS = [3, 2]
WEIGHTS = {  # weight_ih, weight_hh, bias_ih, bias_hh
    "forwards": [
        [[-0.2, 0.1], [0.7, -0.5], [-1.6, -0.7], [0.7, 0.9],
         [0.1, -0.8], [1.6, -0.3], [0.5, 1.1], [-0.1, 0.6]],
        [[-0.5, 1.1], [-2.2, -0.5], [-1.3, -0.3], [0.2, 0.8],
         [0.2, 0.6], [1.0, -0.2], [-0.6, -1.2], [-0.3, 0.2]],
        [0.5, 0.0, 1.3, 1.5, 0.4, 1.0, -2.2, 0.2],
        [-0.9, -0.3, -1.1, 0.8, -0.5, 0.8, -0.8, -1.1],
    ],
    "backwards": [
        [[-0.5, -0.2], [-1.0, -1.0], [1.1, -0.8], [1.0, 1.4],
         [0.7, 0.3], [1.2, 0.4], [1.2, 1.2], [0.1, 0.8]],
        [[-0.5, 1.5], [0.1, 2.2], [-1.5, -0.7], [0.6, 0.6],
         [-0.5, -0.2], [0.0, 3.1], [-1.2, 0.0], [0.0, 0.1]],
        [0.1, -0.5, -1.3, -1.7, 0.1, 0.0, -0.4, 1.0],
        [1.4, -0.6, -1.2, 0.0, -0.5, -0.5, -1.1, 1.5],
    ],
}  # fmt: skip
OUTPUTS = {
    "forwards": [
        [[0.0035126, 0.0864599], [-0.009037, 0.257066], [-0.0122358, 0.2882028]],
        [[0.0008856, -0.0415964], [0.0053431, 0.0772997], [0.0, 0.0]],
    ],
    "backwards": [
        [[-0.0276881, -0.3029226], [-0.0323282, -0.0947762], [-0.0770337, -0.1418241]],
        [[-0.0080724, -0.5391686], [-0.0356932, -0.1690155], [0.0, 0.0]],
    ],
}
CELLS = {
    "forwards": [[-0.2519265, 1.0109846], [0.2322639, 0.4158968]],
    "backwards": [[-0.5159031, -0.3808454], [-0.8756974, -0.7366763]],
}


def with_weights_of_torch(way, weight_ih, weight_hh, bias_ih, bias_hh):
    """Gives the layer whose weights are PyTorch's: matrices transposed, biases added up."""
    layer = LSTM(len(weight_hh[0]), backwards=way == "backwards")
    layer.build((None, None, len(weight_ih[0])))
    layer.projection.kernel.assign(np.transpose(weight_ih))
    layer.projection.bias.assign(np.add(bias_ih, bias_hh))
    layer.recurrent_kernel.assign(np.transpose(weight_hh))
    return layer


def mask_of(lengths):
    return np.arange(max(lengths)) < np.array(lengths)[:, None]


@pytest.mark.parametrize("way", WAYS)
def test_outputs_and_states_are_those_that_pytorch_gave(way):
    layer = with_weights_of_torch(way, *WEIGHTS[way])
    mask = mask_of(LENGTHS)
    outputs, state = layer(np.array(INPUTS, "float32"), mask, return_state=True)
    np.testing.assert_allclose(np.where(mask[..., None], outputs, 0), OUTPUTS[way], **TOLERANCE)
    np.testing.assert_allclose(state.cell, CELLS[way], **TOLERANCE)
    last = [0, 0] if way == "backwards" else [2, 1]
    expected = np.array(OUTPUTS[way])[[0, 1], last]
    np.testing.assert_allclose(state.hidden, expected, **TOLERANCE)


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
