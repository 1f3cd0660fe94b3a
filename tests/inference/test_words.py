"""Words of a text as it was given, and the tokens that belong to them."""

import pytest
import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.inference.words import words_of_tokens
from keras_transformer.text import Tokenizer, learn_vocabulary

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
