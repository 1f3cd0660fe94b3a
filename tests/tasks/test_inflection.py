"""Inflection: files, overlap categories, and a run by command on 400 Georgian words."""

import gzip
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, DataConfig, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.models import build_model
from keras_transformer.tasks import InflectionTask
from keras_transformer.tasks.inflection import InflectionFile
from keras_transformer.training.prepare import make_vocabularies

DATA = pathlib.Path(__file__).parents[1] / "data" / "inflection"


def test_file_gives_lemmas_with_features_and_forms(tmp_path):
    path = tmp_path / "deu.gz"
    path.write_bytes(gzip.compress(b"Hund\tHundes\tN;GEN;SG\n\ngo out\twent out\tV;PST\n"))
    assert list(InflectionFile(path)) == [
        ("Hund ;N ;GEN ;SG", "Hundes"), ("go out ;V ;PST", "went out"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["Hund\tHundes", "Hund Hundes N", "a\t\tN", "a\tb\tN\tX", "a;\tb\tN", "Hund\tN;GEN;SG\tHundes"],
)
def test_malformed_line_is_reported(tmp_path, line):
    path = tmp_path / "file"
    path.write_text(f"a\tb\tN\n{line}\n")
    with pytest.raises(InputError, match="line 2: expected lemma, tab, form, tab and features"):
        list(InflectionFile(path))


def test_tokens_are_characters_and_features():
    task = InflectionTask()
    data = DataConfig(train_file=str(DATA / "kat.train"), **task.default_data)
    source, target = make_vocabularies(data, task)
    assert source is target
    (ids,) = source.encode(["სუფლე ;N ;ERG ;SG"])
    assert source.pieces(ids) == [*"▁სუფლე", "▁;N", "▁;ERG", "▁;SG"]


def test_features_have_no_positions():
    task = InflectionTask()
    data = DataConfig(train_file=str(DATA / "kat.train"), **task.default_data)
    vocabulary, _ = make_vocabularies(data, task)
    sizes = dict(num_layers=1, model_dim=8, feed_forward_dim=8, num_heads=2)
    config = TransformerConfig(vocabulary_size=vocabulary.size, **sizes)
    with_features = task.model_config(config, vocabulary)
    assert with_features.unpositioned_tokens == len(task.symbols(task.pair_sources(data, "train")))
    assert InflectionTask(feature_positions=True).model_config(config, vocabulary) is config
    rotary = config.replace(positions="rotary")
    assert task.model_config(rotary, vocabulary) is rotary
    sources = ["სუ ;N ;ERG ;SG", "სუ ;SG ;N ;ERG", "სუ ;N ;SG", "უს ;N ;SG"]
    rows = [[*ids, EOS_ID] for ids in vocabulary.encode(sources)]
    padded = tf.ragged.constant(rows).to_tensor(PAD_ID)
    inputs = {"source": padded, "target": tf.fill([4, 2], BOS_ID)}
    model = build_model(with_features)
    assert model._source_positions(padded, 0).numpy()[0].tolist() == [1, 2, 3, 0, 0, 0, 4]
    first, second, *others = np.asarray(model.call(inputs))
    np.testing.assert_allclose(first, second, atol=1e-5)
    assert all(np.abs(first - other).max() > 1e-3 for other in others)
    first, second, *_ = np.asarray(build_model(config).call(inputs))
    assert np.abs(first - second).max() > 1e-3


def test_read_text_accepts_the_columns_of_a_file():
    texts = ["go out\tV;PST", "go out ;V ;PST", "go out\t V ; PST"]
    found = InflectionTask().read_text(tf.constant(texts)).numpy().tolist()
    assert found == [b"go out ;V ;PST"] * 3
    texts = ["go\t;V;;PST;", "go ;V ; ;PST ;"]
    found = InflectionTask().read_text(tf.constant(texts)).numpy().tolist()
    assert found == [b"go ;V ;PST"] * 2


def test_columns_are_read_without_spaces_and_empty_features(tmp_path):
    (tmp_path / "file").write_text(" Hund \t Hundes \tN;;SG;\n")
    assert list(InflectionFile(tmp_path / "file")) == [("Hund ;N ;SG", "Hundes")]


def test_forms_are_compared_as_the_shared_task_does():
    task, composed, decomposed = InflectionTask(), "\u00e9t\u00e9", "e\u0301te\u0301"
    pair = ([composed], [decomposed], ["a ;N"])
    assert task.evaluate(*pair)["exact_match"] == task.measure(*pair) == 100
    assert task.evaluate_each(*pair)[0]["exact_match"] == 1
    assert task.evaluate_n_best([["x", composed]], *pair[1:]) == {"exact_match": 100}


def test_answers_are_read_from_a_file_like_the_data(tmp_path):
    (tmp_path / "answers").write_text("Hund\tHundes\tN;GEN\nHunde\n\n")
    assert InflectionTask().read_answers(tmp_path / "answers") == ["Hundes", "Hunde", ""]


@pytest.mark.parametrize("values", [{"share_vocabulary": False}, {"target_level": "bpe"}], ids=str)
def test_inflection_needs_one_vocabulary(values):
    with pytest.raises(InputError, match="one vocabulary for both sides, in which each feature"):
        InflectionTask().check_data(
            DataConfig(train_file="a", **InflectionTask.default_data | values)
        )


def test_exact_match_by_overlap(tmp_path):
    path = tmp_path / "train"
    path.write_text("walk\twalked\tV;PST\nsing\tsings\tV;SG;3\n")
    task = InflectionTask(overlap_with=str(path))
    sources = ["walk ;V ;SG ;3", "walk ;V ;PTCP", "go ;V ;PST", "go ;N ;PL", "see ;N ;PL"]
    results = task.evaluate(
        ["walks", "x", "went", "goes", "x"], ["walks", "walking", "went", "goes", "sees"], sources
    )
    assert results == {
        "exact_match": 60.0,
        "categories": {
            "both": {"exact_match": 100.0, "count": 1},
            "feats": {"exact_match": 100.0, "count": 1},
            "lemma": {"exact_match": 0.0, "count": 1},
            "unseen": {"exact_match": 50.0, "count": 2},
        },
    }
    assert task.report(results)["  unseen"] == "50.00 % of 2"
    as_written = [source.replace(" ;", "\t", 1).replace(" ;", ";") for source in sources]
    assert task.categories(as_written) == task.categories(sources)
    assert task.categories(["", " go\tV;PST "]) == ["unseen", "feats"]
    assert InflectionTask().evaluate(["a"], ["a"], ["a ;N"])["categories"] == {}


@pytest.mark.slow
def test_inflection_by_command(call, tmp_path):
    run, train = f"--run_dir={tmp_path}", f"--train_file={DATA / 'kat.train'}"
    sizes = ["--num_layers=1", "--model_dim=32", "--feed_forward_dim=64", "--num_heads=2"]
    steps = ["--train_steps=20", "--checkpoint_steps=20", "--warmup_steps=5", "--batch_tokens=500"]
    dev = [f"--dev_file={DATA / 'kat.test'}", f"--test_file={DATA / 'kat.test'}"]
    result = call("train.py", run, "--task=inflection", train, *dev, *sizes, *steps)
    assert result.code == 0, result.err
    assert "exact match" in result.out
    model = json.loads((tmp_path / "config.json").read_text())["model"]
    assert model["unpositioned_tokens"] > 10
    overlap = f"--overlap_with={DATA / 'kat.train'}"
    results = json.loads(call("evaluate.py", run, overlap, "--json").out)
    counts = {name: part["count"] for name, part in results["categories"].items()}
    assert counts.keys() <= {"both", "lemma", "feats", "unseen"}
    assert sum(counts.values()) == results["sentences"]
    answers = call("translate.py", run, stdin="სუფლე\tN;ERG;SG\nსუფლე ;N ;ERG ;SG\n".encode()).out
    assert len(set(answers.splitlines())) == 1
