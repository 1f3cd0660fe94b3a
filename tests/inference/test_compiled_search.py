"""XLA's programs: the same translations in the smallest program that a batch fits into."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Translator
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.inference import XlaShapes
from keras_transformer.models import Ensemble
from keras_transformer.search import kv_cache_capacities

SENTENCES = ["hello two cat", "sun", "tree house tree sun", ""]


def answer(translator, sentences):
    function = translator.functions.function("serving_default")
    return function(text=tf.constant(sentences, tf.string))


def assert_same_answers(found, expected, **tolerance):
    np.testing.assert_array_equal(found["translations"], expected["translations"])
    np.testing.assert_allclose(found["scores"], expected["scores"], **tolerance)


SHAPES = XlaShapes(batch_sizes=(1, 4), lengths=(3, 6))
SEARCH = SearchConfig(beam_size=3, num_translations=2, max_extra_length=3, max_source_length=12)


@pytest.fixture(scope="module")
def compiled(trained):
    return Translator(*trained, SEARCH, xla=SHAPES)


@pytest.fixture(scope="module")
def plain(trained):
    return Translator(*trained, SEARCH)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sentences",
    [
        ["hello two"],
        ["hello", "two cat", ""],
        ["tree house tree sun", "sun", "cat", "two", "hello", "cat cat"],
        ["tree house tree sun", "cat cat"],
        ["sun " * 9, "hello"],
        [],
    ],
    ids=["one", "three", "a larger batch", "half a batch", "too long", "none"],
)
def test_compiled_search_equals_plain_search(compiled, plain, sentences):
    found, expected = (answer(each, sentences) for each in (compiled, plain))
    assert_same_answers(found, expected, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples of an ensemble", "no token twice"])
def test_other_searches_can_be_compiled(trained, kind):
    model, *vocabularies = trained
    search = SEARCH.replace(no_repeat_ngram=1)
    if kind != "no token twice":
        search = SEARCH.replace(method="sampling", temperature=3.0, top_k=6, seed=2)
        model = Ensemble([model, model])
    found, expected = (
        answer(Translator(model, *vocabularies, search, xla=shapes), ["cat two", "", "sun"])
        for shapes in (XlaShapes((4,), (6,)), None)
    )
    assert_same_answers(found, expected, rtol=1e-3)


def test_six_shapes_are_compiled_where_there_is_a_gpu(trained, monkeypatch):
    assert Translator(*trained, SEARCH).functions.xla is None
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0"])
    functions = Translator(*trained, SEARCH).functions
    assert len([*itertools.product(*functions.xla)]) == 6
    assert functions.with_stored_projection().xla == functions.xla


@pytest.mark.parametrize("shapes", [XlaShapes((), (3,)), XlaShapes((4, 1)), XlaShapes((0, 1))])
def test_invalid_shapes_are_rejected(trained, shapes):
    with pytest.raises(InputError, match="batch_sizes of XLA must be positive and increasing"):
        Translator(*trained, SEARCH, xla=shapes)


@pytest.mark.slow
def test_long_translations_outgrow_the_first_cache(trained):
    assert kv_cache_capacities(5 + 20) == (16, 26)
    search = SEARCH.replace(max_extra_length=20, min_length=19)
    shapes = XlaShapes(batch_sizes=(2,), lengths=(6,))
    found, expected = (
        answer(Translator(*trained, search, xla=each), ["hello two cat", "sun"])
        for each in (shapes, None)
    )
    assert_same_answers(found, expected, rtol=1e-4)
