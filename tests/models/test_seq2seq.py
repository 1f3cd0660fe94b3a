"""The abstract model: its registry, and what Keras does with its layers."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_transformer.config import (
    ModelConfig,
    RecurrentConfig,
    TransformerConfig,
    UniversalConfig,
    architectures,
    model,
)
from keras_transformer.errors import InputError
from keras_transformer.layers import Encoder, EncoderLayer, LayerNormalization, UniversalEncoder
from keras_transformer.models import Transformer, UniversalTransformer, build_model

# Its own files, lists of public names, and what only this architecture has.
SIZES = dict(vocabulary_size=13, model_dim=8, share_embeddings="none")
HEADS = dict(num_heads=2, feed_forward_dim=12)
CONFIGS = {
    "transformer": TransformerConfig(num_layers=1, **HEADS, **SIZES),
    "recurrent": RecurrentConfig(hidden_dim=6, **SIZES),
    "universal": UniversalConfig(num_steps=2, **HEADS, **SIZES),
}
LABELS = np.array([[5, 6, 7, 3], [8, 3, 0, 0]])
INPUTS = {"source": LABELS, "target": np.array([[2, 5, 6, 7], [2, 8, 0, 0]])}


def make_config_class():
    @model.add_architecture
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class ConvConfig(ModelConfig):
        architecture = "conv"
        PRESETS = {"tiny": dict(model_dim=32, num_blocks=3)}  # noqa: RUF012

        num_blocks: int = 1

    return ConvConfig


@pytest.fixture
def conv_config(monkeypatch):
    """A configuration class that no model has, registered beside the Transformer's."""
    monkeypatch.setattr(model, "_ARCHITECTURES", {"transformer": TransformerConfig})
    return make_config_class()


def test_config_classes_and_presets_are_found_by_architecture(conv_config):
    config = conv_config(vocabulary_size=9, num_blocks=2)
    assert config.to_dict()["architecture"] == "conv"
    assert ModelConfig.from_dict(config.to_dict()) == config
    expected = conv_config(vocabulary_size=9, model_dim=32, num_blocks=3)
    assert conv_config.preset("tiny", vocabulary_size=9) == expected
    assert architectures() == {"transformer": TransformerConfig, "conv": conv_config}
    again = make_config_class()  # as if its module were imported again
    assert architectures()["conv"] is again


SIZE = dict(vocabulary_size=9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: ModelConfig.from_dict(SIZE), "must be one of transformer, conv, got None"),
        (
            lambda _: ModelConfig.from_dict(SIZE | {"architecture": "graph"}),
            "architecture must be one of transformer, conv, got 'graph'; if it is yours, give",
        ),
        (
            lambda conv: ModelConfig.from_dict(conv(**SIZE).to_dict() | {"heads": 2}),
            "ConvConfig has no field heads; it has vocabulary_size",
        ),
        (lambda conv: conv.preset("base", **SIZE), "^preset must be one of tiny, got 'base'$"),
        (lambda conv: build_model(conv(**SIZE)), "no model is registered for ConvConfig; register"),
        (
            lambda _: CONFIGS["universal"].replace(norm_epsilon=0.0),
            "norm_epsilon must be above 0 in a Universal Transformer, got 0",
        ),
        (
            lambda _: CONFIGS["universal"].replace(model_dim=9, num_heads=3, positions="learned"),
            "model_dim must be even for the sinusoidal step signals, got 9",
        ),
    ],
)
def test_unknown_and_impossible_architectures_are_rejected(conv_config, call, message):
    with pytest.raises(InputError, match=message) as caught:
        call(conv_config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", CONFIGS)
def test_summary_shows_the_shapes_of_layers(name):
    lines: list[str] = []
    build_model(CONFIGS[name]).summary(expand_nested=True, print_fn=lines.append)
    assert "(None, None, 8)" in "".join(lines)


@pytest.mark.parametrize("name", CONFIGS)
def test_keras_exports_the_call(name, tmp_path):
    model = build_model(CONFIGS[name])
    model.export(tmp_path / "model", verbose=False)
    loaded = keras.layers.TFSMLayer(tmp_path / "model", call_endpoint="serve")
    inputs = {key: ids.astype("int32") for key, ids in INPUTS.items()}
    np.testing.assert_allclose(loaded(inputs), model(inputs), atol=1e-5)


def test_dense_layers_of_keras_can_be_adapted(tmp_path):
    model = build_model(CONFIGS["transformer"].replace(dropout=0.0))
    before = np.asarray(model(INPUTS))
    model.projection.enable_lora(2)
    model.projection.lora_kernel_b.assign(np.ones(model.projection.lora_kernel_b.shape))
    after = np.asarray(model(INPUTS))
    assert np.abs(after - before).max() > 1e-3
    logits, _ = model.step(INPUTS["target"][:, :1], model.encode(LABELS))
    np.testing.assert_allclose(logits[:, 0], after[:, 0], atol=1e-5)
    model.save(tmp_path / "model.keras")  # with the merged kernel
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(INPUTS), after, atol=1e-6)


class OwnNorm(LayerNormalization):
    pass


class OwnLayer(EncoderLayer):
    norm_class = OwnNorm


class OwnEncoder(Encoder):
    layer_class = OwnLayer


class OwnUniversalEncoder(UniversalEncoder):
    layer_class = OwnLayer


class OwnTransformer(Transformer):
    encoder_class = OwnEncoder


class OwnUniversal(UniversalTransformer):
    encoder_class = OwnUniversalEncoder


def test_classes_of_a_subclass_replace_all_sublayers():
    first = OwnTransformer(CONFIGS["transformer"].replace(embedding_norm=True, norm_position="pre"))
    second = OwnUniversal(CONFIGS["universal"].replace(norm_position="pre"))
    layers = first.encoder.layers[0], second.encoder.layer
    norms = [each.feed_forward_norm for each in layers] + [first.source_norm, first.target_norm]
    norms += [first.encoder.final_norm, second.encoder.final_norm]
    assert {type(norm) for norm in norms} == {OwnNorm}
    assert type(second.decoder.final_norm) is LayerNormalization
