"""The SavedModel: its signatures, where it runs, and how a version is published."""

import functools
import json
import pathlib
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers import n_best, names_in

from keras_transformer import Translator
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.inference import ModelFunctions, XlaShapes
from keras_transformer.loading import open_model
from keras_transformer.serving import export as export_module
from keras_transformer.serving.export import export, load_exported
from keras_transformer.serving.model_folder import read_model_card

_SERVER_FILES = ["batching_parameters.txt", "models.config", "monitoring.config", "serve.sh"]


@pytest.mark.slow
def test_loaded_export_matches_translator(exported, two_best):
    sentences = ["two two", "", "cat sun", "hello tree nonsense"] * 3
    loaded = load_exported(exported)
    for options in ({}, dict(max_length=[2, None, 3] * 4, prefix=["", "", "木"] * 4)):
        found = loaded.translate(sentences, **options)
        ours = two_best.translate(sentences, **options)
        for theirs, mine in zip(n_best(found), n_best(ours), strict=True):
            assert theirs.text == mine.text
            assert theirs.score == pytest.approx(mine.score, rel=1e-5)
    texts = [best.text for best in ours]
    assert loaded.align(sentences, texts) == two_best.align(sentences, texts)
    pairs = (each.score(sentences, texts) for each in (loaded, two_best))
    for theirs, mine in zip(*pairs, strict=True):
        np.testing.assert_allclose(theirs.token_scores, mine.token_scores, rtol=1e-4)


@pytest.fixture(scope="module")
def signatures(exported):
    return tf.saved_model.load(str(exported)).signatures


@pytest.fixture
def export_quickly(two_best, signatures, exported, monkeypatch):
    """Exports the functions of `exported`, without tracing, writing and checking them again."""

    def save(module, path, **options):
        shutil.copytree(exported, path, dirs_exist_ok=True)

    monkeypatch.setattr(ModelFunctions, "with_stored_projection", lambda self: self)
    monkeypatch.setattr(ModelFunctions, "signatures", lambda self: signatures)
    monkeypatch.setattr(tf.saved_model, "save", save)
    monkeypatch.setattr(export_module, "compare_answers", lambda *_: None)
    return functools.partial(export, two_best)


def test_version_appears_after_its_check_or_never(export_quickly, tmp_path, monkeypatch):
    seen = []  # while an export is checked

    def check(version, *_):
        assert (version / "saved_model.pb").exists()
        seen.extend(names_in(tmp_path / "words"))
        if len(seen) > 5:
            raise InputError("the answers differ")

    monkeypatch.setattr(export_module, "compare_answers", check)
    assert export_quickly(tmp_path / "words") == tmp_path / "words" / "1"
    names = names_in(tmp_path / "words")
    assert names == sorted(["1", *_SERVER_FILES]) and "1" not in seen
    assert 'name: "words"' in (tmp_path / "words" / "models.config").read_text()
    with pytest.raises(InputError, match="the answers differ"):
        export_quickly(tmp_path / "words")
    assert names_in(tmp_path / "words") == names
    for options, message in (
        (dict(version=1), "must be higher than 1"),
        (dict(name="a b"), "name"),
        (dict(name="words"), "the answers differ"),
        (dict(name="others"), "models.config has no model 'others'; remove --name"),
    ):
        with pytest.raises(InputError, match=message):
            export_quickly(tmp_path / "words", **options)


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        tf.errors.ResourceExhaustedError(None, None, "variables.data; No space left on device"),
    ],
)
def test_failed_write_leaves_nothing_behind(export_quickly, tmp_path, monkeypatch, error):
    def save(module, path, **options):
        pathlib.Path(path, "saved_model.pb").touch()
        raise error

    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="cannot write the export"):
        export_quickly(tmp_path / "file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"
    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(InputError, match=r"cannot write the export to .*1 .*No space left"):
        export_quickly(tmp_path / "new")
    assert names_in(tmp_path) == ["file", "new"] and names_in(tmp_path / "new") == []


def test_missing_serving_package_is_named(two_best, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorflow_serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorflow_serving", None)
    with pytest.raises(InputError, match=r"package tensorflow_serving.*'.\[serving\]'"):
        export(two_best, tmp_path)


def test_damaged_and_other_saved_models_are_rejected(exported, tmp_path):
    for name in ("saved_model.pb", "variables/variables.index"):
        version = shutil.copytree(exported, tmp_path / name / "1")
        content = (version / name).read_bytes()
        (version / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(InputError, match=r"the SavedModel in .*1 cannot be read \(.+\)"):
            load_exported(version)
    double = tf.function(lambda x: {"y": 2.0 * x}, [tf.TensorSpec([], name="x")])
    for signatures in (None, {"serving_default": double}):
        tf.saved_model.save(tf.Module(), str(tmp_path / "other"), signatures)
        with pytest.raises(InputError, match=r"the SavedModel in .*other is not a translator"):
            load_exported(tmp_path / "other")


# For XLA two sentences together, one alone, and one that is too long for what is compiled.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "xla", "requests"),
    [
        (dict(method="sampling", temperature=2.0, top_k=9, top_p=0.95, seed=3, max_source_length=4),
         None, [["hello two cat", "", "two sun sun cat hello", "привет 木"]]),
        (dict(beam_size=2, no_repeat_ngram=1), XlaShapes((2,), (4,)),
         [["hello two cat", "house"], [""], ["cat " * 6]]),
    ],
    ids=["samples", "compiled"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::keras_transformer.sentences.SentenceWarning")
def test_other_searches_answer_as_python(trained, tmp_path, search, xla, requests):
    search = SearchConfig(num_translations=2, max_extra_length=5, **search)
    loaded = load_exported(export(Translator(*trained, search, xla=xla), tmp_path))
    translator = Translator(*trained, search)
    for texts in requests:
        ours, theirs = (n_best(each.translate(texts)) for each in (translator, loaded))
        assert list(map(str, theirs)) == list(map(str, ours))
        scores = [each.score for each in ours]
        assert [each.score for each in theirs] == pytest.approx(scores, rel=1e-4, abs=1e-5)


def test_model_card_describes_the_export(exported, two_best):
    card = read_model_card(exported)
    assert card["model"] == two_best.model.config.to_dict()
    assert card["search"] == two_best.search.to_dict()
    assert card["precision"] == "float32"
    assert card["signatures"]["serving_default"] == {
        "inputs": ["text"],
        "outputs": ["translations", "scores", "source_cut"],
    }
    assert {"tensorflow", "tensorflow-text", "keras"} < card["packages"].keys()


def test_run_is_described_without_folders(run_dir):
    model = open_model(run_dir, "average")
    training = model.describe()
    assert training["settings"] == model.configs.training.to_dict()
    assert training["task"]["name"] == "translation" and training["cost"]["step"] == 300
    assert "/" not in json.dumps(training)
