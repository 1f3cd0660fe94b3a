"""The abstract model: its registry, LoRA, recomputation, and what subclasses must define."""

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
from keras_transformer.models import build_model
from keras_transformer.objectives import SmoothedCrossEntropy

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
        PRESETS = {"conv-tiny": dict(model_dim=32, num_blocks=3)}  # noqa: RUF012

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
    assert set(ModelConfig.presets()) == {"tiny", "small", "base", "big", "tiny-fast", "conv-tiny"}
    expected = conv_config(vocabulary_size=9, model_dim=32, num_blocks=3)
    assert ModelConfig.preset("conv-tiny", vocabulary_size=9) == expected
    assert conv_config.preset("tiny", vocabulary_size=9) == expected
    assert architectures() == {"transformer": TransformerConfig, "conv": conv_config}
    again = make_config_class()  # as if its module were imported again
    assert architectures()["conv"] is again


SIZE = dict(vocabulary_size=9)


def config_class(**attributes):
    return model.add_architecture(type("OtherConfig", (ModelConfig,), attributes))


def extend_adapted():
    model = build_model(CONFIGS["transformer"])
    model.enable_lora(2)
    model.extended([[5]], [[5]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: ModelConfig(**SIZE), "ModelConfig has no architecture; make the con"),
        (lambda _: ModelConfig.from_dict(SIZE), "no architecture; give one of transformer, conv"),
        (
            lambda _: ModelConfig.from_dict(SIZE | {"architecture": "graph"}),
            "architecture must be one of transformer, conv, got 'graph'; if it is yours, give",
        ),
        (
            lambda _: TransformerConfig.from_dict(SIZE | {"architecture": "conv"}),
            "TransformerConfig is of architecture 'transformer', got values of 'conv'",
        ),
        (
            lambda conv: ModelConfig.from_dict(conv(**SIZE).to_dict() | {"heads": 2}),
            "ConvConfig has no field heads; it has vocabulary_size",
        ),
        (lambda conv: conv.preset("base", **SIZE), "^preset must be one of conv-tiny, got 'base'$"),
        (lambda _: config_class(architecture="conv"), "'conv' of OtherConfig is .*ConvConfig; "),
        (
            lambda _: config_class(architecture="other", PRESETS={"big": {}}),
            "preset 'big' of OtherConfig is one of TransformerConf",
        ),
        (lambda conv: build_model(conv(**SIZE)), "no model is registered for ConvConfig; register"),
        (
            lambda _: CONFIGS["universal"].replace(norm_epsilon=0.0),
            "norm_epsilon must be above 0 in a Universal Transformer, got 0",
        ),
        (
            lambda _: CONFIGS["universal"].replace(model_dim=9, num_heads=3, positions="learned"),
            "model_dim must be even for the sinusoidal step signals, got 9",
        ),
        (lambda _: extend_adapted(), "with LoRA matrices or quantized layers cannot get more"),
    ],
)
def test_unknown_and_impossible_architectures_are_rejected(conv_config, call, message):
    with pytest.raises(InputError, match=message) as caught:
        call(conv_config)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("mode", [None, "int8"])
