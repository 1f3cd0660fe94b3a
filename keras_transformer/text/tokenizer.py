"""Tokenizing inside a TensorFlow graph: string tensors to ids and back.

Gives the same ids and the same text as `Vocabulary`, and goes into a SavedModel with the model
inside, so that a server takes and returns plain sentences.

Shapes: B sentences, L length of the longest.
"""

import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.text.vocabulary import Vocabulary


class Tokenizer(tf.Module):
    """A vocabulary as TensorFlow operations; track it in whatever module is exported.

    Args:
        vocabulary: gives the tokens.

    Attributes:
        vocabulary: as given.

    Example:
        >>> tokenizer = Tokenizer(vocabulary)
        >>> ids = tokenizer.tokenize(tf.constant(["ein Hund"]))  # [B, (length)]
        >>> tokenizer.detokenize(ids.to_tensor())  # [B]
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(name="tokenizer")
        self.vocabulary = vocabulary

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of each sentence, without start and end.

        Args:
            text: string [B], UTF-8. A byte that is not UTF-8 becomes the unknown token.

        Returns:
            int32 [B, (length)]
        """
        return self._sentencepiece().tokenize(text)

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the text of each row of ids up to its first end; padding and start are skipped.

        Args:
            ids: integers [..., L], with any number of leading dimensions.

        Returns:
            string [...], where the unknown token reads "⁇".

        Raises:
            tf.errors.OutOfRangeError: an id is outside the vocabulary.
        """
        ids = tf.cast(ids, tf.int32)
        leading_shape = tf.shape(ids)[:-1]
        rows = tf.reshape(ids, [tf.reduce_prod(leading_shape), tf.shape(ids)[-1]])  # [B, L]
        is_ended = tf.cumsum(tf.cast(rows == EOS_ID, tf.int32), axis=-1) > 0
        is_content = ~is_ended & (rows != PAD_ID) & (rows != BOS_ID)
        text = self._sentencepiece().detokenize(tf.ragged.boolean_mask(rows, is_content))  # [B]
        # Left by an unknown first word, whose token includes the space before it.
        text = tf.strings.regex_replace(text, "^ ", "")
        return tf.ensure_shape(tf.reshape(text, leading_shape), ids.shape[:-1])

    def _sentencepiece(self) -> tf_text.SentencepieceTokenizer:
        """Returns the tokenizer as a part of the graph that is being traced, if one is.

        One that is made once and kept lives in a kernel of TensorFlow's eager runtime, and is lost
        when `tf.random.set_seed` or `keras.utils.set_random_seed` clears the cache of kernels.
        """
        # A SavedModel finds a SentencePiece model by its name: without one of its own, the second
        # tokenizer of a SavedModel would silently work with the model of the first.
        return tf_text.SentencepieceTokenizer(
            self.vocabulary.model_bytes, name=f"sentencepiece_{self.vocabulary.fingerprint}"
        )
