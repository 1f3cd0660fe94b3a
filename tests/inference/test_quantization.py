"""Weights in fewer bits: nearly the same probabilities, the same translations, smaller exports."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator
from keras_transformer.inference.quantization import in_precision
from keras_transformer.models import Ensemble
from keras_transformer.serving import export, load_exported

SEARCH = SearchConfig(max_source_length=12, max_extra_length=5)
SENTENCES = ["hello two cat", "sun", "tree house tree sun", ""]


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.05), ("int8", 0.02)])
def test_translations_stay_and_probabilities_hardly_change(trained, precision, tolerance):
    model, *vocabularies = trained
    plain = Translator(model, *vocabularies, SEARCH)
    rounded = Translator(in_precision(model, precision), *vocabularies, SEARCH)
    ours, theirs = plain.translate(SENTENCES), rounded.translate(SENTENCES)
    assert [row[0].text for row in theirs] == [row[0].text for row in ours]
    np.testing.assert_allclose(
        [row[0].score for row in theirs], [row[0].score for row in ours], atol=tolerance
    )
    texts = [row[0].text for row in ours]
    scores = [each.score for each in plain.score(SENTENCES, texts)]
    others = [each.score for each in rounded.score(SENTENCES, texts)]
    np.testing.assert_allclose(others, scores, atol=5 * tolerance)
    assert others != scores
    assert rounded.align(SENTENCES, texts)[0] == plain.align(SENTENCES, texts)[0]


def test_each_weight_is_off_by_half_a_step_at_most(trained):
    model = trained[0]
    small = in_precision(model, "int8")
    for variable, value in zip(model.variables, small._restore(), strict=True):
        values = variable.numpy()
        axis = {True: 1, False: 0}[variable.path.endswith("table")]
        step = np.abs(values).max(axis=axis, keepdims=True) / 127 if values.ndim == 2 else 0.0
        assert (np.abs(values - value) <= 0.5001 * step).all()


@pytest.mark.slow
def test_an_export_in_int8_is_smaller_and_answers_as_its_translator(trained, tmp_path):
    model, *vocabularies = trained
    sizes = {}
    for precision in ("float32", "int8"):
        translator = Translator(in_precision(model, precision), *vocabularies, SEARCH)
        path = export(translator, tmp_path / precision, check_answers=False)
        sizes[precision] = (path / "variables" / "variables.data-00000-of-00001").stat().st_size
    assert sizes["int8"] < 0.5 * sizes["float32"]
    loaded = load_exported(path).translate(SENTENCES)
    assert [row[0].text for row in loaded] == [
        row[0].text for row in translator.translate(SENTENCES)
    ]


@pytest.mark.slow
def test_the_weights_of_an_ensemble_are_rounded_too(trained):
    model, *vocabularies = trained
    source = tf.constant([[5, 6, 3]])
    inputs = {"source": source, "target": tf.constant([[2, 5]])}
    both = in_precision(Ensemble([model, model]), "int8")
    alone = tf.nn.log_softmax(in_precision(model, "int8").call(inputs))
    np.testing.assert_allclose(both.call(inputs), alone, rtol=1e-4, atol=1e-4)
    constraints = dict(coverage_penalty=0.3, required_phrases="木", max_length=4)
    ours, theirs = (
        Translator(each, *vocabularies, SEARCH).translate(SENTENCES, **constraints)
        for each in (both, in_precision(model, "int8"))
    )
    assert [row[0].text for row in ours] == [row[0].text for row in theirs]
    np.testing.assert_allclose(
        [row[0].score for row in ours], [row[0].score for row in theirs], rtol=1e-3
    )


def test_an_unknown_precision_is_refused(trained):
    with pytest.raises(InputError, match="float32, bfloat16 or int8, got 'int4'"):
        in_precision(trained[0], "int4")
