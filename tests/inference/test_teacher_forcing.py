"""Scores and attention of given translations: results do not depend on the size of chunks."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import PAD_ID, ModelConfig, RecurrentConfig
from keras_transformer.inference import teacher_forcing
from keras_transformer.models import Ensemble, RecurrentModel, Transformer

_SIZE = 50  # of the vocabulary
_HEADS = teacher_forcing._NUM_HEADS


class Counting:
    """A model that records the shapes of its outputs."""

    def __init__(self, model):
        self._model = model
        self.calls, self.attentions = [], []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def call(self, inputs, training=None):
        logits = self._model.call(inputs, training=training)
        self.calls.append(tuple(logits.shape))
        return logits

    def attention(self, inputs):
        self.attentions.append((*inputs["target"].shape, inputs["source"].shape[1]))
        return self._model.attention(inputs)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    return Transformer(ModelConfig.preset("tiny", vocabulary_size=_SIZE, num_layers=1, dropout=0.0))


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(1)
    source, labels = (generator.integers(4, _SIZE, [7, length]) for length in (5, 6))
    labels[2, 4:] = source[2, 3:] = PAD_ID
    return [tf.constant(each, tf.int32) for each in (source, labels)]


def _values_of_a_row():
    return 6 * _SIZE + _HEADS * 11 * 11


@pytest.mark.parametrize("at_once", [1, 2, 3, 7])
def test_chunks_have_as_many_rows_as_fit(model, rows, monkeypatch, at_once):
    expected = teacher_forcing.score(model, *rows)
    attention = teacher_forcing.attention(model, *rows)
    monkeypatch.setattr(teacher_forcing, "_MAX_VALUES", at_once * _values_of_a_row())
    counting = Counting(model)
    found = teacher_forcing.score(counting, *rows)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)
    assert max(shape[0] for shape in counting.calls) == at_once
    assert sum(shape[0] for shape in counting.calls) == 7
    found = teacher_forcing.attention(counting, *rows)
    np.testing.assert_allclose(found, attention, rtol=1e-4, atol=1e-6)
    at_once = min(at_once * _values_of_a_row() // (_HEADS * 11 * 11), 7)
    assert max(shape[0] for shape in counting.attentions) == at_once


def test_one_chunk_runs_at_a_time(model):
    def graph(*rows):
        return teacher_forcing.score(model, *rows), teacher_forcing.attention(model, *rows)

    inputs = [tf.TensorSpec([None, None], tf.int32)] * 2
    graph = tf.function(graph, input_signature=inputs).get_concrete_function().graph
    loops = [node for node in graph.as_graph_def().node if node.op in ("While", "StatelessWhile")]
    assert [loop.attr["parallel_iterations"].i for loop in loops] == [1, 1]


@pytest.mark.parametrize("kind", ["additive", "ensemble", "any model"])
def test_chunks_count_the_width_of_additive_attention(model, rows, monkeypatch, kind):
    sizes = dict(vocabulary_size=_SIZE, model_dim=8, hidden_dim=8)
    wide = RecurrentModel(RecurrentConfig(**sizes, attention_dim=500))
    monkeypatch.setattr(teacher_forcing, "_MAX_VALUES", 2 * 5 * 6 * 500)
    counting = Counting({"additive": wide, "ensemble": Ensemble([model, wide])}.get(kind, model))
    if kind == "any model":  # which has nothing but what the protocol asks for
        counting.config = types.SimpleNamespace(vocabulary_size=_SIZE, target_size=_SIZE)
    found = teacher_forcing.attention(counting, *rows)
    assert max(shape[0] for shape in counting.attentions) == (7 if kind == "any model" else 2)
    np.testing.assert_allclose(found, teacher_forcing.attention(counting._model, *rows), atol=1e-6)
