"""Text to text in one graph: tokenize, encode, search, detokenize.

The same `tf.function` translates in Python and is what `export` writes, so that a model server
answers just what Python answers.

Shapes: B sentences, S source length, N translations a sentence.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_transformer.config import END_ID, START_ID, SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.search import beam_search
from keras_transformer.text import Tokenizer, Vocabulary
from keras_transformer.text.vocabulary import check_not_one_text

Tensor = Any


class Translation(NamedTuple):
    """One translation of a sentence.

    Attributes:
        text: the translation.
        score: its log-probability divided by the length penalty; 0 for a blank sentence.
    """

    text: str
    score: float


class Translator(tf.Module):
    """Translates sentences with a trained model.

    Args:
        model: any model with `encode` and `step`.
        source: the source's vocabulary.
        target: the target's vocabulary.
        search: how to search; the paper's settings by default.

    Example:
        >>> translator = Translator(run.load_model(), *run.vocabularies())
        >>> translator.translate(["two hundred"])[0][0].text
        'zweihundert'
    """

    def __init__(
        self,
        model: keras.Model,
        source: Vocabulary,
        target: Vocabulary,
        search: SearchConfig | None = None,
    ) -> None:
        super().__init__(name="translator")
        self.search = search or SearchConfig()
        self.source_tokenizer = Tokenizer(source)
        self.target_tokenizer = self.source_tokenizer
        if target.fingerprint != source.fingerprint:
            self.target_tokenizer = Tokenizer(target)
        # A SavedModel that tracks a Keras model loads in Python and fails in the C++ server:
        # the module tracks the variables themselves, and a function, which is never tracked,
        # knows the model.
        self.variables_to_save = [variable.value for variable in model.variables]
        self._model = lambda: model

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def __call__(self, text: Tensor) -> dict[str, Tensor]:
        """Translates text [B] in the graph.

        A sentence of nothing but white space has the empty translation, with score 0.

        Returns:
            "translations", string [B, N], best first, and "scores", float32 [B, N].
        """
        symbols = self.source_tokenizer.tokenize(text)[:, : self.search.max_source_length]
        lengths = tf.cast(symbols.row_lengths(), tf.int32)  # [B]
        ends = tf.fill([tf.shape(lengths)[0], 1], END_ID)
        source = tf.concat([symbols, ends], axis=1).to_tensor()  # [B, S]
        hypotheses = beam_search(
            self._model().step,
            self._model().encode(source, num_hypotheses=self.search.beam_size),
            start_ids=tf.fill(tf.shape(lengths), START_ID),
            max_lengths=lengths + self.search.max_extra_length,
            beam_size=self.search.beam_size,
            length_penalty=self.search.length_penalty,
            num_hypotheses=self.search.num_translations,
        )
        translations = self.target_tokenizer.detokenize(hypotheses.ids)  # [B, N]
        is_blank = (lengths == 0)[:, None]
        return {
            "translations": tf.where(is_blank, "", translations),
            "scores": tf.where(is_blank, 0.0, hypotheses.scores),
        }

    def translate(self, sentences: Sequence[str], batch_size: int = 64) -> list[list[Translation]]:
        """Translates any number of sentences; see `translate_sorted`."""
        return translate_sorted(self, sentences, batch_size)


def translate_sorted(
    translate: Callable[[Tensor], dict[str, Tensor]],
    sentences: Sequence[str],
    batch_size: int = 64,
) -> list[list[Translation]]:
    """Translates sentences in batches of like length, and returns them in their own order.

    Args:
        translate: a `Translator`, or the signature of an exported one.
        sentences: any number of them.
        batch_size: sentences translated at once.

    Returns:
        For each sentence its translations, best first.

    Raises:
        InputError: one string is given in place of a list, or `batch_size` is below 1.
    """
    check_not_one_text(sentences)
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    results: list[list[Translation]] = [[] for _ in sentences]
    order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index]))
    for first in range(0, len(order), batch_size):
        indices = order[first : first + batch_size]
        answer = translate(tf.constant([sentences[index] for index in indices]))
        texts, scores = answer["translations"].numpy(), answer["scores"].numpy()
        for row, index in enumerate(indices):
            results[index] = [
                Translation(text.decode("utf-8"), float(score))
                for text, score in zip(texts[row], scores[row], strict=True)
            ]
    return results
