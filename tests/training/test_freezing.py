"""Parts of a model that training leaves as they are."""

import numpy as np
import pytest
import tiny_run
from toy_architecture import ToyConfig

from keras_transformer.config import RecurrentConfig, TransformerConfig, UniversalConfig
from keras_transformer.errors import InputError
from keras_transformer.models import build_model
from keras_transformer.training import compile_for_training
from keras_transformer.training.trainer import freeze

SIZES = dict(vocabulary_size=12, model_dim=8, dropout=0.0)
HEADS = SIZES | dict(num_heads=2, feed_forward_dim=8)
CASES = {
    "transformer": (TransformerConfig(**HEADS, num_layers=1), "encoder"),
    "learned positions": (
        TransformerConfig(**HEADS, num_layers=1, positions="learned", share_embeddings="none"),
        "embeddings,decoder",
    ),
    "recurrent": (RecurrentConfig(**SIZES, hidden_dim=8), "encoder,embeddings"),
    "universal": (UniversalConfig(**HEADS, num_steps=2), "decoder"),
    "a user's own": (ToyConfig(**SIZES), "reader"),
}
SOURCE = np.array([[5, 6, 7, 3], [8, 3, 0, 0]])
BATCH = ({"source": SOURCE, "target": np.array([[2, 9, 4, 6], [2, 5, 0, 0]])}, SOURCE)


def is_in(path, model, parts):
    """Whether the names of layers say that a weight belongs to one of these parts."""
    tables = {"source_embedding", "target_embedding", "positions"}
    layers = {each for part in parts.split(",") for each in ({part}, tables)[part == "embeddings"]}
    return path.removeprefix(f"{model.name}/").split("/")[0] in layers


@pytest.mark.parametrize("case", CASES)
def test_an_update_changes_all_weights_but_those_of_the_parts_named(case):
    config, parts = CASES[case]
    model = build_model(config)
    freeze(model, parts)
    compile_for_training(model, tiny_run.training_config(warmup_steps=1, weight_decay=0.1))
    before = [weight.numpy() for weight in model.weights]
    model.train_step(BATCH)
    changed = {
        weight.path: not np.array_equal(weight, value)
        for weight, value in zip(model.weights, before, strict=True)
    }
    assert {True, False} == set(changed.values())
    for path, is_changed in changed.items():
        assert is_changed != is_in(path, model, parts), path


def test_a_part_that_the_model_lacks_is_refused_with_those_that_it_has():
    model = build_model(CASES["recurrent"][0])
    with pytest.raises(
        InputError,
        match="freeze must be one of decoder, embeddings, encoder, source_embedding, got 'head'",
    ):
        freeze(model, "encoder,head")


def test_to_freeze_all_is_refused():
    with pytest.raises(InputError, match="leaves no weights to train; name fewer parts"):
        freeze(build_model(CASES["transformer"][0]), "encoder,decoder,embeddings")
