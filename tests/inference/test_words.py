"""Words of a text as it was given: the tokens that belong to them, and the unknown ones."""

import pytest
import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID, UNK_ID
from keras_transformer.inference.words import copy_unknowns, words_of_tokens
from keras_transformer.text import Tokenizer, Vocabulary, learn_vocabulary

LINES = ["the old man reads a book", "it\u00b4s a dog", "the man has a book", "old dogs read"] * 20
SIZES = {"unigram": 23, "bpe": 40, "char": 60, "word": 60}


def words_of(tokenizer, text, ids):
    """Returns the number of the word of each token."""
    return words_of_tokens(tokenizer, tf.constant([text]), tf.constant([ids])).numpy()[0].tolist()


@pytest.fixture(scope="module", params=SIZES)
def tokenizer(request):
    return Tokenizer(learn_vocabulary(LINES, size=SIZES[request.param], kind=request.param))


@pytest.mark.parametrize(
    "text",
    [
        "the old man reads a book",
        "  the\tman \u3000 reads\u00a0a\u2028book ",
        "the old \x07 man \ufffd reads a book",  # words that vocabularies drop
        "a \u200b dog \u00ad\ufeff reads",
        "it\u00b4s a dog",  # NFKC makes two words of the first
        "",
    ],
)
def test_each_token_belongs_to_a_word_of_the_given_text(tokenizer, text):
    (ids,) = tokenizer.vocabulary.encode([text])
    *numbers, eos, padding = words_of(tokenizer, text, [*ids, EOS_ID, PAD_ID])
    assert (eos, padding) == (-1, -1)
    sizes = [len(ids) for ids in tokenizer.vocabulary.encode(text.split())]
    assert numbers == [number for number, size in enumerate(sizes) for _ in range(size)]


def test_words_that_cannot_be_told_apart_have_no_numbers():
    tokenizer = Tokenizer(learn_vocabulary(LINES, size=60, kind="word"))
    text = "xx yy dog"  # the unknown words are one token
    (ids,) = tokenizer.vocabulary.encode([text])
    assert len(ids) == 2
    assert words_of(tokenizer, text, [*ids, EOS_ID]) == [-1, -1, -1]


def test_first_token_begins_a_word_without_a_space_before_it():
    learned = learn_vocabulary(LINES, size=40, kind="bpe").model_bytes
    tokenizer = Tokenizer(Vocabulary(learned + b"\x1a\x02\x18\x00"))  # without add_dummy_prefix
    (ids,) = tokenizer.vocabulary.encode(["a dog"])
    assert words_of(tokenizer, "a dog", [*ids, EOS_ID]) == [0] + [1] * (len(ids) - 1) + [-1]


# Words in capitals are unknown, each a token. By default each "⁇" of a text is the unknown token.
@pytest.mark.parametrize(
    ("source", "texts", "options", "expected"),
    [
        ("a ANNA met BOB", ["⁇ traf ⁇"], {}, ["ANNA traf BOB"]),
        ("a ANNA met BOB", ["⁇"], {}, ["ANNA"]),
        ("ANNA met b", ["⁇ traf ⁇ und ⁇."], {}, ["ANNA traf ANNA und ANNA."]),
        ("a met b", ["⁇ traf ⁇"], {}, ["⁇ traf ⁇"]),
        ("ANNA BOB", ["⁇⁇"], {}, ["ANNABOB"]),
        ("ANNA b BOB", ["⁇", "b", "x ⁇ ⁇", ""], {}, ["ANNA", "b", "x ANNA BOB", ""]),
        # Tokens of the prefix stay, and count for none.
        ("ANNA BOB", ["⁇ ⁇ ⁇"], dict(prefix=[[UNK_ID, PAD_ID]]), ["⁇ ANNA BOB"]),
        # Bytes that are no text, and control characters.
        ("ANNA\ufffd \x07B\x1bC D", ["⁇ ⁇ ⁇"], {}, ["⁇ B C D"]),
        ("\ufffdA", ["⁇"], {}, ["⁇"]),
        ("a b c d ANNA", ["⁇ a"], dict(length=2), ["⁇ a"]),  # the model reads two words
        # A vocabulary that has the character itself does not show which mark is the token.
        ("ANNA", ["⁇ und ⁇"], dict(count=1), ["⁇ und ⁇"]),
    ],
)
def test_unknown_words_are_copied_in_order(source, texts, options, expected):
    words = source.split()
    ids = [UNK_ID if word.isupper() else EOS_ID + 1 for word in words][: options.get("length")]
    targets = [[UNK_ID] * options.get("count", text.count("⁇")) + [EOS_ID] for text in texts]
    translations = copy_unknowns(
        tf.constant([texts]),
        tf.ragged.constant(targets).to_tensor(PAD_ID)[None],
        tf.constant([[*ids, EOS_ID]]),
        tf.ragged.constant([words], dtype=tf.string),
        tf.constant(options["prefix"]) if "prefix" in options else None,
    )
    assert [text.decode() for text in translations.numpy()[0]] == expected


def test_no_sentences_have_no_translations():
    ids, source = tf.zeros([0, 1, 1], tf.int32), tf.zeros([0, 1], tf.int32)
    surfaces = tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.string), [0])
    assert copy_unknowns(tf.zeros([0, 1], tf.string), ids, source, surfaces).shape == (0, 1)
