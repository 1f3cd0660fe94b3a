"""Words of a text, and the tokens that belong to each: what alignments count.

Shapes: B texts, L tokens.
"""

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID, WORD_START
from keras_transformer.decoding import Tensor
from keras_transformer.text import Tokenizer

# What Python's `str.split` takes for spaces, in the syntax of RE2.
SPACES = r"[\s\pZ\x{0B}\x{1C}-\x{1F}\x{85}]"
NO_WORD = -1


def words_of_tokens(tokenizer: Tokenizer, text: Tensor, ids: Tensor) -> Tensor:
    """Numbers the words of each text, between its spaces, and gives each token its word.

    Each word is tokenized alone, so one that the vocabulary does not read at all, such as a control
    character, has no token, and still counts. Where that gives other tokens than the text as a
    whole has, a token that starts with "▁" begins a word.

    Args:
        tokenizer: of the text.
        text: string [B], as it was given.
        ids: int32 [B, L], the tokens of the text, or the first of them, then EOS and PAD.

    Returns:
        int32 [B, L]; `NO_WORD` for EOS and PAD, and for all tokens of a text whose words cannot be
        told apart in either way.
    """
    length = tf.shape(ids)[1]
    text = tf.strings.substr(text, 0, 4 * tokenizer.vocabulary.max_characters(length))
    words = tf.strings.split(tf.strings.regex_replace(text, f"{SPACES}+", " "))  # [B, (words)]
    tokens = words.with_flat_values(tokenizer.tokenize(words.flat_values))  # [B, (words), (any)]
    numbers = tf.repeat(
        tf.ragged.range(tf.cast(words.row_lengths(), tf.int32)).flat_values,
        tokens.values.row_lengths(),
    )
    tokens = tokens.merge_dims(1, 2)  # [B, (any)]
    by_text, alone = (
        rows.to_tensor(NO_WORD, shape=tf.stack([-1, length]))  # [B, L]
        for rows in (tokens.with_flat_values(numbers), tokens)
    )
    is_token = (ids != PAD_ID) & (ids != EOS_ID)
    is_same = tf.reduce_all(~is_token | (alone == ids), axis=1, keepdims=True)

    begins = tf.strings.regex_full_match(tokenizer.pieces(ids), f"{WORD_START}.*")
    begins |= tf.range(length) == 0
    by_piece = tf.cumsum(tf.cast(begins & is_token, tf.int32), axis=1) - 1
    num_words = tf.cast(words.row_lengths(), tf.int32)[:, None]
    fits = tf.reduce_max(by_piece, axis=1, keepdims=True) + 1 == num_words
    number = tf.where(is_same, by_text, tf.where(fits, by_piece, NO_WORD))
    return tf.where(is_token, number, NO_WORD)
