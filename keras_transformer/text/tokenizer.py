"""Tokenization inside a TensorFlow graph: string tensors to ids and back.

Gives the same ids and the same text as `Vocabulary`. A SavedModel contains it with the vocabulary,
so that a server takes and returns plain sentences.

Shapes: B sentences, L length of the longest.
"""

import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.config import BOS_ID, EOS_ID, LANGUAGE_CODE, PAD_ID, UNK_ID, WORD_START
from keras_transformer.files import CONTROL_CHARACTERS
from keras_transformer.text.normalization import NOTHING_VISIBLE
from keras_transformer.text.vocabulary import Vocabulary

_UNKNOWN_CODE = "\U0010fffd"  # for private use: no vocabulary has it


class Tokenizer(tf.Module):
    """A vocabulary as TensorFlow operations; the module that is exported must track it.

    Args:
        vocabulary: the vocabulary, kept as an attribute.

    Example:
        >>> tokenizer = Tokenizer(vocabulary)
        >>> ids = tokenizer.tokenize(tf.constant(["ein Hund"]))  # [B, (length)]
        >>> tokenizer.detokenize(ids)  # [B]
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(name="tokenizer")
        self.vocabulary = vocabulary

    def tokenize(self, text: tf.Tensor, max_tokens: int | None = None) -> tf.RaggedTensor:
        """Returns the ids of each sentence, without BOS and EOS.

        Args:
            text: string [B], UTF-8. A byte that is not UTF-8 becomes the unknown token.
            max_tokens: the most ids of a sentence, the rest of which is not read, see
                `Vocabulary.max_characters`; None for all.

        Returns:
            int32 [B, (length)]
        """
        if max_tokens is None:
            return self._tokenize(self._visible(text))
        return self._tokenize(self._cut(text, max_tokens))[:, :max_tokens]

    def tokenize_with_surfaces(
        self, text: tf.Tensor, max_tokens: int
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the ids of `tokenize`, and the part of the text that each is.

        Returns:
            int32 [B, (length)], string [B, (length)]; rows may have more than `max_tokens`.
        """
        text = self._cut(text, max_tokens)
        words = tf.strings.split(text, " ") if self.vocabulary.cuts_words_apart else None
        flat = text if words is None else words.flat_values
        ids, starts, ends = self._sentencepiece().tokenize_with_offsets(flat)
        places = tf.range(tf.size(starts.flat_values, tf.int64))
        rows = tf.searchsorted(starts.row_splits, places, side="right") - 1
        parts = tf.strings.substr(
            tf.gather(flat, rows), starts.flat_values, ends.flat_values - starts.flat_values
        )
        if self.vocabulary.language_codes:
            parts = tf.strings.regex_replace(parts, _UNKNOWN_CODE, "⁇")
        columns = self._known(ids), ids.with_flat_values(parts)
        if words is None:
            return columns
        ids, surfaces = (words.with_flat_values(column).merge_dims(1, 2) for column in columns)
        return ids, surfaces

    def _cut(self, text: tf.Tensor, max_tokens: int) -> tf.Tensor:
        """Returns the beginning of each text, which has all of its first `max_tokens` tokens.

        It has no invisible characters, as in `Vocabulary.encode`.
        """
        limit = self.vocabulary.max_characters(max_tokens)
        # By bytes first: bytes that are not UTF-8 may count as one character, however many.
        text = tf.strings.substr(text, 0, 4 * limit)
        return self._visible(tf.strings.substr(text, 0, limit, unit="UTF8_CHAR"))

    def cuts(self, text: tf.Tensor, max_tokens: int) -> tf.Tensor:
        """Returns which texts [B] have more characters than are read for `max_tokens`, bool [B]."""
        limit = self.vocabulary.max_characters(max_tokens)
        return tf.strings.length(text, unit="UTF8_CHAR") > limit

    def _visible(self, text: tf.Tensor) -> tf.Tensor:
        """Returns text [B] as `Vocabulary.visible` does, with its language code apart.

        A graph shares its batch between requests, so an unknown code is no error as it is in
        `Vocabulary.encode`, but an unknown token.
        """
        dropped = f"^{NOTHING_VISIBLE}$|{self.vocabulary.dropped_pattern}"
        text = tf.strings.regex_replace(text, dropped, r"\1")
        text = tf.strings.regex_replace(text, self.vocabulary.space_pattern, " ")
        if self.vocabulary.composes:
            text = tf_text.normalize_utf8(text, "NFC")
        if not self.vocabulary.language_codes:
            return text
        start = f"^{LANGUAGE_CODE}"
        return tf.where(
            self.has_unknown_code(text),
            tf.strings.regex_replace(text, start, f"{_UNKNOWN_CODE} "),
            tf.strings.regex_replace(text, start, r"\1 "),
        )

    def has_unknown_code(self, text: tf.Tensor) -> tf.Tensor:
        """Which texts begin with a language code other than those of the vocabulary, bool [B]."""
        text = tf.strings.regex_replace(text, f"^{NOTHING_VISIBLE}", "")
        code = tf.strings.regex_replace(text, f"(?s)^{LANGUAGE_CODE}.*", r"\1")
        codes = tf.constant(self.vocabulary.language_codes)
        is_known = tf.reduce_any(code[:, None] == codes, axis=1)
        return tf.strings.regex_full_match(text, f"(?s){LANGUAGE_CODE}.*") & ~is_known

    def _tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        if self.vocabulary.cuts_words_apart:
            words = tf.strings.split(text, " ")  # [B, (words)]
            ids = self._sentencepiece().tokenize(words.flat_values)
            tokens = words.with_flat_values(ids).merge_dims(1, 2)
        else:
            tokens = self._sentencepiece().tokenize(text)
        return self._known(tokens)

    def _known(self, tokens: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the ids of SentencePiece's output, the unknown token for what is no token."""
        ids = tokens.flat_values
        if self.vocabulary.looks_up_runs:
            ids = self._sentencepiece().string_to_id(ids)
        if self.vocabulary.has_more_pieces:
            ids = tf.where(ids < self.vocabulary.size, ids, UNK_ID)
        return tokens.with_flat_values(ids)

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the text of each row of ids up to its first EOS; padding and BOS are skipped.

        Args:
            ids: integers [..., L], with any number of leading dimensions; or ragged, as `tokenize`
                returns them.

        Returns:
            string [...], where the unknown token reads "⁇", and control characters read as spaces.

        Raises:
            tf.errors.OutOfRangeError: an id is outside the vocabulary.
        """
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(PAD_ID)
        ids = tf.cast(ids, tf.int32)
        leading_shape = tf.shape(ids)[:-1]
        rows = tf.reshape(ids, [tf.reduce_prod(leading_shape), tf.shape(ids)[-1]])  # [B, L]
        is_ended = tf.cumsum(tf.cast(rows == EOS_ID, tf.int32), axis=-1) > 0
        is_content = ~is_ended & (rows != PAD_ID) & (rows != BOS_ID)
        text = self._sentencepiece().detokenize(tf.ragged.boolean_mask(rows, is_content))  # [B]
        # Bytes of an unknown word spell the "▁" that it begins with, too.
        text = tf.strings.regex_replace(text, WORD_START, " ")
        # Left by an unknown first word, whose token includes the space before it, or by a last "▁".
        text = tf.strings.regex_replace(text, "^ +| +$", "")
        text = tf.strings.regex_replace(text, CONTROL_CHARACTERS, " ")
        return tf.ensure_shape(tf.reshape(text, leading_shape), ids.shape[:-1])

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the tokens with these ids as text, of the same shape; padding is the empty text.

        Where all tokens are words, the unknown one begins a word as well.
        """
        pieces = self.vocabulary.pieces(range(self.vocabulary.size))
        pieces[PAD_ID] = ""
        if all(piece.startswith(WORD_START) for piece in pieces[EOS_ID + 1 :]):
            pieces[UNK_ID] = WORD_START + pieces[UNK_ID]
        return tf.gather(tf.constant(pieces), ids)

    def _sentencepiece(self) -> tf_text.SentencepieceTokenizer:
        """Returns a new tokenizer, part of the graph that is being traced, if any.

        One that is kept lives in a kernel of TensorFlow's eager runtime, and is lost when
        `tf.random.set_seed` or `keras.utils.set_random_seed` clears the cache of kernels.
        """
        # A SavedModel finds a SentencePiece model by its name: without a unique name, the second
        # tokenizer of a SavedModel would silently use the model of the first.
        return tf_text.SentencepieceTokenizer(
            self.vocabulary.model_bytes,
            out_type=tf.string if self.vocabulary.looks_up_runs else tf.int32,
            name=f"sentencepiece_{self.vocabulary.fingerprint}",
        )


def with_eos(tokens: tf.RaggedTensor, max_tokens: int | None = None) -> tf.Tensor:
    """Returns ids [B, (length)] with EOS at the end of each row, then padding: int32 [B, L].

    L is at least 1, also where B is 0: a loop over no time steps at all has outputs of no shape.
    Of a row the first `max_tokens` ids are kept; None keeps all.
    """
    ids = tf.pad(tokens.to_tensor(PAD_ID), [[0, 0], [0, 1]], constant_values=PAD_ID)
    lengths = tf.cast(tokens.row_lengths(), tf.int32)
    if max_tokens is not None:
        ids, lengths = ids[:, : max_tokens + 1], tf.minimum(lengths, max_tokens)
    is_end = tf.range(tf.shape(ids)[1]) == lengths[:, None]
    return tf.where(is_end, EOS_ID, ids)
