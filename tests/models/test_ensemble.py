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


def test_order_of_models_does_not_change_coverage():
    """One of them does not read EOS, whose coverage is then full from the start."""
    models = random_model(CONFIG), random_model(CONFIG.replace(source_eos=False))

    def coverage(*models):
        state = Ensemble(models).encode(INPUTS["source"], coverage=True)
        return np.asarray(Ensemble(models).step(INPUTS["target"][:, :1], state)[1].coverage)

    np.testing.assert_allclose(coverage(*models), coverage(*models[::-1]), rtol=1e-6)
    starts = [np.asarray(each.encode(INPUTS["source"], coverage=True).coverage) for each in models]
    assert not np.array_equal(*starts)
    start = Ensemble(models).encode(INPUTS["source"], coverage=True).coverage
    np.testing.assert_allclose(start, np.mean(starts, axis=0))
