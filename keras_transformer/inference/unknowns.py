"""Copies unknown words of the source to where a translation has the unknown token.

A model that meets a name in another script can only write the unknown token for it. Names mostly
keep their order, so the first unknown token stands for the first unknown word, and so on. Luong et
al. 2015 take the word with the most attention, which needs a second pass of the decoder.

Shapes: B sentences, S source length, N translations of a sentence, L their longest length, P the
most parts of a translation, between which unknown tokens stand.
"""

import tensorflow as tf

from keras_transformer.config import UNK_ID
from keras_transformer.decoding import Tensor
from keras_transformer.files import CONTROL_CHARACTERS

_UNKNOWN = "⁇"  # how texts show the token
_REPLACEMENT = "\ufffd"  # stands for bytes that are not UTF-8


def copy_unknowns(
    translations: Tensor,
    ids: Tensor,
    source: Tensor,
    surfaces: tf.RaggedTensor,
    prefix: Tensor | None = None,
) -> Tensor:
    """Returns translations in which unknown tokens show the unknown words of the source, in order.

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
