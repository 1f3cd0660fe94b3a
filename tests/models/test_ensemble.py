"""Ensembles: the mean of probabilities; their steps are in test_architectures.py."""

import numpy as np
import pytest
from keras import ops
from model_cases import INPUTS, random_model

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Ensemble

CONFIG = TransformerConfig(
    vocabulary_size=13, num_layers=1, model_dim=8, feed_forward_dim=16, num_heads=2
)


def test_probabilities_are_the_mean_of_the_models():
    models = random_model(CONFIG), random_model(CONFIG.replace(num_layers=2, norm_position="pre"))
    first, second = (np.asarray(ops.softmax(model(INPUTS))) for model in models)
    for ensemble, expected in (([*models], (first + second) / 2), ([models[1]], second)):
        np.testing.assert_allclose(np.exp(Ensemble(ensemble).call(INPUTS)), expected, rtol=1e-4)
    assert len(Ensemble(models).variables) == sum(len(model.variables) for model in models)


def test_models_must_share_their_vocabularies():
    model = random_model(CONFIG)
    for changes, sizes in (
        (dict(vocabulary_size=14), r"\(13, 13\) and \(14, 14\)"),
        (dict(share_embeddings="target", target_vocabulary_size=15), r"\(13, 13\) and \(13, 15\)"),
    ):
        with pytest.raises(InputError, match=f"of source and target {sizes}"):
            Ensemble([model, random_model(CONFIG.replace(**changes))])
    same = random_model(CONFIG.replace(share_embeddings="target", target_vocabulary_size=13))
    assert Ensemble([model, same]).call(INPUTS).shape == (3, 6, 13)
    with pytest.raises(InputError, match="at least one model"):
        Ensemble([])
