"""Text to text in one graph: tokenize, encode, search, detokenize.

The same `tf.function` translates in Python and is what `export` writes, so that a model server
answers just what Python answers.

Shapes: B sentences, S source length, N translations a sentence.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID, SearchConfig
from keras_transformer.decoding import Tensor, TranslationModel
from keras_transformer.inference.compiled_search import CompiledSearch, XlaShapes
from keras_transformer.inference.precomputed import precompute
from keras_transformer.inference.search_options import (
    option_types,
    read_options,
    search_translations,
)
from keras_transformer.search import Hypotheses
from keras_transformer.text import Tokenizer, Vocabulary

if TYPE_CHECKING:
    from keras_transformer.client.outputs import Score, Translation
    from keras_transformer.inference.batch_translator import BatchTranslator


class Translator(tf.Module):
    """Translates sentences with a trained model.

    Args:
        model: see `TranslationModel`.
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
        model: TranslationModel,
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
        self._get_model = lambda: model
        self.xla = xla
        self._compiled = None
        if xla is not None:
            self._compiled = CompiledSearch(self._search, xla, self.search.max_extra_length)

    @property
    def model(self) -> TranslationModel:
        """What translates."""
        return self._get_model()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
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
        """Translates text [B] as each sentence constraints, in the graph.

        Args:
            text: string [B].
            **columns: all of `option_inputs`, [B]; a negative number or empty text means what the
                translator's own configuration says. Phrases stand one to a line.

        Returns:
            As `__call__`.
        """
        is_one_each = tf.reduce_all(
            [tf.size(values) == tf.size(text) for values in columns.values()]
        )
        checked = tf.debugging.Assert(is_one_each, ["every option must have a value for each row"])
        with tf.control_dependencies([checked]):
            text = tf.identity(text)
        return self._answer(text, read_options(columns, self.search, self.target_tokenizer))

    def _answer(self, text: Tensor, options: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        tokens = self.source_tokenizer.tokenize(text)[:, : self.search.max_source_length]
        hypotheses = self.search_tokens(tokens, options)
        translations = self.target_tokenizer.detokenize(hypotheses.ids)  # [B, N]
        is_blank = (tokens.row_lengths() == 0)[:, None]
        return {
            "translations": tf.where(is_blank, "", translations),
            "scores": tf.where(is_blank, 0.0, hypotheses.scores),
        }

    def search_tokens(
        self, tokens: tf.RaggedTensor, options: dict[str, Tensor] | None = None
    ) -> Hypotheses:
        """Returns translations of ids [B, (length)] without EOS, no longer than the limit.

        `options` as in `search_translations`.
        """
        source = with_eos(tokens)  # [B, S]
        if self._compiled is not None and options is None:
            return self._compiled(source)
        return self._search(source, None, options)

    def _search(
        self, source: Tensor, longest: int | None, options: dict[str, Tensor] | None = None
    ) -> Hypotheses:
        target = self.target_tokenizer.vocabulary
        return search_translations(self.model, source, self.search, target, options, longest)

    def precomputed(self) -> "Translator":
        """Returns a translator that is faster, for a model whose weights no longer change.

        What depends on the weights alone is computed here, once; see `precomputed.py`. After
        further training make another one.
        """
        return Translator(
            precompute(self.model),
            self.source_tokenizer.vocabulary,
            self.target_tokenizer.vocabulary,
            self.search,
            self.xla,
        )

    @functools.cached_property
    def local(self) -> "BatchTranslator":
        """Translates, scores and aligns lists of sentences."""
        from keras_transformer.inference.batch_translator import BatchTranslator
        from keras_transformer.inference.signatures import make_signature

        return BatchTranslator(
            lambda name: make_signature(self, name), self.target_tokenizer.vocabulary
        )

    def translate(
        self, sentences: Sequence[str], batch_size: int = 64, **options: Any
    ) -> "list[list[Translation]]":
        """Translates any number of sentences; see `BatchTranslator.translate`."""
        return self.local.translate(sentences, batch_size, **options)

    def score(
        self, source: Sequence[str], target: Sequence[str], batch_size: int = 64
    ) -> "list[Score]":
        """Returns how probable translations are; see `BatchTranslator.score`."""
        return self.local.score(source, target, batch_size)

    def align(
        self, source: Sequence[str], target: Sequence[str], batch_size: int = 64
    ) -> list[list[tuple[int, int]]]:
        """Returns which words translations were made from; see `BatchTranslator.align`."""
        return self.local.align(source, target, batch_size)


def with_eos(tokens: tf.RaggedTensor) -> Tensor:
    """Returns ids [B, (length)] with EOS behind each row, then padding: int32 [B, S]."""
    ends = tf.fill([tokens.nrows(tf.int32), 1], EOS_ID)
    return tf.concat([tokens, ends], axis=1).to_tensor(PAD_ID)