@pytest.mark.parametrize("name", CONFIGS)
def test_lora_survives_files_and_trains_on(name, mode, tmp_path):
    keras.utils.set_random_seed(1)
    tuned = build_model(CONFIGS[name].replace(dropout=0.0))
    if mode is not None:
        tuned.quantize(mode)
    before = np.asarray(tuned(INPUTS))
    tuned.encoder.trainable = False  # its matrices train all the same
    tuned.enable_lora(2, lora_alpha=3)
    matrices = [weight for weight in tuned.weights if weight.name.startswith("lora_kernel_")]
    assert list(map(id, tuned.trainable_weights)) == list(map(id, matrices))
    assert any(weight.path.split("/")[1] == "encoder" for weight in matrices)
    np.testing.assert_allclose(tuned(INPUTS), before, atol=1e-6)
    tuned.compile(keras.optimizers.Adam(0.1), SmoothedCrossEntropy(), run_eagerly=True)
    tuned.train_on_batch(INPUTS, LABELS)
    assert np.abs(tuned(INPUTS) - before).max() > 0.01
    tuned.save(tmp_path / "tuned.keras")
    tuned.save_weights(tmp_path / "tuned.weights.h5")
    copy = keras.saving.load_model(tmp_path / "tuned.keras")
    assert (copy.projection.lora_rank, copy.projection.lora_alpha) == (2, 3)
    np.testing.assert_array_equal(copy(INPUTS), tuned(INPUTS))
    copy.load_weights(tmp_path / "tuned.weights.h5")
    for each in (tuned, copy):
        each.train_on_batch(INPUTS, LABELS)
    np.testing.assert_array_equal(copy(INPUTS), tuned(INPUTS))
    state = copy.encode(LABELS)
    logits, _ = copy.step(INPUTS["target"][:, :1], state)
    np.testing.assert_allclose(logits[:, 0], copy(INPUTS)[:, 0], atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_lora_weights_load_onto_the_base_model(name, tmp_path):
    base, tuned = (build_model(CONFIGS[name].replace(dropout=0.0)) for _ in range(2))
    other = build_model(CONFIGS[name].replace(model_dim=4))
    base.set_weights(tuned.get_weights())
    with pytest.raises(InputError, match="has no LoRA weights; call enable_lora first"):
        tuned.save_lora_weights(tmp_path / "lora")
    tuned.enable_lora(2, lora_alpha=3)
    generator = np.random.default_rng(1)
    for weight in tuned.trainable_weights:
        weight.assign(generator.normal(size=weight.shape))
    tuned.save_lora_weights(tmp_path / "lora")
    (tmp_path / "text").write_text("no weights")
    assert (tmp_path / "lora").stat().st_mode == (tmp_path / "text").stat().st_mode
    base.load_lora_weights(tmp_path / "lora")
    np.testing.assert_array_equal(base(INPUTS), tuned(INPUTS))
    base.load_lora_weights(tmp_path / "lora")  # once more
    models = (base, tuned, other)
    before = [
        [weight.path.partition("/")[2] for weight in each.trainable_weights] for each in models
    ]
    assert before[0] == before[1] != []
    for call, message in (
        (lambda: other.load_lora_weights(tmp_path / "lora"), "cannot load the LoRA weights in"),
        (lambda: tuned.enable_lora(2), "the model has LoRA matrices already"),
        (lambda: base.load_lora_weights(tmp_path / "text"), "give a file of save_lora_weights"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    # None of them froze anything more.
    assert [len(each.trainable_weights) for each in models] == [len(each) for each in before]
    # Nor is a file with some matrices of other sizes read in part.
    sizes = ("feed_forward_dim", "hidden_dim", "model_dim")
    size = next(size for size in sizes if hasattr(base.config, size))
    wide = build_model(base.config.replace(**{size: 2 * getattr(base.config, size)}))
    wide.enable_lora(2, lora_alpha=3)
    start = wide.get_weights()
    with pytest.raises(InputError, match="cannot load the LoRA weights in"):
        wide.load_lora_weights(tmp_path / "lora")
    for weight, expected in zip(wide.get_weights(), start, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_lora_of_a_model_made_by_an_outer_layer(tmp_path):
    class Outer(keras.layers.Layer):
        def build(self, shape):
            self.inner = build_model(CONFIGS["transformer"])
            self.inner.enable_lora(2)

        def call(self, ids):
            return self.inner({"source": ids, "target": ids})

    outer = Outer()
    outer(LABELS)
    outer.inner.save(tmp_path / "inner.keras")
    copy = keras.saving.load_model(tmp_path / "inner.keras")
    np.testing.assert_array_equal(copy(INPUTS), outer.inner(INPUTS))
    outer.inner.save_lora_weights(tmp_path / "lora")
    build_model(CONFIGS["transformer"]).load_lora_weights(tmp_path / "lora")
