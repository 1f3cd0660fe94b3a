"""Copies unknown words of the source to where a translation has the unknown token.

A model that meets a name in another script can only write the unknown token for it; its attention
tells which word it means (Luong et al. 2015, "Addressing the rare word problem").

Shapes: B sentences, S source length, N translations of a sentence, L their longest length; R
translations with something to copy.
"""

import tensorflow as tf

from keras_transformer.config import BOS_ID, UNK_ID
from keras_transformer.decoding import Tensor, TranslationModel
from keras_transformer.files import CONTROL_CHARACTERS
from keras_transformer.inference import scores
from keras_transformer.text import Tokenizer
from keras_transformer.text.tokenizer import with_eos

_UNKNOWN = "⁇"  # how texts show the token


def copy_unknowns(
    model: TranslationModel,
    translations: Tensor,
    ids: Tensor,
    source: tf.RaggedTensor,
    text: Tensor,
    tokenizer: Tokenizer,
    max_tokens: int,
    prefix: Tensor | None = None,
) -> Tensor:
    """Returns translations in which unknown tokens show the words that they attend to.

    Each becomes the unknown part of the source, such as "Владимир", with the most attention. A
    translation stays as it is if the source has no unknown token.

    Args:
        model: has attention.
        translations: string [B, N], the texts of `ids`.
        ids: int32 [B, N, L], with EOS, then PAD.
        source: int32 [B, (S)], without EOS.
        text: string [B], of which these are the tokens.
        tokenizer: of the source.
        max_tokens: the most of a sentence that are read.
        prefix: int32 [B, any], then PAD: with these the user said what is unknown.
    """
    is_unknown = (ids == UNK_ID) & tf.reduce_any(source == UNK_ID, axis=1)[:, None, None]
    if prefix is not None:
        lengths = tf.math.count_nonzero(prefix, axis=1, dtype=tf.int32)
        is_unknown &= tf.range(tf.shape(ids)[2]) >= lengths[:, None, None]

    def copied() -> Tensor:
        rows = tf.where(tf.reduce_any(is_unknown, axis=2))  # [R, 2]
        found, labels, is_copied = (
            tf.gather_nd(each, rows) for each in (translations, ids, is_unknown)
        )  # [R], [R, L], [R, L]
        sentence = rows[:, 0]
        read = tf.gather(with_eos(source), sentence)  # [R, S + 1]
        shifted = tf.pad(labels[:, :-1], [[0, 0], [1, 0]], constant_values=BOS_ID)
        weights = scores.attention(model, read, shifted, labels)  # [R, L, S + 1]
        weights = tf.where((read == UNK_ID)[:, None], weights, -1.0)
        # Cut as the search cuts a text, so that each of its tokens has a word here.
        words = tokenizer.surfaces(text, max_tokens + 1)[:, :max_tokens].to_tensor()
        words = tf.strings.strip(tf.strings.regex_replace(words, CONTROL_CHARACTERS, " "))
        words = tf.where(words == "", _UNKNOWN, words)
        words = tf.gather(words, sentence)  # [R, S]
        words = tf.gather(words, tf.argmax(weights, axis=2), batch_dims=1)  # [R, L]
        words = tf.where(is_copied, words, _UNKNOWN)
        # Between the parts of a text stands what each unknown token becomes.
        words = tf.ragged.boolean_mask(words, labels == UNK_ID)
        parts = tf.strings.split(found, _UNKNOWN)
        is_clear = parts.row_lengths() == words.row_lengths() + 1  # the text has no such character
        words = tf.concat([words, tf.zeros_like(found)[:, None]], axis=1)
        words, parts = (tf.ragged.boolean_mask(each, is_clear) for each in (words, parts))
        pairs = tf.strings.join([parts.flat_values, words.flat_values])
        joined = tf.strings.reduce_join(parts.with_flat_values(pairs), axis=1)
        return tf.tensor_scatter_nd_update(
            translations, tf.boolean_mask(rows, is_clear), tf.ensure_shape(joined, [None])
        )

    return tf.cond(tf.reduce_any(is_unknown), copied, lambda: translations)
