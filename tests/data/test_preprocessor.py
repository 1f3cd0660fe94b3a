"""From pairs of text to what `fit` takes."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.data.preprocessor import Seq2SeqPreprocessor
from keras_transformer.errors import InputError
from keras_transformer.text import learn_vocabulary

ENGLISH = ["a dog", "a red dog", "a cat", "a red cat"]
GERMAN = ["ein Hund", "ein roter Hund", "eine Katze", "eine rote Katze"]
PAIRS = list(zip(ENGLISH, GERMAN, strict=True))


@pytest.fixture(scope="module")
def preprocessor():
    source, target = (learn_vocabulary(side, kind="word") for side in (ENGLISH, GERMAN))
    return Seq2SeqPreprocessor(source, target)


def rows(dataset):
    """The pairs of ids of all batches in order, with their labels, without padding."""
    found = []
    for inputs, labels in dataset.as_numpy_iterator():
        for row in zip(inputs["source"], inputs["target"], labels, strict=True):
            if row[0].any():
                found.append(tuple(tuple(ids[ids != PAD_ID].tolist()) for ids in row))
    return found


def test_ids_end_with_eos_and_the_target_is_shifted(preprocessor):
    inputs, labels = preprocessor(ENGLISH[:2], GERMAN[:2])
    a, dog, red = (preprocessor.source.encode([word])[0][0] for word in ("a", "dog", "red"))
    ein, hund, roter = (
        preprocessor.target.encode([word])[0][0] for word in ("ein", "Hund", "roter")
    )
    assert inputs["source"].numpy().tolist() == [[a, dog, EOS_ID, 0], [a, red, dog, EOS_ID]]
    assert inputs["target"].numpy().tolist() == [[BOS_ID, ein, hund, 0], [BOS_ID, ein, roter, hund]]
    assert labels.numpy().tolist() == [[ein, hund, EOS_ID, 0], [ein, roter, hund, EOS_ID]]


def test_truncated_text_keeps_eos(preprocessor):
    short = Seq2SeqPreprocessor(preprocessor.source, preprocessor.target, max_length=1)
    inputs, labels = short("a red dog", "ein roter Hund")
    assert inputs["source"].numpy()[-1] == labels.numpy()[-1] == EOS_ID
    assert inputs["source"].shape == inputs["target"].shape == labels.shape == (2,)


def test_a_data_set_can_be_mapped(preprocessor):
    dataset = tf.data.Dataset.from_tensor_slices((ENGLISH, GERMAN))
    whole = preprocessor(ENGLISH, GERMAN)
    (batch,) = dataset.batch(4).map(preprocessor)
    tf.nest.map_structure(np.testing.assert_array_equal, batch, whole)
    single = next(iter(dataset.map(preprocessor)))
    assert single[1].numpy().tolist() == [*preprocessor.target.encode(GERMAN[:1])[0], EOS_ID]


@pytest.mark.parametrize(
    "pairs",
    [
        lambda: zip(ENGLISH, GERMAN, strict=True),
        lambda: np.array(PAIRS),
        lambda: [[source.encode(), target.encode()] for source, target in PAIRS],
        lambda: tf.data.Dataset.from_tensor_slices((ENGLISH, GERMAN)),
        lambda: tf.data.Dataset.from_tensor_slices((ENGLISH, GERMAN)).batch(3),
    ],
    ids=["zip", "array", "bytes", "data set", "batched data set"],
)
def test_all_kinds_of_pairs_give_the_same_batches(preprocessor, pairs):
    expected = rows(preprocessor.batches(PAIRS, batch_tokens=8))
    assert rows(preprocessor.batches(pairs(), batch_tokens=8)) == expected
    by_hand = zip(
        preprocessor.source.encode(ENGLISH), preprocessor.target.encode(GERMAN), strict=True
    )
    assert sorted(expected) == sorted(
        ((*source, EOS_ID), (BOS_ID, *target), (*target, EOS_ID)) for source, target in by_hand
    )


def test_each_pass_has_every_pair_once_in_another_order(preprocessor):
    pairs = PAIRS * 10
    batches = preprocessor.batches(pairs, batch_tokens=16, seed=3)
    passes = [rows(batches) for _ in range(3)]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(passes[2])
    assert len(passes[0]) == len(pairs)
    assert len(batches) == len(list(batches))  # Keras shows the number
    assert passes[0] != passes[1] != passes[2]
    again = preprocessor.batches(pairs, batch_tokens=16, seed=3)
    assert [rows(again) for _ in range(3)] == passes
    assert rows(preprocessor.batches(pairs, batch_tokens=16, seed=4)) != passes[0]
    fixed = preprocessor.batches(pairs, batch_tokens=16, shuffle=False)
    assert rows(fixed) == rows(fixed)


def test_empty_and_long_pairs_are_left_out_and_counted(preprocessor):
    short = Seq2SeqPreprocessor(preprocessor.source, preprocessor.target, max_length=2)
    with pytest.warns(UserWarning, match=r"left out of 6 pairs: 2 empty, 2 too long"):
        batches = short.batches([*PAIRS, ("", "ein"), ("a", " ")], batch_tokens=8)
    assert len(rows(batches)) == 2
    assert short.dropped == {"empty": 2, "too long": 2}


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (ENGLISH, "expected pairs of text"),
        ([*PAIRS, "ab"], "expected pairs of text, .* got 'ab'"),  # two characters are no pair
        ({"en": ENGLISH, "de": GERMAN}, "expected a list of pairs of text, got a dict"),
        ([("a dog", None)], "expected pairs of text"),
        ([], "there are no pairs of text"),
        (tf.data.Dataset.from_tensor_slices({"en": ENGLISH, "de": GERMAN}), "as_supervised=True"),
        (tf.data.Dataset.from_tensor_slices((ENGLISH, GERMAN)).repeat(), r"remove repeat\(\)"),
    ],
)
def test_other_inputs_are_rejected(preprocessor, pairs, message):
    with pytest.raises(InputError, match=message):
        preprocessor.batches(pairs)


@pytest.mark.parametrize("options", [{"batch_tokens": 2.5}, {"seed": -1}], ids=str)
def test_numbers_out_of_range_are_rejected(preprocessor, options):
    (name,) = options
    with pytest.raises(InputError, match=name):
        preprocessor.batches(PAIRS, **options)
