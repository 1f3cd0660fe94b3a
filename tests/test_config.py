"""Configurations: the paper's numbers, declared ranges, a round trip, a line for each mistake."""

import dataclasses
import typing

import numpy as np
import pytest

from keras_transformer.config import (
    TRAINING_PRESETS,
    DataConfig,
    JsonConfig,
    ModelConfig,
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


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("base", (6, 512, 2048, 8, 0.1)),  # Vaswani et al. 2017, Table 3
        ("big", (6, 1024, 4096, 16, 0.3)),
        ("tiny", (4, 128, 256, 4, 0.3)),
        ("small", (6, 512, 1024, 4, 0.3)),
    ],
)
def test_presets_match_the_paper(name, sizes):
    config = TransformerConfig.preset(name, vocabulary_size=37_000)
    fields = "num_layers", "model_dim", "feed_forward_dim", "num_heads", "dropout"
    assert tuple(getattr(config, field) for field in fields) == sizes
    assert config.vocabulary_size == 37_000
    changed = config.replace(dropout=0.2)
    assert TransformerConfig.preset(name, vocabulary_size=37_000, dropout=0.2) == changed


def test_defaults_match_the_paper():
    config = TransformerConfig(vocabulary_size=37_000)
    assert config == TransformerConfig.preset("base", vocabulary_size=37_000)
    assert (config.norm_position, config.positions) == ("post", "sinusoidal")
    assert config.share_embeddings == "all"
    assert config.attention_dropout == config.feed_forward_dropout == 0
    training = TrainingConfig()
    assert (training.label_smoothing, training.warmup_steps) == (0.1, 4000)
    assert (training.train_steps, training.batch_tokens) == (100_000, 25_000)
    base, big = TrainingConfig.preset("base"), TrainingConfig.preset("big")
    assert (base.train_steps, base.average_last) == (100_000, 5)
    assert (big.train_steps, big.average_last) == (300_000, 20)
    search = SearchConfig()
    assert (search.beam_size, search.length_penalty, search.max_extra_length) == (4, 0.6, 50)


@pytest.mark.parametrize("kind", [ModelConfig, TransformerConfig, TrainingConfig])
def test_unknown_preset_error_lists_presets(kind):
    presets = TRAINING_PRESETS if kind is TrainingConfig else kind.presets()
    assert {"tiny", "small", "base", "big"} <= set(presets)
    message = f"^preset must be one of {', '.join(presets)}, got 'huge'$"
    with pytest.raises(InputError, match=message):
        kind.preset("huge")
    for name in ModelConfig.presets():  # each has a training preset
        assert TrainingConfig.preset(name).train_steps > 0


# What all configurations share


@pytest.mark.parametrize(
    "config",
    [
        TransformerConfig(vocabulary_size=9, target_vocabulary_size=8, share_embeddings="none"),
        DataConfig(dataset="wmt14_translate/de-en", share_vocabulary=False),
        TrainingConfig(learning_rate=0.002, precision="mixed_bfloat16"),
        SearchConfig(length_penalty=0.0, banned_phrases=("a", "b c")),
    ],
)
def test_json_round_trip(config):
    assert type(config).from_json(config.to_json()) == config


@pytest.mark.parametrize(("kind", "values"), SMALLEST.items())
def test_unknown_field_is_rejected(kind, values):
    config = kind(**values)
    assert config.replace() == config
    for use in (lambda **others: kind.from_dict(values | others), config.replace):
        with pytest.raises(InputError, match=rf"{kind.__name__} has no field colour; it has "):
            use(colour=3)


def test_paths_get_the_home_folder_and_must_be_on_this_machine(monkeypatch):
    monkeypatch.setenv("HOME", "/home/mine")
    data = DataConfig(train_source="~/a.en, b.en", train_target="~/a.de,b.de")
    assert data.train_source == "/home/mine/a.en,b.en"
    with pytest.raises(InputError, match="s3://bucket/v is not on this machine"):
        data.replace(vocabulary="s3://bucket/v")


