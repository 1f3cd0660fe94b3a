"""What is imported goes out again: as a SavedModel and to CTranslate2, with the same answers."""

import json
import subprocess
import sys

import numpy as np
import pytest
import samples

from keras_transformer.inference import Translator
from keras_transformer.interop import import_run
from keras_transformer.interop.ctranslate2 import export_ctranslate2
from keras_transformer.serving.export import export

_PROGRAM = """
import json, sys
import tensorflow as tf, tensorflow_text
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
found = serve(text=tf.constant(json.load(sys.stdin)))
assert "keras_transformer" not in sys.modules
texts = [text.decode() for text in found["translations"][:, 0].numpy()]
print(json.dumps([texts, found["scores"][:, 0].numpy().tolist()]))
"""


@pytest.fixture
def read(shared_data):
    """Gives a sample by name."""
    return lambda name: samples.read_sample(shared_data("interop") / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", samples.NAMES)
def test_an_export_alone_translates_as_the_run_does(name, read, tmp_path):
    sample = read(name)
    run = import_run(sample.model, tmp_path / "run", {"format": samples.FORMATS[name]})
    texts = [entry["source"] for entry in sample.oracle["sentences"][:12]]
    search = run.configs().search_config({"max_extra_length": 10})
    translator = Translator(run.load_model(), *run.vocabularies(), search)
    folder = export(translator, tmp_path / "export", batch_sizes=[1], check_answers=False)
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, str(folder)],
        input=json.dumps(texts), capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found, scores = json.loads(done.stdout)
    expected = [translations[0] for translations in translator.translate(texts)]
    assert found == [each.text for each in expected]
    np.testing.assert_allclose(scores, [each.score for each in expected], atol=1e-4, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", samples.NAMES)
def test_it_is_written_for_ctranslate2_with_the_scores_of_its_own_toolkit(name, read, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the package ctranslate2")
    sample = read(name)
    source, target = sample.model.vocabularies
    folder = export_ctranslate2(sample.model.to_model(), source, target, tmp_path / "exported")
    entries = sample.oracle["sentences"]
    pieces = [
        [vocabulary.pieces(sample.ours(entry[f"{side}_ids"], side)[:-1]) for entry in entries]
        for side, vocabulary in (("source", source), ("target", target))
    ]
    translator = ctranslate2.Translator(str(folder), intra_threads=1)
    for found, entry in zip(translator.score_batch(*pieces), entries, strict=True):
        np.testing.assert_allclose(found.log_probs, entry["target_log_probs"], atol=1e-4)


@pytest.mark.parametrize("name", ["marian_post_swish_tied", "marian_embnorm_untied"])
def test_what_was_written_for_ctranslate2_is_imported_again_with_equal_weights(
    name, read, tmp_path
):
    pytest.importorskip("ctranslate2", reason="needs the package ctranslate2")
    model = read(name).model
    first = model.to_model()
    folder = export_ctranslate2(first, *model.vocabularies, tmp_path / "exported")
    again = samples.read_model(folder)
    assert again.config == first.config.replace(dropout=again.config.dropout)
    for found, expected in zip(again.to_model().weights, first.weights, strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=expected.path)
    for found, expected in zip(again.vocabularies, model.vocabularies, strict=True):
        texts = ["a man rides a horse", "zwei Hunde ?"]
        assert found.encode(texts) == expected.encode(texts)
