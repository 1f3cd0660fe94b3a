"""A run that starts from another one and adds tokens: new pieces of its text, and tags."""

import numpy as np
import pytest
import tiny_run

from keras_transformer import Translator
from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError
from keras_transformer.interop import import_run, read_model
from keras_transformer.models import build_model
from keras_transformer.text import learn_vocabulary
from keras_transformer.training.prepare import extend_vocabularies
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import fine_tuning_configs, new_configs
from keras_transformer.training.trainer import train

TAGS = ["<de>", "<fr>"]
FILES = {"train_source": "a", "train_target": "b"}
OPTIONS = {
    "train_steps": 200, "checkpoint_steps": 200, "batch_tokens": 256, "dropout": 0.0,
    "average_last": 1, "learning_rate": 0.02, "warmup_steps": 10,
}  # fmt: skip


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> RunDirectory:
    """A run of characters a to f, which nothing has trained."""
    run = RunDirectory(tmp_path_factory.mktemp("origin") / "run")
    configs = tiny_run.RunConfigs(
        tiny_run.model_config(dropout=0.0),
        tiny_run.DATA.replace(vocabulary_kind="char"),
        tiny_run.training_config(),
    )
    vocabulary = tiny_run.make_vocabulary()
    run.write(configs, vocabulary, vocabulary, build_model(configs.model))
    return run


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[str, str]:
    """Text whose target names the source's tag; source and target have a new letter."""
    folder = tmp_path_factory.mktemp("text")
    words = tiny_run.text(100, seed=5).source
    tags = [TAGS[len(word) % 2] for word in words]
    sources = [f"{tag} {word}Ж" for tag, word in zip(tags, words, strict=True)]
    for name, lines in (("source", sources), ("target", [f"Ж{tag}" for tag in tags])):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(folder / "source"), str(folder / "target")


@pytest.fixture(scope="module")
def tuned(origin, files, tmp_path_factory) -> RunDirectory:
    run = RunDirectory.create(
        tmp_path_factory.mktemp("tuned") / "run",
        train=files,
        start_from=origin.path,
        vocabulary="extend",
        add_tokens=",".join(TAGS),
        **OPTIONS,
    )
    train(run, show=False)
    return run


def test_run_begins_with_old_rows_and_learns_the_tags(origin, tuned):
    (old, _), (new, _) = origin.vocabularies(), tuned.vocabularies()
    assert new.pieces(range(old.size, new.size)) == ["Ж", *TAGS]
    words = tiny_run.text(20, seed=9).source
    assert new.encode(words) == old.encode(words)
    assert tuned.configs().model.vocabulary_size == new.size == old.size + 3

    start, before = tuned.load_model("step-0"), origin.load_model()
    table, rows = np.array(before.source_embedding.table), np.array(start.source_embedding.table)
    np.testing.assert_array_equal(rows[: old.size], table)
    assert np.array_equal(rows[old.size], table[1])  # the unknown token's
    de = old.encode(["<de>"])[0][1:]
    np.testing.assert_allclose(rows[old.size + 1], table[de].mean(axis=0), rtol=1e-5)
    ids = np.array([[*old.encode(["abc"])[0], 3]])
    inputs = {"source": ids, "target": ids}
    np.testing.assert_array_equal(start(inputs)[..., : old.size], before(inputs))

    translator = Translator(tuned.load_model(), *tuned.vocabularies())
    found = translator.translate([f"{tag} {word}Ж" for word in words for tag in TAGS])
    assert [each.text for each in found] == ["Ж<de>", "Ж<fr>"] * len(words)


def test_later_run_keeps_added_tokens_and_adds_none(tuned, files, tmp_path):
    again = RunDirectory.create(tmp_path / "again", train=files, start_from=tuned.path, **OPTIONS)
    data = again.configs().corpora
    assert (data.vocabulary, data.add_tokens, data.vocabulary_kind) == (None, None, "char")
    assert again.vocabularies()[0].fingerprint == tuned.vocabularies()[0].fingerprint
    more = RunDirectory.create(
        tmp_path / "more", train=files, start_from=tuned.path, add_tokens="<nl>", **OPTIONS
    )
    assert more.vocabularies()[0].size == again.vocabularies()[0].size + 1


