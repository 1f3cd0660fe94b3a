"""Text to text in one graph: tokenize, encode, search, detokenize.

The same `tf.function` translates in Python and is what `export` writes, so that a model server
answers just what Python answers.

Shapes: B sentences, S source length, N translations a sentence.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import END_ID, SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.search import Hypotheses
from keras_transformer.serving.searching import option_types, read_options, search_translations
from keras_transformer.serving.translation import Translation
from keras_transformer.serving.xla import CompiledSearch, XlaShapes
from keras_transformer.text import Tokenizer, Vocabulary
from keras_transformer.text.vocabulary import check_not_one_text

Tensor = Any


class Translator(tf.Module):
    """Translates sentences with a trained model.

    Args:
        model: any model with `encode` and `step`.
        source: the source's vocabulary.
        target: the target's vocabulary.
        search: how to search; the paper's settings by default.
        xla: shapes of batches for which XLA compiles the search; None means the plain graph, which
            runs everywhere. What sentences wish for themselves goes through the plain graph.

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
        xla: XlaShapes | None = None,
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
        self.xla = xla
        self._compiled = None
        if xla is not None:
            self._compiled = CompiledSearch(self._search, xla, self.search.max_extra_length)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def __call__(self, text: Tensor) -> dict[str, Tensor]:
        """Translates text [B] in the graph.

        A sentence of nothing but white space has the empty translation, with score 0.

        Returns:
            "translations", string [B, N], best first, and "scores", float32 [B, N].
        """
        return self._answer(text)

    def option_inputs(self) -> dict[str, tf.TensorSpec]:
        """Returns what `translate_options` takes beside the text, by name."""
        return {
            name: tf.TensorSpec([None], dtype, name=name)
            for name, dtype in option_types(self.search).items()
        }

    def translate_options(self, text: Tensor, **columns: Tensor) -> dict[str, Tensor]:
        """Translates text [B] as each sentence wishes, in the graph.

        Args:
            text: string [B].
            **columns: all of `option_inputs`, [B]; a negative number or empty text means what the
                translator's own configuration says. Phrases stand one to a line.

        Returns:
            As `__call__`.
        """
        return self._answer(text, read_options(columns, self.search, self.target_tokenizer))

    def _answer(self, text: Tensor, options: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        symbols = self.source_tokenizer.tokenize(text)[:, : self.search.max_source_length]
        hypotheses = self.search_symbols(symbols, options)
        translations = self.target_tokenizer.detokenize(hypotheses.ids)  # [B, N]
        is_blank = (symbols.row_lengths() == 0)[:, None]
        return {
            "translations": tf.where(is_blank, "", translations),
            "scores": tf.where(is_blank, 0.0, hypotheses.scores),
        }

    def search_symbols(
        self, symbols: tf.RaggedTensor, options: dict[str, Tensor] | None = None
    ) -> Hypotheses:
        """Returns translations of ids [B, (length)] without END, no longer than the limit.

        `options` as of `search_translations`.
        """
        ends = tf.fill([symbols.nrows(tf.int32), 1], END_ID)
        source = tf.concat([symbols, ends], axis=1).to_tensor()  # [B, S]
        if self._compiled is not None and options is None:
            return self._compiled(source)
        return self._search(source, None, options)

    def _search(
        self, source: Tensor, longest: int | None, options: dict[str, Tensor] | None = None
    ) -> Hypotheses:
        target = self.target_tokenizer.vocabulary
        return search_translations(self._model(), source, self.search, target, options, longest)

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