_VALUES = [
    True, 1, 0.5, float("nan"), "no", None, ("a",), ["a"], (1,), object(),
    np.int64(1), np.float32(0.5), np.float64("nan"), np.bool_(True),
]  # fmt: skip
_FITTING = {  # the values above that a field of a type takes
    "bool": [0, 13],
    "int": [1, 10],
    "float": [1, 2, 10, 11],
    "str": [4],
    "tuple[str, ...]": [6, 7],  # lists are what JSON has
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
            assert field == (tuple(value) if isinstance(value, list) else value)
            assert type(field) in (bool, int, float, str, tuple, type(None))
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
        "    words: tuple[str, ...] = option((), 'Words.')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from annotated import Annotated

    assert Annotated(size=3, words=["a"]).words == ("a",)
    with pytest.raises(InputError, match="size must be a whole number, got 'three'"):
        Annotated(size="three")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranges(JsonConfig):
    number: int = option(3, "", minimum=1, maximum=9, is_odd=True)
    share: float | None = option(None, "", above=0, below=1)
    words: tuple[str, ...] = option((), "", maximum=2)


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


# Mistakes

ERRORS = {
    Ranges: [
        (dict(number=0), "number must be at least 1, got 0$"),
        (dict(number=10), "number must be at most 9, got 10$"),
        (dict(number=4), "number must be odd, got 4; use 3 or 5$"),
        (dict(share=0.0), "share must be above 0, got 0.0$"),
        (dict(share=1), "share must be below 1, got 1$"),
        (dict(words=("a", "b", "c")), "the number of words must be at most 2, got 3$"),
    ],
    TransformerConfig: [
        (dict(positions="rope"), "positions must be one of sinusoidal, concatenated, halves, "),
        (dict(positions="rotary", key_dim=5), "key_dim must be even for rotary positions, got 5"),
        (
            dict(positions="learned", max_positions=64, first_position=64),
            "first_position must be below max_positions 64, got 64",
        ),
        (dict(num_heads=3), "model_dim 512 is not divisible by num_heads 3"),
        (dict(model_dim=15, num_heads=5), "model_dim must be even for sinusoidal pos.*, got 15"),
        (dict(target_vocabulary_size=20), "share_embeddings 'all' needs one vocabulary"),
        (dict(max_relative_distance=8), "max_relative_distance .* sinusoidal; .* to relative$"),
        (dict(max_positions=99), "max_positions cannot be combined with positions sinusoidal"),
        (dict(share_positions=False), "share_positions cannot be .* sinusoidal; .* to learned$"),
        (dict(positions="rotary", first_position=1), "first_position cannot be combined with pos"),
    ],
    UniversalConfig: [
        (dict(adaptive_steps=False, halting_bias=0.5), "halting_bias .* adaptive_steps False; rem"),
        (dict(adaptive_steps=False, ponder_weight=0.1), "ponder_weight cannot be combined with ad"),
    ],
    DataConfig: [
        (dict(train_source=None, train_target=None), "no training data: give train_source and"),
        (dict(train_target=None), "train_source and train_target must name the same number of fil"),
        (dict(train_source="a,b"), "train_source and train_target must name the same number of fi"),
        (dict(subword_sampling=0.1, vocabulary_kind="word"), "subword_sampling needs .*, got word"),
        (
            dict(subword_sampling=0.1, source_level="char", target_level="word"),
            "subword_sampling needs vocabulary_kind bpe or unigram",
        ),
        (dict(dev_source="a"), "dev_source and dev_target must be given together; one is missing"),
        (dict(test_target="a"), "test_source and test_target must be given together"),
        (dict(dev_source="a,b", dev_target="c"), "dev_source and dev_target must name the same"),
        (dict(dev_source="a", dev_target="b", dev_file="c"), "dev_file cannot be combined"),
        (dict(target_vocabulary="a"), "target_vocabulary has no effect without vocabulary; give"),
        (dict(vocabulary="a", target_level="word"), "target_level cannot .* vocabulary a; remove"),
        (dict(vocabulary="a", vocabulary_size=9), "vocabulary_size cannot .* vocabulary a; remove"),
        (dict(reverse=True), "reverse has no effect without dataset; give dataset too, or remove"),
    ],
    TrainingConfig: [
        (dict(precision="float16"), "precision must be one of float32, mixed_bfloat16, "),
        (dict(checkpoint_steps=6, validation_steps=4), "validation_steps 4 must divide .*_steps 6"),
        (dict(average_last=6, keep_checkpoints=5), "average_last 6 is larger than keep_checkpoint"),
        (dict(average_best=2, keep_best=1), "average_best 2 is larger than keep_best 1"),
        (dict(average_best=1, validation_time_share=0.0), "average_best .* validation_time_share"),
        (dict(stop_metric="bleu", validation_time_share=0.0), "bleu .* validation_time_share is 0"),
        (
            dict(schedule="cosine", warmup_steps=9, train_steps=9),
            "schedule cosine needs steps after its warm-up, but warmup_steps is 9 of 9",
        ),
        (
            dict(stop_patience=5),
            "stop_patience has no effect without stop_metric; give stop_metric",
        ),
        (dict(optimizer="adamw"), "optimizer adamw needs weight_decay above 0, for example"),
        (dict(schedule="inverse_sqrt"), "schedule inverse_sqrt needs learning_rate, its peak"),
    ],
    SearchConfig: [
        (dict(banned_phrases=["a", " "]), r"banned_phrases must not be blank, got \('a', ' '\)"),
        (dict(num_translations=5), "num_translations 5 is larger than beam_size 4"),
        (dict(temperature=0.5), "temperature cannot be combined with method beam"),
        (dict(method="sampling", early_stop="first"), "early_stop cannot be combined with method"),
        (dict(min_length=9, max_length=8), "min_length 9 is larger than max_length 8"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "changes", "message"), [(kind, *row) for kind, rows in ERRORS.items() for row in rows]
)
def test_mistakes_are_one_clear_line(kind, changes, message):
    valid = SMALLEST.get(kind, dict(number=9, share=0.5, words=("a", "b")))
    kind(**valid)
    with pytest.raises(InputError, match=f"^{message}") as caught:
        kind(**valid | changes)
    assert "\n" not in str(caught.value)


def test_options_without_effect_are_reset_beside_a_change():
    training = TrainingConfig(stop_metric="bleu", stop_patience=5)
    assert training.replace(stop_metric=None) == TrainingConfig()
    assert SearchConfig(early_stop="first").replace(method="sampling").early_stop == "exact"
    with pytest.raises(InputError, match=r"^stop_patience has no effect without"):
        training.replace(stop_metric=None, stop_patience=3)


@pytest.mark.parametrize(
    "changes",
    [
        dict(num_heads=3, key_dim=64, value_dim=64),
        dict(model_dim=15, num_heads=5, positions="learned"),
        dict(model_dim=15, num_heads=5, positions="relative"),
        dict(encoder_attention_window=1, decoder_attention_window=65),
        dict(target_vocabulary_size=20, share_embeddings="target"),
        dict(dropout=0.0, norm_epsilon=0.0),
    ],
)
def test_unusual_models_are_valid(changes):
    TransformerConfig(**dict(vocabulary_size=10) | changes)


def test_corpora_are_counted():
    files = dict(train_source="a.en, b.en", train_target="a.de,b.de", train_file="c.tsv")
    data = DataConfig(**files, dataset="d/en-de")
    assert data.num_corpora == 4
    files = dict(train_source="a.en*3,b.en", train_target="a.de*3,b*de", dataset="d/en-de*2")
    assert DataConfig(**files).num_corpora == 6
    with pytest.raises(InputError, match="the same number of files"):
        DataConfig(**files | {"train_target": "a.de,b.de"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_translations": 10}, None),  # of a run whose beam is larger than the default
        ({"top_k": 5}, None),
        ({"method": "sampling", "num_translations": 2000}, None),
        ({"num_translations": 10, "beam_size": 4}, "num_translations 10 is larger than beam_size"),
        ({"num_translations": 0}, "num_translations must be at least 1"),
        ({"beam_size": "two"}, "beam_size must be a whole number"),
        ({"num_translations": 2000}, "beam_size must be at most 1000"),
        ({"top_k": 5, "early_stop": "first"}, "early_stop cannot be combined with method sampling"),
    ],
)
def test_check_options_assumes_that_missing_options_fit(options, message):
    if message is None:
        check_options(options)
        return
    with pytest.raises(InputError, match=message):
        check_options(options)