def test_each_side_gets_the_tokens_of_its_text(origin, files, tmp_path):
    source, target = (learn_vocabulary([text], size=50, kind="char") for text in ("abc", "abcdef"))
    run = RunDirectory(tmp_path / "two")
    model = tiny_run.model_config(
        vocabulary_size=source.size, target_vocabulary_size=target.size, share_embeddings="target"
    )
    configs = origin.configs()._replace(model=model)
    run.write(configs, source, target, build_model(model))
    new = RunDirectory.create(
        tmp_path / "new", train=files, start_from=run.path, vocabulary="extend", **OPTIONS
    )
    added = [
        set(after.pieces(range(before.size, after.size)))
        for before, after in zip((source, target), new.vocabularies(), strict=True)
    ]
    assert added == [set("<>rЖdef"), set("<>rЖ")]
    model = new.configs().model
    assert model.vocabulary_size == source.size + 7
    assert model.target_vocabulary_size == target.size + 4


def test_sides_of_one_table_that_cut_text_differently_get_the_same_tokens(
    files, sample_model, tmp_path
):
    """As of OPUS-MT: one list of tokens and a SentencePiece model for each side."""
    origin = import_run(read_model(sample_model("hf_marian")), tmp_path / "origin", {})
    new = RunDirectory.create(
        tmp_path / "new", train=files, start_from=origin.path, vocabulary="extend",
        add_tokens=",".join(TAGS), **OPTIONS,
    )  # fmt: skip
    model, (source, target) = new.configs().model, new.vocabularies()
    assert (model.vocabulary_size, model.target_vocabulary_size) == (source.size, None)
    assert source.fingerprint != target.fingerprint
    first = origin.vocabularies()[0].size
    pieces = source.pieces(range(first, source.size))
    assert pieces == target.pieces(range(first, target.size))
    assert {"Ж", *TAGS} <= set(pieces)


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_new_tokens_are_those_of_text_as_the_vocabulary_normalizes_it(kind, tmp_path):
    old = learn_vocabulary(["a dog"], kind=kind, normalization="nfkc")
    for name in FILES.values():
        (tmp_path / name).write_text("½ ﬁne\n", encoding="utf-8")
    paths = {option: str(tmp_path / name) for option, name in FILES.items()}
    new, _ = extend_vocabularies(DataConfig(**paths, vocabulary="extend"), (old, old))
    (ids,) = new.encode(["½ ﬁne"])
    assert "".join(new.pieces(ids)) == "▁1⁄2▁fine"
    assert min(ids) >= old.size


def test_new_run_adds_tags_to_what_it_learns(files, tmp_path):
    options = {"num_layers": 1, "model_dim": 16, "vocabulary_kind": "char", **OPTIONS}
    run = RunDirectory.create(tmp_path / "run", train=files, add_tokens="<de>,<fr>", **options)
    vocabulary, _ = run.vocabularies()
    assert vocabulary.pieces([vocabulary.size - 2, vocabulary.size - 1]) == TAGS
    assert run.configs().model.vocabulary_size == vocabulary.size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(add_tokens="<de>", lora_rank=4), "--lora_rank=4 .* rows of new .* or --add_tokens"),
        (
            dict(vocabulary="extend", freeze="encoder,target_embedding"),
            "--freeze=target_embedding would leave the rows .* or --vocabulary=extend",
        ),
        (dict(vocabulary="extend", vocabulary_kind="bpe"), "--vocabulary_kind .* --start_from"),
        (dict(vocabulary="other.model"), "--vocabulary .* --start_from.* add tokens with --vocab"),
    ],
)
def test_impossible_fine_tuning_is_rejected(origin, options, message):
    with pytest.raises(InputError, match=message):
        fine_tuning_configs(origin.configs(), "origin", FILES | options)


def test_new_tokens_need_a_run_to_start_from_and_are_not_in_its_vocabulary(files):
    with pytest.raises(InputError, match="--vocabulary=extend needs --start_from with the run"):
        new_configs(FILES | {"vocabulary": "extend"})
    vocabulary = learn_vocabulary(["abc abd"], size=10, kind="char")
    text = dict(zip(FILES, files, strict=True))
    for tokens in ("<de>,<de>", "<unk>"):
        data = DataConfig(**text, vocabulary="extend", add_tokens=tokens)
        with pytest.raises(InputError, match="is a token of the vocabulary already; do not add it"):
            extend_vocabularies(data, (vocabulary, vocabulary))
