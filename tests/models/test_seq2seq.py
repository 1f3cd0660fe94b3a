"""The abstract model: its registry, LoRA, recomputation, and what subclasses must define."""

import ast
import dataclasses
import pathlib

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
from keras_transformer.models import Seq2SeqModel, Transformer, build_model
from keras_transformer.objectives import SmoothedCrossEntropy

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "keras_transformer"
# Its own files, lists of public names, and what only this architecture has.
MAY_NAME_THE_TRANSFORMER = {
    "__init__.py", "config/__init__.py", "config/model.py", "interop/ctranslate2.py",
    "interop/foreign.py", "interop/transformers.py", "interop/vocabularies.py",
    "models/__init__.py", "models/transformer.py",
}  # fmt: skip
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


def test_no_other_file_names_the_transformer():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {getattr(node, field, None) for field in ("id", "attr", "name", "value")
                     if isinstance(getattr(node, field, None), str)}  # fmt: skip
            if names & {"Transformer", "TransformerConfig"}:
                found.add(str(path.relative_to(PACKAGE)))
    assert found <= MAY_NAME_THE_TRANSFORMER


def test_config_classes_are_found_by_architecture(conv_config):
    config = conv_config(vocabulary_size=9, num_blocks=2)
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert conv_config.from_json(config.to_json()) == config
    assert config.to_dict()["architecture"] == "conv"
    assert config.replace(num_blocks=4).num_blocks == 4


def test_presets_of_all_architectures_are_found(conv_config):
    assert set(ModelConfig.presets()) == {"tiny", "base", "big", "tiny-fast", "conv-tiny"}
    expected = conv_config(vocabulary_size=9, model_dim=32, num_blocks=3)
    assert ModelConfig.preset("conv-tiny", vocabulary_size=9) == expected
    assert conv_config.preset("tiny", vocabulary_size=9) == expected
    assert type(ModelConfig.preset("tiny", vocabulary_size=9)) is TransformerConfig


def test_class_imported_again_replaces_the_old_one(conv_config):
    assert architectures() == {"transformer": TransformerConfig, "conv": conv_config}
    again = make_config_class()
    assert architectures()["conv"] is again


def test_build_model_finds_the_class_of_a_config():
    config = TransformerConfig.preset("tiny", vocabulary_size=9, num_layers=1)
    built = build_model(config, dtype="mixed_bfloat16")
    assert type(built) is Transformer
    assert (built.config, built.dtype_policy.name) == (config, "mixed_bfloat16")


def extend_adapted():
    model = build_model(CONFIGS["transformer"])
    model.enable_lora(2)
    model.extended([[5]], [[5]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: ModelConfig(vocabulary_size=9), "ModelConfig has no architecture; make the con"),
        (
            lambda _: ModelConfig.from_dict({"vocabulary_size": 9}),
            "no architecture; give one of transformer, conv",
        ),
        (
            lambda _: ModelConfig.from_dict({"vocabulary_size": 9, "architecture": "graph"}),
            "architecture must be one of transformer, conv, got 'graph'; import the module",
        ),
        (
            lambda _: TransformerConfig.from_dict({"vocabulary_size": 9, "architecture": "conv"}),
            "TransformerConfig is of architecture 'transformer', got values of 'conv'",
        ),
        (
            lambda conv: ModelConfig.from_dict(conv(vocabulary_size=9).to_dict() | {"heads": 2}),
            "ConvConfig has no field heads; it has vocabulary_size",
        ),
        (
            lambda conv: conv.preset("base", vocabulary_size=9),
            "^preset must be one of conv-tiny, got 'base'$",
        ),
        (
            lambda _: type("OtherConfig", (ModelConfig,), {"architecture": "conv"}),
            "'conv' of OtherConfig is that of .*ConvConfig; choose",
        ),
        (
            lambda _: type(
                "OtherConfig", (ModelConfig,), {"architecture": "other", "PRESETS": {"big": {}}}
            ),
            "preset 'big' of OtherConfig is one of TransformerConf",
        ),
        (
            lambda conv: build_model(conv(vocabulary_size=9)),
            "no model is registered for ConvConfig; register",
        ),
        (
            lambda _: RecurrentConfig(vocabulary_size=9, attention_dim=4, attention_type="dot"),
            "attention_dim 4 cannot be combined with attention_type",
        ),
        (
            lambda _: CONFIGS["universal"].replace(norm_epsilon=0.0),
            "norm_epsilon must be above 0 in a Universal Transformer, got 0",
        ),
        (
            lambda _: CONFIGS["universal"].replace(model_dim=9, num_heads=3, positions="learned"),
            "model_dim must be even for the sinusoidal step signals, got 9",
        ),
        (
            lambda _: CONFIGS["universal"].replace(num_heads=3),
            "model_dim 8 is not divisible by num_heads 3; choose num_heads that",
        ),
        (lambda _: extend_adapted(), "with LoRA matrices or quantized layers cannot get more"),
    ],
)
def test_unknown_and_impossible_architectures_are_rejected(conv_config, call, message):
    with pytest.raises(InputError, match=message) as caught:
        call(conv_config)
    assert "\n" not in str(caught.value)


def test_models_without_an_abstract_method_cannot_be_built():
    class Half(Seq2SeqModel):
        def call(self, inputs, training=None): ...

    with pytest.raises(TypeError, match=r"abstract methods? .*count_flops.*encode.*step"):
        Half(TransformerConfig(vocabulary_size=9))


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
    tuned.enable_lora(2, lora_alpha=3)
    names = {weight.name for weight in tuned.trainable_weights}
    assert names == {"lora_kernel_a", "lora_kernel_b"}
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
    base.set_weights(tuned.get_weights())
    with pytest.raises(InputError, match="has no LoRA weights; call enable_lora first"):
        tuned.save_lora_weights(tmp_path / "lora")
    tuned.enable_lora(2, lora_alpha=3)
    generator = np.random.default_rng(1)
    for weight in tuned.trainable_weights:
        weight.assign(generator.normal(size=weight.shape))
    tuned.save_lora_weights(tmp_path / "lora")
    (tmp_path / "any").touch()
    assert (tmp_path / "lora").stat().st_mode == (tmp_path / "any").stat().st_mode
    base.load_lora_weights(tmp_path / "lora")
    np.testing.assert_array_equal(base(INPUTS), tuned(INPUTS))
    assert [w.path.partition("/")[2] for w in base.trainable_weights] == [
        w.path.partition("/")[2] for w in tuned.trainable_weights
    ]
    base.load_lora_weights(tmp_path / "lora")  # once more
    other = build_model(CONFIGS[name].replace(model_dim=4))
    num_trainable = len(other.trainable_weights)
    with pytest.raises(InputError, match="cannot load the LoRA weights in"):
        other.load_lora_weights(tmp_path / "lora")
    with pytest.raises(InputError, match="the model has LoRA matrices already"):
        tuned.enable_lora(2)
    assert len(other.trainable_weights) == num_trainable  # neither froze anything more
    assert len(tuned.trainable_weights) == len(base.trainable_weights) > 0
    (tmp_path / "text").write_text("no weights")
    with pytest.raises(InputError, match="give a file of save_lora_weights"):
        base.load_lora_weights(tmp_path / "text")


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
