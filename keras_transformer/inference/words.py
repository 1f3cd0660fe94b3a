"""Words of a text: which tokens belong to each, and unknown ones that translations copy.

Shapes: B sentences or texts, L tokens, S source length, N translations of a sentence, P the most
parts of a translation, between which unknown tokens stand.
"""

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID, UNK_ID, WORD_START
from keras_transformer.decoding import Tensor
from keras_transformer.files import CONTROL_CHARACTERS
from keras_transformer.text import Tokenizer

# What Python's `str.split` takes for spaces, in the syntax of RE2.
SPACES = r"[\s\pZ\x{0B}\x{1C}-\x{1F}\x{85}]"
NO_WORD = -1

_UNKNOWN = "⁇"  # how texts show the token
_REPLACEMENT = "\ufffd"  # stands for bytes that are not UTF-8


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


def copy_unknowns(
    translations: Tensor,
    ids: Tensor,
    source: Tensor,
    surfaces: tf.RaggedTensor,
    prefix: Tensor | None = None,
) -> Tensor:
    """Returns translations in which unknown tokens show the unknown words of the source, in order.

    A model that meets a name in another script can only write the unknown token for it. Names
    mostly keep their order. Luong et al. 2015 take the word with the most attention, which needs a
    second pass of the decoder.

    The k-th unknown token becomes the k-th unknown part of the source, such as "Владимир"; the last
    one if there are fewer. It stays "⁇" if there is none, or that part is no text.

    Args:
        translations: string [B, N], the texts of `ids`.
        ids: int32 [B, N, L], with EOS, then PAD.
        source: int32 [B, S], with EOS, then PAD.
        surfaces: string [B, (length)], the text of each token of the source, or of more.
        prefix: int32 [B, any], then PAD, with which translations begin; its unknown tokens stay.
    """
    size = tf.shape(source)[1]
    is_unknown = source == UNK_ID
    last = tf.reduce_sum(tf.cast(is_unknown, tf.int32), axis=1, keepdims=True) - 1  # [B, 1]
    order = tf.sort(tf.where(is_unknown, tf.range(size), size), axis=1)  # unknown tokens first
    words = tf.strings.strip(
        tf.strings.regex_replace(surfaces.to_tensor(""), CONTROL_CHARACTERS, " ")
    )
    is_text = ~tf.strings.regex_full_match(words, f".*{_REPLACEMENT}.*|")
    words = tf.where(is_text, words, _UNKNOWN)
    # Those of the source, without what it does not read, and two columns for EOS and for tokens
    # that stay.
    words = tf.pad(words[:, : size - 1], [[0, 0], [0, 2]], constant_values=_UNKNOWN)

    # Sparse, since a ragged tensor takes many more operations.
    parts = tf.compat.v1.strings.split(tf.reshape(translations, [-1]), _UNKNOWN)
    parts = tf.sparse.to_dense(parts, default_value="")
    parts = tf.reshape(parts, [tf.shape(ids)[0], ids.shape[1], tf.shape(parts)[1]])  # [B, N, P]
    places = tf.range(tf.shape(parts)[2])  # of the unknown token after each part
    first = 0 if prefix is None else tf.reduce_sum(tf.cast(prefix == UNK_ID, tf.int32), 1, True)
    index = tf.minimum(places - first, last)  # [B, P], negative for tokens that stay
    index = tf.where(index < 0, size, tf.gather(order, tf.maximum(index, 0), batch_dims=1))
    num_unknowns = tf.reduce_sum(tf.cast(ids == UNK_ID, tf.int32), axis=2)  # [B, N]
    copied = tf.gather(words, index, batch_dims=1)[:, None]  # [B, 1, P]
    copied = tf.where(places < num_unknowns[:, :, None], copied, "")
    joined = tf.strings.reduce_join(tf.strings.join([parts, copied]), axis=2)
    # A vocabulary may have the character "⁇" itself: then it is not known which one is the token.
    without = tf.strings.length(tf.strings.regex_replace(translations, _UNKNOWN, ""))
    num_marks = (tf.strings.length(translations) - without) // len(_UNKNOWN.encode())
    return tf.where(num_marks == num_unknowns, joined, translations)
