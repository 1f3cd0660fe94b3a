"""Unknown words of the source where a translation has the unknown token."""

import pytest
import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID, UNK_ID
from keras_transformer.inference.unknowns import copy_unknowns

_KNOWN = EOS_ID + 1


def _copy(texts, source, prefix=None):
    """Copies words, of which those in capitals are unknown, to "⁇" in the texts of one sentence."""
    words = source.split()
    ids = [UNK_ID if word.isupper() else _KNOWN for word in words]
    targets = [[UNK_ID] * text.count("⁇") + [EOS_ID] for text in texts]
    translations = copy_unknowns(
        tf.constant([texts]),
        tf.ragged.constant(targets).to_tensor(PAD_ID)[None],
        tf.constant([[*ids, EOS_ID]]),
        tf.ragged.constant([words], dtype=tf.string),
        None if prefix is None else tf.constant([prefix]),
    )
    return [text.decode() for text in translations.numpy()[0]]


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("a ANNA met BOB", "⁇ traf ⁇", "ANNA traf BOB"),
        ("a ANNA met BOB", "⁇", "ANNA"),
        ("ANNA met b", "⁇ traf ⁇ und ⁇.", "ANNA traf ANNA und ANNA."),
        ("a met b", "⁇ traf ⁇", "⁇ traf ⁇"),
        ("ANNA", "", ""),
        ("ANNA BOB", "⁇⁇", "ANNABOB"),
    ],
)
def test_words_are_copied_in_order(source, text, expected):
    assert _copy([text], source) == [expected]


def test_each_translation_of_a_list_counts_for_itself():
    assert _copy(["⁇", "b", "x ⁇ ⁇"], "ANNA b BOB") == ["ANNA", "b", "x ANNA BOB"]


def test_tokens_of_the_prefix_stay_and_count_for_none():
    assert _copy(["⁇ ⁇ ⁇"], "ANNA BOB", [UNK_ID, PAD_ID]) == ["⁇ ANNA BOB"]


def test_words_that_are_not_read_are_not_copied():
    text = copy_unknowns(
        tf.constant([["⁇ a"]]),
        tf.constant([[[UNK_ID, _KNOWN, EOS_ID]]]),
        tf.constant([[_KNOWN, _KNOWN, EOS_ID]]),
        tf.ragged.constant([["a", "b", "c", "d", "ANNA"]]),
    )
    assert text.numpy().item().decode() == "⁇ a"


def test_no_sentences_have_no_translations():
    ids, source = tf.zeros([0, 1, 1], tf.int32), tf.zeros([0, 1], tf.int32)
    surfaces = tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.string), [0])
    assert copy_unknowns(tf.zeros([0, 1], tf.string), ids, source, surfaces).shape == (0, 1)


def test_text_with_another_mark_than_the_token_stays():
    """A vocabulary that has the character itself does not show which mark is the token."""
    text = copy_unknowns(
        tf.constant([["⁇ und ⁇"]]),
        tf.constant([[[_KNOWN, UNK_ID, EOS_ID]]]),
        tf.constant([[UNK_ID, EOS_ID]]),
        tf.ragged.constant([["ANNA"]]),
    )
    assert text.numpy().item().decode() == "⁇ und ⁇"


def test_bytes_that_are_no_text_are_not_copied():
    assert _copy(["⁇ ⁇ ⁇"], "ANNA\ufffd \x07B\x1bC D") == ["⁇ B C D"]
    assert _copy(["⁇"], "\ufffdA") == ["⁇"]
