"""The SavedModel: its signatures, where it runs, and how a version is published."""

import functools
import pathlib
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator
from keras_transformer.inference.acceleration import in_precision
from keras_transformer.models import Ensemble
from keras_transformer.serving.export import export, load_exported
from keras_transformer.serving.versions import choose_version, read_model_card

_SERVER_FILES = ["batching_parameters.txt", "models.config", "monitoring.config"]
_BATCHES = [
    [b"hello two cat", b"sun", b"tree house tree sun"],
    ["привет мир", "木 两 房子", "شمس وقطة", "γάτα και σπίτι", "दो पेड़", "かな한글 hello"],
    [],
    [""],
    [" ", "\t\n\u3000", "sun"],
    ["two sun " * 15_000],
    ["x" * 100_001, "cat"],
    [b"\xff\xfe\x80 sun", b"cat \xe6\x9c", b"\xf0\x9f"],
    ["😀 hello 👩‍👩‍👧‍👦 two", "\x00\x01\x1f sun \x7f\u200b\ufeff", "two\r\ncat\u2028sun"],
]

# Runs where this package cannot be imported, as on a server.
_PROGRAM = """
import os, pickle, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
sys.modules["keras_transformer"] = None
import tensorflow as tf
import tensorflow_text
version, batches, answers = sys.argv[1:]
serve = tf.saved_model.load(version).signatures["serving_default"]
batches = [tf.constant(batch, tf.string) for batch in pickle.load(open(batches, "rb"))]
results = [{k: v.numpy().tolist() for k, v in serve(text=batch).items()} for batch in batches]
pickle.dump(results, open(answers, "wb"))
"""


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_process_without_package_matches_python(exported, separate_translator, tmp_path):
    batches = [
        [text if isinstance(text, bytes) else text.encode() for text in batch] for batch in _BATCHES
    ]
    (tmp_path / "batches").write_bytes(pickle.dumps(batches))
    subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, str(exported), "batches", "answers"],
        cwd=tmp_path,
        check=True,
        timeout=600,
    )
    answers = pickle.loads((tmp_path / "answers").read_bytes())
    for batch, found in zip(batches, answers, strict=True):
        ours = separate_translator(tf.constant(batch, tf.string))
        assert found["translations"] == ours["translations"].numpy().tolist()
        scores = np.reshape(found["scores"], [-1, 2])
        np.testing.assert_allclose(scores, ours["scores"], rtol=1e-6, atol=1e-6, err_msg=str(batch))
        assert np.isfinite(scores).all()


def test_serving_default_signature(exported):
    signature = tf.saved_model.load(str(exported)).signatures["serving_default"]
    assert signature.structured_input_signature == (
        (),
        {"text": tf.TensorSpec([None], tf.string, name="text")},
    )
    outputs = signature.structured_outputs
    assert {name: (spec.shape.as_list(), spec.dtype) for name, spec in outputs.items()} == {
        "translations": ([None, 2], tf.string),
        "scores": ([None, 2], tf.float32),
    }


def test_loaded_export_matches_translator(exported, separate_translator):
    sentences = ["two two", "", "cat sun", "hello tree two"] * 3
    loaded = load_exported(exported).translate(sentences, batch_size=5)
    ours = separate_translator.translate(sentences, batch_size=5)
    for theirs, mine in zip(loaded, ours, strict=True):
        assert [best.text for best in theirs] == [best.text for best in mine]
        np.testing.assert_allclose([b.score for b in theirs], [b.score for b in mine], rtol=1e-6)


@pytest.fixture
def export_quickly(separate_translator):
    """Exports without the check in a fresh process, which takes seconds."""
    return functools.partial(export, separate_translator, check_answers=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "groups of an ensemble in bfloat16"])
def test_samples_and_ensembles_match_python(trained, tmp_path, kind):
    model, *vocabularies = trained
    search = dict(num_translations=2, max_source_length=12, max_extra_length=5)
    if kind == "samples":
        search |= dict(method="sampling", temperature=2.0, top_k=9, top_p=0.95, seed=3)
    else:
        search |= dict(beam_groups=2, coverage_penalty=0.2, no_repeat_ngram=3, min_length=2)
        model = in_precision(Ensemble([model, model]), "bfloat16")
    translator = Translator(model, *vocabularies, SearchConfig(**search))
    path = export(translator, tmp_path / "other", batch_sizes=[2])  # asks a fresh process too
    sentences = ["hello two cat", "", "tree house tree sun"]
    found, expected = (each.translate(sentences) for each in (load_exported(path), translator))
    for row, expected_row in zip(found, expected, strict=True):
        assert [each.text for each in row] == [each.text for each in expected_row]
        np.testing.assert_allclose(
            [each.score for each in row], [each.score for each in expected_row], atol=1e-4
        )
    inputs = read_model_card(path)["signatures"]["translate_options"]["inputs"]
    assert ("temperature" in inputs) == (kind == "samples")


@pytest.mark.slow
def test_versions_are_counted_and_never_overwritten(export_quickly, tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "notes").mkdir()
    assert export_quickly(tmp_path) == tmp_path / "8"
    assert _names(tmp_path) == sorted(["7", "8", "notes", *_SERVER_FILES])
    with pytest.raises(InputError, match=r"8 already exists; choose another"):
        export_quickly(tmp_path, version=8)


