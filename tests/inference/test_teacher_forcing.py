"""Scores and attention of given translations: results do not depend on the size of chunks."""

import numpy as np
import pytest
import tensorflow as tf
from model_cases import CONFIGS, SOURCE, TARGET, random_model

from keras_transformer.inference import teacher_forcing
from keras_transformer.models import Ensemble


@pytest.fixture(scope="module")
def models():
    one, other = (random_model(CONFIGS[name]) for name in ("transformer", "recurrent"))
    return {"transformer": one, "ensemble": Ensemble([one, other])}


@pytest.mark.parametrize("kind", ["transformer", "ensemble"])
@pytest.mark.parametrize("most_values", [1, 5000, 10_000])
def test_rows_are_computed_in_chunks_that_fit(models, kind, most_values, monkeypatch):
    model, rows = models[kind], []
    labels = np.where(TARGET == 2, 4, TARGET)
    inputs = tf.constant(SOURCE, tf.int32), tf.constant(labels, tf.int32)
    expected = teacher_forcing.score(model, *inputs), teacher_forcing.attention(model, *inputs)
    monkeypatch.setattr(teacher_forcing, "_MAX_VALUES", most_values)
    call = model.call

    def count_rows(inputs, training=None):
        rows.append(len(inputs["source"]))
        return call(inputs, training=training)

    monkeypatch.setattr(model, "call", count_rows)
    scores = teacher_forcing.score(model, *inputs)
    for name, values in expected[0].items():
        np.testing.assert_allclose(scores[name], values, rtol=1e-4, atol=1e-5)
    attention = teacher_forcing.attention(model, *inputs)
    np.testing.assert_allclose(attention, expected[1], rtol=1e-4, atol=1e-6)
    assert rows == {1: [1, 1, 1], 5000: [2, 1], 10_000: [3]}[most_values]
