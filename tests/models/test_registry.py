"""Architectures are found by name, and only their own files name them."""

import ast
import dataclasses
import pathlib

import pytest

from keras_transformer.config import ModelConfig, TransformerConfig, architectures, model
from keras_transformer.config.model import register_config
from keras_transformer.errors import InputError
from keras_transformer.models import Seq2SeqModel, Transformer, build_model, register_architecture

ROOT = pathlib.Path(__file__).resolve().parents[2]
# An architecture's own files, lists of public names, and a format that has this architecture alone.
MAY_NAME_IT = {
    "keras_transformer/__init__.py",
    "keras_transformer/config/__init__.py",
    "keras_transformer/config/model.py",
    "keras_transformer/interop/ctranslate2.py",
    "keras_transformer/interop/foreign.py",
    "keras_transformer/models/__init__.py",
    "keras_transformer/models/recurrent.py",
    "keras_transformer/models/transformer.py",
}
FILES = sorted([*ROOT.glob("keras_transformer/**/*.py"), *ROOT.glob("scripts/*.py")])


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """Hyperparameters of nothing yet."""

    architecture = "recurrent"
    PRESETS = {"recurrent-tiny": dict(model_dim=32, num_cells=3)}  # noqa: RUF012

    num_cells: int = 1


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Registers the configuration above for the time of a test."""
    monkeypatch.setattr(model, "_ARCHITECTURES", {"transformer": TransformerConfig})
    register_config(RecurrentConfig)


def named(source: str) -> set[str]:
    """Gives the names and quoted names in Python code; not those in sentences."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.alias):
            names.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_file_names_an_architecture(path):
    found = named(path.read_text(encoding="utf-8")) & {"Transformer", "TransformerConfig"}
    assert bool(found) <= (str(path.relative_to(ROOT)) in MAY_NAME_IT)


@pytest.mark.parametrize(
    "line",
    [
        "from keras_transformer.models import Transformer",
        "models.Transformer(config)",
        'def load() -> "Transformer": ...',
        "isinstance(config, TransformerConfig)",
    ],
)
def test_a_named_architecture_would_be_found(line):
    assert named(line) & {"Transformer", "TransformerConfig"}


def test_values_find_the_class_of_the_architecture_that_they_name():
    config = RecurrentConfig(vocabulary_size=9, num_cells=2)
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert RecurrentConfig.from_json(config.to_json()) == config
    assert config.to_dict()["architecture"] == "recurrent"
    assert config.replace(num_cells=4).num_cells == 4


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (ModelConfig, {}, "no architecture; give one of transformer, recurrent"),
        (
            ModelConfig,
            {"architecture": "conv"},
            "architecture must be one of transformer, recurrent, got 'conv'; import the module",
        ),
        (
            TransformerConfig,
            {"architecture": "recurrent"},
            "TransformerConfig is of architecture 'transformer', got values of 'recurrent'",
        ),
        (
            ModelConfig,
            {"architecture": "recurrent", "num_heads": 2},
            "RecurrentConfig has no field num_heads; it has vocabulary_size",
        ),
    ],
)
def test_values_of_another_architecture_or_of_none_are_refused(kind, values, message):
    with pytest.raises(InputError, match=message) as caught:
        kind.from_dict({"vocabulary_size": 9} | values)
    assert "\n" not in str(caught.value)


def test_a_configuration_of_no_architecture_is_refused():
    with pytest.raises(InputError, match="ModelConfig has no architecture; make the configuration"):
        ModelConfig(vocabulary_size=9)


def test_a_preset_is_found_among_those_of_all_architectures():
    assert set(ModelConfig.presets()) == {"tiny", "base", "big", "recurrent-tiny"}
    expected = RecurrentConfig(vocabulary_size=9, model_dim=32, num_cells=3)
    assert ModelConfig.preset("recurrent-tiny", vocabulary_size=9) == expected
    assert RecurrentConfig.preset("tiny", vocabulary_size=9) == expected
    assert type(ModelConfig.preset("tiny", vocabulary_size=9)) is TransformerConfig
    with pytest.raises(InputError, match=r"^preset must be one of recurrent-tiny, got 'base'$"):
        RecurrentConfig.preset("base", vocabulary_size=9)


def test_two_classes_cannot_have_one_name_nor_one_preset():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class OtherConfig(ModelConfig):
        architecture = "recurrent"

    with pytest.raises(InputError, match=r"of .*OtherConfig is that of RecurrentConfig"):
        register_config(OtherConfig)
    OtherConfig.architecture = "other"
    OtherConfig.PRESETS = {"big": {}}
    with pytest.raises(InputError, match=r"preset 'big' of .*OtherConfig exists already"):
        register_architecture(OtherConfig)
    register_config(RecurrentConfig)  # its module is imported again
    assert list(architectures()) == ["transformer", "recurrent"]


def test_a_model_is_built_of_its_configuration():
    config = TransformerConfig.preset("tiny", vocabulary_size=9, num_layers=1)
    built = build_model(config, dtype="mixed_bfloat16")
    assert type(built) is Transformer
    assert (built.config, built.dtype_policy.name) == (config, "mixed_bfloat16")
    with pytest.raises(InputError, match="no model is registered for RecurrentConfig; register"):
        build_model(RecurrentConfig(vocabulary_size=9))


def test_an_architecture_without_one_of_the_methods_cannot_be_built():
    class Half(Seq2SeqModel):
        def call(self, inputs, training=None): ...

    with pytest.raises(TypeError, match=r"abstract methods? .*count_flops.*encode.*step"):
        Half(RecurrentConfig(vocabulary_size=9))
