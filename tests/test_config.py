"""Configurations: the paper's numbers, declared ranges, a round trip, a line for each mistake."""

import dataclasses
import json
import typing

import numpy as np
import pytest

from keras_transformer.config import (
    TRAINING_PRESETS,
    DataConfig,
    JsonConfig,
    RecurrentConfig,
    SearchConfig,
    TrainingConfig,
    TransformerConfig,
    UniversalConfig,
    check_options,
    option,
)
from keras_transformer.errors import InputError

FILES = {"train_source": "train.en", "train_target": "train.de"}
SMALLEST = {
    TransformerConfig: {"vocabulary_size": 10},
    RecurrentConfig: {"vocabulary_size": 10},
    UniversalConfig: {"vocabulary_size": 10},
    DataConfig: FILES,
    TrainingConfig: {},
    SearchConfig: {},
}


# Presets


@pytest.mark.parametrize("kind", [TransformerConfig, TrainingConfig])
def test_unknown_preset_error_lists_presets(kind):
    presets = TRAINING_PRESETS if kind is TrainingConfig else kind.PRESETS
    assert {"tiny", "small", "base", "big"} <= set(presets)
    message = f"^preset must be one of {', '.join(presets)}, got 'huge'$"
    with pytest.raises(InputError, match=message):
        kind.preset("huge")


def test_each_preset_of_a_model_has_one_of_training():
    for config in (TransformerConfig, RecurrentConfig, UniversalConfig):
        assert config.PRESETS and config.PRESETS.keys() <= TRAINING_PRESETS.keys()


# What all configurations share


@pytest.mark.parametrize(
    "config",
    [
        TransformerConfig(vocabulary_size=9, target_vocabulary_size=8, share_embeddings="none"),
        DataConfig(dataset="wmt14_translate/de-en", share_vocabulary=False),
        TrainingConfig(learning_rate=0.002, precision="mixed_bfloat16"),
        SearchConfig(length_penalty=0.0),
    ],
)
def test_json_round_trip(config):
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(("kind", "values"), SMALLEST.items())
def test_unknown_field_is_rejected(kind, values):
    config = kind(**values)
    assert config.replace() == config
    for use in (lambda **others: kind.from_dict(values | others), config.replace):
        with pytest.raises(InputError, match=rf"{kind.__name__} has no field colour; it has "):
            use(colour=3)


_VALUES = [
    True, 1, 0.5, float("nan"), "no", None, ("a",), ["a"], object(),
    np.int64(1), np.float32(0.5), np.float64("nan"), np.bool_(True),
]  # fmt: skip
_FITTING = {  # the values above that a field of a type takes
    "bool": [0, 12],
    "int": [1, 9],
    "float": [1, 2, 9, 10],
    "str": [4],
}


@pytest.mark.parametrize(
    "annotation", [*_FITTING, "bool | None", "int | None", "float | None", "str | None"]
)
def test_fields_take_values_of_their_type_only(annotation):
    optional = annotation.endswith(" | None")
    kind = dataclasses.make_dataclass(
        "Config", [("field", eval(annotation))], bases=(JsonConfig,), frozen=True
    )
    for number, value in enumerate(_VALUES):
        if number in _FITTING[annotation.removesuffix(" | None")] or (value is None and optional):
            field = kind(value).field
            assert field == value and type(field) in (bool, int, float, str, type(None))
        else:
            with pytest.raises(InputError, match=r"^field must be .*, got ") as caught:
                kind(value)
            assert "\n" not in str(caught.value)