@pytest.mark.slow
def test_folder_has_models_of_one_format(export_quickly, tmp_path):
    (tmp_path / "theirs" / "2").mkdir(parents=True)
    (tmp_path / "theirs" / "2" / "model.bin").touch()
    with pytest.raises(InputError, match=r"theirs/2 is a CTranslate2 model; give the SavedModel"):
        export_quickly(tmp_path / "theirs")
    assert _names(tmp_path / "theirs") == ["2"]
    ours = export_quickly(tmp_path / "ours")
    with pytest.raises(InputError, match=r"ours/1 is a SavedModel model; give the CTranslate2 mo"):
        choose_version(tmp_path / "ours", None, "CTranslate2")
    assert choose_version(tmp_path / "theirs", None, "CTranslate2") == 3
    (tmp_path / "ours" / "2").mkdir()
    with pytest.raises(InputError, match=f"such as {ours}$"):
        load_exported(tmp_path / "ours" / "2")


def test_files_of_a_version(exported):
    assert _names(exported) == [
        "assets", "assets.extra", "fingerprint.pb", "saved_model.pb", "variables"
    ]  # fmt: skip
    assert _names(exported / "assets.extra") == ["model_card.json", "tf_serving_warmup_requests"]
    assert _names(exported.parent) == sorted(["1", *_SERVER_FILES])


@pytest.mark.slow
def test_name_defaults_to_the_folder(export_quickly, tmp_path):
    export_quickly(tmp_path / "words")
    assert 'name: "words"' in (tmp_path / "words" / "models.config").read_text()
    export_quickly(tmp_path / "my words", name="words")
    with pytest.raises(InputError, match=r"the model's name 'my words' must consist of letters"):
        export_quickly(tmp_path / "my words")


@pytest.mark.slow
def test_failed_check_leaves_nothing_behind(export_quickly, exported, tmp_path, monkeypatch):
    def save(module, path, **options):
        shutil.copytree(exported, path, dirs_exist_ok=True)
        model = saved_model_pb2.SavedModel.FromString((exported / "saved_model.pb").read_bytes())
        model.meta_graphs[0].graph_def.node.add(name="added", op="PyFunc")
        pathlib.Path(path, "saved_model.pb").write_bytes(model.SerializeToString())

    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(InputError, match=r"the export calls Python \(PyFunc\)"):
        export_quickly(tmp_path / "new" / "words")
    assert _names(tmp_path) == []


@pytest.mark.parametrize("version", [0, -1])
def test_version_must_be_positive(export_quickly, tmp_path, version):
    with pytest.raises(InputError, match=f"version must be a positive number, got {version}"):
        export_quickly(tmp_path / "new", version)
    assert not (tmp_path / "new").exists()


def test_unfinished_version_is_invisible(export_quickly, exported, tmp_path, monkeypatch):
    seen = []

    def save(module, path, **options):
        shutil.copytree(exported, path, dirs_exist_ok=True)
        seen.extend(_names(tmp_path))

    monkeypatch.setattr(tf.saved_model, "save", save)
    assert export_quickly(tmp_path) == tmp_path / "1"
    assert len(seen) == 1
    assert not seen[0].isdigit()
    assert _names(tmp_path) == sorted(["1", *_SERVER_FILES])


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        tf.errors.ResourceExhaustedError(None, None, "variables.data; No space left on device"),
    ],
)
def test_failed_write_leaves_nothing_behind(export_quickly, exported, tmp_path, monkeypatch, error):
    def save(module, path, **options):
        shutil.copytree(exported, path, dirs_exist_ok=True)
        raise error

    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(InputError, match=r"cannot write the export to .*1 .*No space left"):
        export_quickly(tmp_path)
    assert _names(tmp_path) == []


def test_file_instead_of_folder_is_rejected(export_quickly, tmp_path):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="cannot write the export"):
        export_quickly(tmp_path / "file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_missing_version_names_one_nearby(exported, tmp_path):
    with pytest.raises(InputError, match=r"no SavedModel in .*absent.* such as .*absent/1"):
        load_exported(tmp_path / "absent")
    with pytest.raises(InputError, match=r"give the folder of one version, such as .*/1"):
        load_exported(exported.parent)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "saved_model.pb",
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
    ],
)
@pytest.mark.parametrize("keep", [0, 0.5], ids=["emptied", "cut"])
def test_damaged_saved_model_is_rejected(exported, tmp_path, name, keep):
    version = shutil.copytree(exported, tmp_path / "1")
    content = (version / name).read_bytes()
    (version / name).write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(InputError, match=r"the SavedModel in .*1 cannot be read \(.+\)"):
        load_exported(version)


def test_other_saved_models_are_rejected(tmp_path):
    class Doubler(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
        def double(self, x):
            return {"y": 2.0 * x}

    doubler = Doubler()
    tf.saved_model.save(doubler, str(tmp_path / "1"), {"serving_default": doubler.double})
    tf.saved_model.save(tf.Module(), str(tmp_path / "2"))
    for version in ("1", "2"):
        with pytest.raises(InputError, match=f"the SavedModel in .*{version} is not a translator"):
            load_exported(tmp_path / version)
