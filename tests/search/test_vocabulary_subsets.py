"""Searches among a part of the vocabulary, of which alone the model gives logits."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import VocabularySubset
from keras_transformer.search import Prefix, RequiredPhrases, beam_search, sample

SIZE = 700


def subset_of(ids):
    places = np.full(SIZE, len(ids), np.int32)
    places[ids] = np.arange(len(ids))
    return VocabularySubset(tf.constant(ids, tf.int32), tf.constant(places))


def run(search, model, ids, is_masked, **options):
    """Searches with logits of these tokens alone, or with -inf for the others."""

    def step(tokens, state):
        logits, state = model.step(tokens, state)
        if is_masked:
            is_in = np.isin(np.arange(SIZE), ids)
            return tf.where(is_in, logits, -np.inf), state
        chosen = tf.gather(logits, ids, axis=-1)
        chosen = tf.ensure_shape(
            tf.boolean_mask(chosen, tf.ones(len(ids), bool), axis=2), [None] * 3
        )
        return chosen, state

    @tf.function(autograph=False)
    def graph():
        return search(
            step,
            model.state(range(3), 4),
            bos_ids=[2] * 3,
            max_lengths=[9, 5, 7],
            vocabulary=None if is_masked else subset_of(ids),
            **options,
        )

    return graph()


@pytest.mark.parametrize("num_tokens", [12, 150, SIZE])
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(beam_groups=2),
        dict(constraints=[Prefix([[5, 9], [0, 0], [9, 0]])]),
        dict(constraints=[RequiredPhrases([[[9, 8]]])]),
    ],
    ids=["beam", "groups", "prefix", "phrase"],
)
def test_a_beam_finds_what_it_finds_when_all_other_tokens_are_impossible(
    table_model, num_tokens, options
):
    model = table_model(sentences=3, vocabulary_size=SIZE, seed=num_tokens, end_bias=4.0)
    random = np.random.default_rng(num_tokens)
    others = random.permutation(np.arange(10, SIZE))[: num_tokens - 10]
    ids = np.sort(np.concatenate([np.arange(10), others]))
    search = functools.partial(beam_search, beam_size=4, num_translations=4, **options)
    expected, found = (run(search, model, ids, is_masked) for is_masked in (True, False))
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


def test_samples_are_of_the_part_alone(table_model):
    model = table_model(sentences=3, vocabulary_size=SIZE, seed=1)
    ids = np.array([0, 1, 2, 3, 8, 400, 699])
    search = functools.partial(sample, num_translations=4, seed=3)
    expected, found = (run(search, model, ids, is_masked) for is_masked in (True, False))
    np.testing.assert_array_equal(found.ids, expected.ids)
    assert set(found.ids.numpy().ravel()) <= set(ids)
