"""Models whose weights no longer change."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.inference.cached_projection import (
    CachedOutputProjection,
    cache_projection,
    refresh,
)
from keras_transformer.inference.quantization import in_precision
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Ensemble

SENTENCES = ["hello two", "", "tree house tree sun"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "ensemble"])
def test_a_frozen_model_translates_as_before(trained, kind):
    model, *vocabularies = trained
    model = Ensemble([model, model]) if kind == "ensemble" else in_precision(model, kind)
    translator = Translator(model, *vocabularies)
    found, expected = (
        each(tf.constant(SENTENCES)) for each in (translator.with_cached_projection(), translator)
    )
    np.testing.assert_array_equal(found["translations"], expected["translations"])
    np.testing.assert_array_equal(found["scores"], expected["scores"])


def test_the_projection_is_stored_and_not_computed_again(trained):
    model, *_ = trained
    frozen = cache_projection(model)
    stored = frozen.variables[len(model.variables) :]
    assert [tuple(each.shape) for each in stored] == [
        tuple(model.encode(_ids()).projection[0].shape)
    ]

    stored[0].assign(tf.ones_like(stored[0]))
    np.testing.assert_array_equal(frozen.encode(_ids()).projection[0], np.ones(stored[0].shape))


def test_it_has_all_else_of_its_model(trained):
    model, *_ = trained
    frozen = cache_projection(model)
    assert isinstance(frozen, CachedOutputProjection)
    assert frozen.config is model.config
    inputs = {"source": _ids(), "target": _ids()}
    np.testing.assert_array_equal(frozen.attention(inputs), model.attention(inputs))


def test_int8_stays_small_and_what_is_frozen_stays_as_it_is(trained):
    model, *_ = trained
    for kept in (in_precision(model, "int8"), cache_projection(model)):
        assert cache_projection(kept) is kept


def _ids():
    return tf.constant([[5, 6, 3]])


def test_nothing_is_computed_again_where_no_weight_has_changed(trained, monkeypatch):
    model, *_ = trained
    kept = cache_projection(Ensemble([model]))
    monkeypatch.setattr(
        CachedOutputProjection, "_compute", lambda self: pytest.fail("computed again")
    )
    refresh(kept)


def test_only_weights_that_states_share_are_watched(trained):
    model, *_ = trained
    (watched,) = cache_projection(model)._weights
    assert watched is model.target_embedding.table.value
