"""Ensembles: the mean of probabilities, step by step as in the full pass."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Ensemble, Transformer

OPTIONS = dict(vocabulary_size=11, model_dim=8, feed_forward_dim=16, num_heads=2, dropout=0.0)
SOURCE = np.array([[5, 6, 7, 3], [8, 3, 0, 0]])
TARGET = np.array([[2, 9, 4], [2, 5, 5]])
INPUTS = {"source": SOURCE, "target": TARGET}


def softmax(logits):
    return np.asarray(ops.softmax(logits, axis=-1))


@pytest.fixture(scope="module")
def models():
    """Two models of different depth and opinions."""
    made = [
        Transformer(TransformerConfig(**OPTIONS, num_layers=1)),
        Transformer(TransformerConfig(**OPTIONS, num_layers=2, norm_position="pre")),
    ]
    random = np.random.default_rng(1)
    for model in made:
        model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    return made


def test_probabilities_are_the_mean_of_the_models(models):
    expected = (softmax(models[0](INPUTS)) + softmax(models[1](INPUTS))) / 2
    np.testing.assert_allclose(np.exp(Ensemble(models).call(INPUTS)), expected, rtol=1e-4)


def test_ensemble_of_one_model_is_that_model(models):
    alone = softmax(models[1](INPUTS))
    np.testing.assert_allclose(np.exp(Ensemble(models[1:]).call(INPUTS)), alone, rtol=1e-4)
    assert len(Ensemble(models).variables) == sum(len(model.variables) for model in models)


def test_models_must_share_their_vocabularies(models):
    other = Transformer(TransformerConfig(**OPTIONS | dict(vocabulary_size=12), num_layers=1))
    with pytest.raises(InputError, match=r"of source and target \(11, 11\) and \(12, 12\)"):
        Ensemble([models[0], other])
    split = dict(share_embeddings="target", num_layers=1)
    longer = Transformer(TransformerConfig(**OPTIONS, **split, target_vocabulary_size=13))
    with pytest.raises(InputError, match=r"of source and target \(11, 11\) and \(11, 13\)"):
        Ensemble([models[0], longer])
    same = Transformer(TransformerConfig(**OPTIONS, **split, target_vocabulary_size=11))
    assert Ensemble([models[0], same]).call(INPUTS).shape == (2, 3, 11)
    with pytest.raises(InputError, match="at least one model"):
        Ensemble([])
