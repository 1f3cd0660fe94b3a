"""The head that aligns: its loss in training, and its attention afterwards."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.config import RecurrentConfig, TransformerConfig, UniversalConfig
from keras_transformer.models import build_model
from keras_transformer.objectives import SmoothedCrossEntropy

SIZES = dict(vocabulary_size=12, model_dim=8, dropout=0.0)
HEADS = dict(**SIZES, num_heads=2, feed_forward_dim=12, alignment_head=True)
CONFIGS = {
    "transformer": TransformerConfig(**HEADS, num_layers=3, decoder_attention_window=3),
    "one layer": TransformerConfig(**HEADS, num_layers=1, norm_position="pre"),
    "universal": UniversalConfig(**HEADS, num_steps=3, ponder_weight=0.0),
    "recurrent": RecurrentConfig(**SIZES, hidden_dim=8, input_feeding=True),
}
# The last row only fills the batch.
SOURCE = np.array([[5, 6, 7, 3], [8, 3, 0, 0], [0, 0, 0, 0]])
TARGET = np.array([[2, 9, 4, 6], [2, 5, 0, 0], [2, 0, 0, 0]])
LABELS = np.array([[9, 4, 6, 3], [5, 3, 0, 0], [0, 0, 0, 0]])
INPUTS = {"source": SOURCE, "target": TARGET}
ALIGNMENT = np.array([[2, 0, 3, 0], [1, 0, 0, 0], [0, 0, 0, 0]])


def with_random_weights(name):
    model, random = build_model(CONFIGS[name]), np.random.default_rng(3)
    model.set_weights([random.normal(scale=1.0, size=w.shape) for w in model.get_weights()])
    return model


@pytest.fixture(params=CONFIGS)
def model(request):
    return with_random_weights(request.param)


def test_loss_is_cross_entropy_of_the_head_by_target_tokens(model):
    model(INPUTS | {"alignment": ALIGNMENT}, training=True)
    (loss,) = (each for each in model.losses if float(each))
    weights = np.asarray(model.attention(INPUTS))
    linked = weights[[0, 0, 1], [0, 2, 0], [1, 2, 0]]
    assert float(loss) == pytest.approx(-0.05 * np.log(linked).sum() / 6, rel=1e-4)


def test_nothing_is_added_without_a_reference_or_training(model):
    model(INPUTS, training=True)
    assert not any(map(float, model.losses))
    model(INPUTS | {"alignment": ALIGNMENT}, training=False)
    assert not any(map(float, model.losses))


@pytest.mark.parametrize(
    "name",
    [
        "transformer",
        *(pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS if name != "transformer"),
    ],
)
def test_guided_head_learns_the_links(name):
    keras.utils.set_random_seed(1)
    model = build_model(CONFIGS[name])
    model.guided_alignment_weight = 1.0
    model.compile(optimizer=keras.optimizers.Adam(0.02), loss=SmoothedCrossEntropy())
    batch = INPUTS | {"alignment": ALIGNMENT}
    before = np.asarray(model.attention(INPUTS))
    for _ in range(80):
        model.train_on_batch(batch, LABELS)
    after = np.asarray(model.attention(INPUTS))
    linked = [0, 0, 1], [0, 2, 0], [1, 2, 0]
    assert after[linked].mean() > max(0.9, before[linked].mean())


@pytest.mark.parametrize("name", ["transformer", "universal"])
def test_steps_return_the_head_and_cover_the_mean(name):
    model = with_random_weights(name)
    inputs = {"source": SOURCE[:2], "target": TARGET[:2]}
    state, found = model.encode(SOURCE[:2], coverage=True), []
    for time in range(2):
        _, state = model.step(TARGET[:2, time : time + 1], state)
        found.append(np.asarray(state.attention)[:, 0])
    expected = np.asarray(model.attention(inputs))[:, :2]
    np.testing.assert_allclose(np.stack(found, axis=1), expected, atol=1e-5)
    plain = build_model(model.config.replace(alignment_head=False))
    plain.set_weights(model.get_weights())
    assert np.abs(np.asarray(plain.attention(inputs))[:, :2] - expected).max() > 1e-3
    mean = ops.sum(plain.attention(inputs)[:, :2], axis=1) + (SOURCE[:2] == 0)
    np.testing.assert_allclose(state.coverage[:, 0], mean, atol=1e-5)
