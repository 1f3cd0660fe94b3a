"""Models prepared for translating: bfloat16 weights, and a stored output projection."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.inference.prepared_model import (
    CachedOutputProjection,
    cache_projection,
    in_precision,
    refresh,
)
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Ensemble

SENTENCES = ["hello two cat", "sun", "tree house tree sun", ""]


@pytest.mark.slow
def test_bfloat16_gives_nearly_the_same_answers(trained):
    model, *vocabularies = trained
    search = SearchConfig(max_source_length=12, max_extra_length=5)
    plain = Translator(model, *vocabularies, search)
    rounded = Translator(in_precision(model, "bfloat16"), *vocabularies, search)
    ours, theirs = plain.translate(SENTENCES), rounded.translate(SENTENCES)
    assert [row[0].text for row in theirs] == [row[0].text for row in ours]
    np.testing.assert_allclose(
        [row[0].score for row in theirs], [row[0].score for row in ours], atol=0.05
    )
    texts = [row[0].text for row in ours]
    scores = [each.score for each in plain.score(SENTENCES, texts)]
    others = [each.score for each in rounded.score(SENTENCES, texts)]
    np.testing.assert_allclose(others, scores, atol=0.25)
    assert others != scores
    assert rounded.align(SENTENCES, texts)[0] == plain.align(SENTENCES, texts)[0]


def test_unknown_precision_is_rejected(trained):
    with pytest.raises(InputError, match="precision must be one of float32, bfloat16, got 'int4'"):
        in_precision(trained[0], "int4")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "ensemble"])
def test_cached_projection_changes_no_answer(trained, kind):
    model, *vocabularies = trained
    model = Ensemble([model, model]) if kind == "ensemble" else in_precision(model, kind)
    translator = Translator(model, *vocabularies)
    found, expected = (
        each(tf.constant(SENTENCES)) for each in (translator.with_cached_projection(), translator)
    )
    np.testing.assert_array_equal(found["translations"], expected["translations"])
    np.testing.assert_array_equal(found["scores"], expected["scores"])


def test_projection_is_stored_and_used(trained):
    model, *_ = trained
    cached = cache_projection(model)
    stored = cached.variables[len(model.variables) :]
    ids = tf.constant([[5, 6, 3]])
    assert [tuple(each.shape) for each in stored] == [tuple(model.encode(ids).projection[0].shape)]
    stored[0].assign(tf.ones_like(stored[0]))
    np.testing.assert_array_equal(cached.encode(ids).projection[0], np.ones(stored[0].shape))
    assert cache_projection(cached) is cached
    assert cached.config is model.config
    inputs = {"source": ids, "target": ids}
    np.testing.assert_array_equal(cached.attention(inputs), model.attention(inputs))


def test_projection_is_recomputed_only_after_a_change(trained, monkeypatch):
    model, *_ = trained
    cached = cache_projection(Ensemble([model]))
    monkeypatch.setattr(
        CachedOutputProjection, "_compute", lambda self: pytest.fail("computed again")
    )
    refresh(cached)


def test_only_weights_of_the_projection_are_watched(trained):
    model, *_ = trained
    (watched,) = cache_projection(model)._weights
    assert watched is model.target_embedding.table.value
