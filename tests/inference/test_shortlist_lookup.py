"""Translations with a shortlist of target tokens."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import SearchConfig
from keras_transformer.data import Shortlist
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator, XlaShapes
from keras_transformer.inference.shortlist_lookup import ShortlistLookup
from keras_transformer.models import Ensemble

SENTENCES = ["two house", "sun", "cat sun tree two", "", "hello"]


def shortlist_of(candidates, common=(0, 1, 2, 3)):
    return Shortlist(common=np.array(common, np.int32), candidates=np.array(candidates, np.int32))


def everything(vocabulary):
    """Has each token as the only candidate of itself, and all as common ones."""
    numbers = np.arange(vocabulary.size, dtype=np.int32)
    return shortlist_of(numbers[:, None], numbers)


def test_subset_has_all_candidates_and_forced_tokens():
    lookup = ShortlistLookup(shortlist_of([[0, 0]] * 4 + [[7, 5], [9, 0]]), 12)
    subset = lookup.subset(tf.constant([[4, 3], [5, 0]]), [tf.constant([[[10, 0]]])])
    assert subset.ids.numpy().tolist() == [0, 1, 2, 3, 5, 7, 9, 10]
    assert subset.places.numpy().tolist() == [0, 1, 2, 3, 8, 4, 8, 5, 8, 6, 7, 8]


@pytest.mark.parametrize("kind", ["one", "ensemble"])
def test_shortlist_of_everything_changes_nothing(trained, kind):
    model, source, target = trained
    model = Ensemble([model, model]) if kind == "ensemble" else model
    search = SearchConfig(num_translations=2)
    found, expected = (
        Translator(model, source, target, each, shortlist=everything(target))
        .with_cached_projection()(tf.constant(SENTENCES))
        for each in (search.replace(shortlist=1), search)
    )  # fmt: skip
    np.testing.assert_array_equal(found["translations"], expected["translations"])
    np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-5)


def test_translations_are_restricted_to_the_shortlist(trained, words):
    model, source, target = trained
    (cat,), (tree,), (sun,) = target.encode([words["cat"], words["tree"], words["sun"]])
    candidates = np.zeros((source.size, 1), np.int32)
    candidates[source.encode(["two"])[0]] = cat  # whatever "two" means
    search = SearchConfig(shortlist=1, max_length=3, forbid_unknown=True)
    translator = Translator(model, source, target, search, shortlist=shortlist_of(candidates))

    def tokens(**options):
        ((best,),) = translator.translate(["two"], **options)
        return {token for ids in target.encode([best.text]) for token in ids}

    assert tokens() == {cat}
    assert {tree} <= tokens(prefix=words["tree"]) <= {cat, tree}
    assert {sun} <= tokens(required_phrases=[words["sun"]]) <= {cat, sun}


def test_missing_shortlist_or_xla_is_rejected(trained):
    shortlist = everything(trained[2])
    for options, problem in (
        (dict(), "needs a learned shortlist"),
        (dict(shortlist=shortlist, xla=XlaShapes()), "cannot be combined with XLA"),
    ):
        with pytest.raises(InputError, match=f"shortlist=1 {problem}; set it to 0"):
            Translator(*trained, SearchConfig(shortlist=1), **options)