def test_types_are_read_in_modules_with_future_annotations(tmp_path, monkeypatch):
    (tmp_path / "annotated.py").write_text(
        "from __future__ import annotations\n"
        "import dataclasses\n"
        "from keras_transformer.config import JsonConfig, option\n"
        "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        "class Annotated(JsonConfig):\n"
        "    size: int | None = option(None, 'A size.', minimum=1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from annotated import Annotated

    assert Annotated(size=3).size == 3
    with pytest.raises(InputError, match="size must be a whole number, got 'three'"):
        Annotated(size="three")


@pytest.mark.parametrize("kind", SMALLEST)
def test_every_number_declares_a_range(kind):
    free = {"halting_bias"}  # any number
    for field in dataclasses.fields(kind):
        types = {field.type, *typing.get_args(field.type)}
        bounds = [field.metadata[name] for name in ("minimum", "above", "maximum", "below")]
        if not types.isdisjoint({int, float}) and field.name not in free:
            least = bounds[0] if bounds[1] is None else bounds[1]
            assert least is not None, field.name
            for wrong in [least - 1] + [bound + 1 for bound in bounds[2:] if bound is not None]:
                with pytest.raises(InputError, match=f"^{field.name} must be "):
                    kind(**SMALLEST[kind] | {field.name: wrong})
        else:
            assert bounds[0] is bounds[1] is bounds[3] is None, field.name


# Mistakes: values that break a rule of several fields, and the field that the error names.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranges(JsonConfig):
    number: int = option(3, "", minimum=1, maximum=9, is_odd=True)
    share: float | None = option(None, "", above=0, below=1)


MISTAKES = [
    (Ranges, dict(number=4), "number"),
    (Ranges, dict(share=0.0), "share"),
    (Ranges, dict(share=1), "share"),
    (TransformerConfig, dict(positions="rope"), "positions"),
    (TransformerConfig, dict(positions="learned", first_position=1024), "max_positions"),
    (TransformerConfig, dict(num_heads=3), "num_heads"),
    (TransformerConfig, dict(model_dim=15, num_heads=5), "model_dim"),
    (TransformerConfig, dict(target_vocabulary_size=20), "share_embeddings"),
    (TransformerConfig, dict(max_relative_distance=8), "max_relative_distance"),
    (TransformerConfig, dict(max_positions=99), "max_positions"),
    (TransformerConfig, dict(positions="relative", first_position=1), "first_position"),
    (UniversalConfig, dict(adaptive_steps=False, halting_bias=0.5), "halting_bias"),
    (DataConfig, dict(train_source=None, train_target=None), "train_source"),
    (DataConfig, dict(train_source="a,b"), "train_target"),
    (DataConfig, dict(dev_source="a"), "dev_target"),
    (DataConfig, dict(dev_source="a", dev_target="b", dev_file="c"), "dev_file"),
    (DataConfig, dict(target_vocabulary="a"), "target_vocabulary"),
    (DataConfig, dict(vocabulary="a", vocabulary_size=9), "vocabulary_size"),
    (DataConfig, dict(reverse=True), "reverse"),
    (TrainingConfig, dict(precision="float16"), "precision"),
    (TrainingConfig, dict(stop_metric="bleu", validation_time_share=0.0), "validation_time_share"),
    (TrainingConfig, dict(schedule="cosine", warmup_steps=9, train_steps=9), "warmup_steps"),
    (TrainingConfig, dict(stop_patience=5), "stop_patience"),
    (SearchConfig, dict(num_translations=5), "num_translations"),
    (SearchConfig, dict(temperature=0.5), "temperature"),
    (SearchConfig, dict(method="sampling", early_stop="first"), "early_stop"),
    (SearchConfig, dict(min_length=9, max_length=8), "min_length"),
]


@pytest.mark.parametrize(("kind", "changes", "name"), MISTAKES)
def test_mistakes_are_one_line_that_names_the_field(kind, changes, name):
    valid = SMALLEST.get(kind, dict(number=9, share=0.5))
    kind(**valid)
    with pytest.raises(InputError, match=name) as caught:
        kind(**valid | changes)
    assert "\n" not in str(caught.value)


def test_options_without_effect_are_reset_beside_a_change():
    training = TrainingConfig(stop_metric="bleu", stop_patience=5)
    assert training.replace(stop_metric=None) == TrainingConfig()
    assert SearchConfig(early_stop="first").replace(method="sampling").early_stop == "exact"
    with pytest.raises(InputError, match="stop_patience has no effect"):
        training.replace(stop_metric=None, stop_patience=3)


def test_corpora_are_counted():
    files = dict(train_source="a.en, b.en", train_target="a.de,b.de", train_file="c.tsv")
    data = DataConfig(**files, dataset="d/en-de")
    assert data.num_corpora == 4
    files = dict(train_source="a.en*3,b.en", train_target="a.de*3,b*de", dataset="d/en-de*2")
    assert DataConfig(**files).num_corpora == 6
    assert DataConfig(train_file="a.tsv*0,b.tsv").num_corpora == 2
    with pytest.raises(InputError, match="the same number of files"):
        DataConfig(**files | {"train_target": "a.de,b.de"})


FITTING = [  # missing options are such that they fit, such as a beam larger than the default
    {"num_translations": 10}, {"top_k": 5}, {"method": "sampling", "num_translations": 2000},
]  # fmt: skip
WRONG = {
    "num_translations 10 is larger than beam_size": {"num_translations": 10, "beam_size": 4},
    "num_translations must be at least 1": {"num_translations": 0},
    "beam_size must be a whole number": {"beam_size": "two"},
    "beam_size must be at most 1000": {"num_translations": 2000},
    "early_stop has no effect": {"top_k": 5, "early_stop": "first"},
}


def test_check_options_assumes_that_missing_options_fit():
    for options in FITTING:
        check_options(options)
    for message, options in WRONG.items():
        with pytest.raises(InputError, match=message):
            check_options(options)
