"""What only the Transformer shows: its rates and sizes, and what Keras does with a model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import transformer_oracle
from keras import ops
from model_cases import INPUTS, SOURCE, TARGET, logits_of, random_model

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer
from keras_transformer.objectives import SmoothedCrossEntropy

PAPER = TransformerConfig(
    vocabulary_size=13, num_layers=2, model_dim=8, feed_forward_dim=12, num_heads=2
)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "feed_forward_dropout"])
def test_each_dropout_rate_acts_alone(rate):
    plain = random_model(PAPER.replace(dropout=0.0))
    model = random_model(PAPER.replace(**({"dropout": 0.0} | {rate: 0.4})))
    expected = logits_of(plain, training=True)
    np.testing.assert_array_equal(logits_of(plain), expected)
    np.testing.assert_array_equal(logits_of(model), expected)
    assert np.abs(logits_of(model, training=True) - expected).max() > 0.01


class DropAll(keras.layers.Layer):
    def call(self, x, training=None):
        return ops.zeros_like(x)


def test_embeddings_with_positions_are_dropped():
    assert np.ptp(logits_of(Transformer(PAPER))) > 0.1
    model = Transformer(PAPER.replace(dropout=0.3))
    assert model.source_dropout.rate == model.target_dropout.rate == 0.3
    for side in ("source", "target"):
        setattr(model, f"{side}_dropout", DropAll())
    assert np.ptp(logits_of(model)) < 1e-5  # nothing tells tokens and positions apart


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "gelu_sigmoid"])
def test_activations_follow_their_formulas(activation):
    model = random_model(PAPER.replace(num_layers=1, activation=activation), "float64")
    expected = transformer_oracle.answer(model, SOURCE[0], TARGET[0]).logits
    # Keras has the square root of 2 in float32.
    np.testing.assert_allclose(logits_of(model)[0], expected, rtol=0, atol=1e-6)


# Size


@pytest.mark.parametrize(("preset", "millions"), [("tiny", 6.1), ("base", 63.0), ("big", 214.2)])
def test_presets_have_the_parameters_of_the_paper(preset, millions):
    # Table 3 says 65 and 213 million, for the sizes of its authors' vocabularies.
    config = TransformerConfig.preset(preset, vocabulary_size=37000)
    d, f = config.model_dim, config.feed_forward_dim
    attention, feed_forward, norm = 4 * d * d, d * f + f + f * d + d, 2 * d
    layer_pairs = config.num_layers * (3 * attention + 2 * feed_forward + 5 * norm)
    with keras.StatelessScope(initialize_variables=False):  # needs no memory for the numbers
        count = Transformer(config).count_params()
    assert count == layer_pairs + 37000 * d
    assert round(count / 1e6, 1) == millions


# Keras


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_subclass_with_own_layers_trains_and_is_saved(tmp_path):
    @keras.saving.register_keras_serializable()
    class WithTemperature(Transformer):
        def __init__(self, config, **kwargs):
            super().__init__(config, **kwargs)
            self.temperature = self.add_weight(name="temperature", shape=(), initializer="ones")
            self.uses_late = False
            self.late = keras.layers.Dense(config.target_size, kernel_initializer="identity")
            self.last = keras.layers.Dense(config.target_size)
            self.last.build((None, None, config.target_size))

        def call(self, inputs, training=None):
            logits = self.last(super().call(inputs, training) / self.temperature)
            return self.late(logits) if self.uses_late else logits

    model = WithTemperature(PAPER)
    model.uses_late = True  # which is built by the first batch
    model.compile("adam", SmoothedCrossEntropy())
    model.fit(INPUTS, np.pad(TARGET[:, 1:], ((0, 0), (0, 1))), verbose=0)
    assert float(model.temperature) != 1.0
    assert not np.array_equal(model.late.kernel, np.eye(PAPER.target_size))
    model.uses_late = False
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(logits_of(loaded), logits_of(model))


def test_frozen_model_of_a_file_can_be_unfrozen(tmp_path):
    model = Transformer(PAPER)
    model.trainable = False
    model.save(tmp_path / "some.keras")
    for each in (model, keras.models.load_model(tmp_path / "some.keras")):
        assert not each.trainable_weights
        each.trainable = True
        assert len(each.trainable_weights) == len(each.weights)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_frozen_parts_and_quantized_weights_of_a_file_stay_so(tmp_path):
    model = random_model(PAPER)
    model.encoder.trainable = False
    model.encoder.layers[1].trainable = True
    for change in (lambda: None, lambda: model.quantize("int8")):
        change()
        model.save(tmp_path / "some.keras")
        loaded = keras.models.load_model(tmp_path / "some.keras")
        assert [each.path for each in loaded.trainable_weights] == [
            each.path for each in model.trainable_weights
        ]
        np.testing.assert_array_equal(logits_of(loaded), logits_of(model))


IDS = np.array([[5, 6, 3], [7, 3, 0]])
RAGGED = tf.ragged.constant([[5, 6, 3], [7, 3]])
BATCH = {"source": IDS, "target": IDS}


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        ((IDS, IDS), IDS, "the model takes .*, got (list|tuple)"),
        (IDS, IDS, "the model takes .*, got "),
        ({"src": IDS, "tgt": IDS}, IDS, r"the model takes .*, got \['src', 'tgt'\]"),
        ({"source": IDS}, IDS, r"the model takes .*, got \['source'\]"),
        (BATCH | {"target": IDS[:, 0]}, IDS, r"target must be ids \[B, T\], got the shape \("),
        (BATCH | {"target": RAGGED}, IDS, "target must be ids padded with 0, got RaggedTensor"),
        (BATCH, RAGGED, "labels must be ids padded with 0, got RaggedTensor"),
        (BATCH, IDS[:, 0], r"labels must be ids \[B, T\], got the shape"),
    ],
)
def test_batches_in_another_form_are_rejected(inputs, labels, message):
    model = Transformer(PAPER)
    model.compile(loss=SmoothedCrossEntropy(), jit_compile=False)
    with pytest.raises(InputError, match=message):
        model.fit(tf.data.Dataset.from_tensors((inputs, labels)), verbose=0)
    if labels is IDS:
        with pytest.raises(InputError, match=message):
            model(inputs)


def test_model_is_called_symbolically():
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}
    model = random_model(PAPER)
    outer = keras.Model(inputs, model(inputs))
    assert outer.output_shape == (None, None, 13)
    np.testing.assert_allclose(outer(INPUTS), logits_of(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_float_ids_are_not_rounded(policy):
    model = Transformer(PAPER.replace(vocabulary_size=3000), dtype=policy)
    ids = np.array([[2051, 1001, 3]])
    exact = model({"source": ids, "target": ids})
    np.testing.assert_array_equal(model({"source": ids * 1.0, "target": ids * 1.0}), exact)
