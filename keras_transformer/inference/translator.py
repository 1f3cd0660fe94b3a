"""Text to text in one TensorFlow graph: tokenize, encode, search, detokenize.

The functions that translate in Python are those that `export` writes, so that a model server gives
the answers of Python. Dimension 0 of their inputs and outputs is the batch, as servers that merge
requests require; a row's answer does not depend on the others, but for padding at its end.

Shapes: B sentences, S source length, T target length, both with EOS; N translations a sentence,
L their longest length.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.client.outputs import Score, Translation
from keras_transformer.config import BOS_ID, PAD_ID, SearchConfig
from keras_transformer.data import Shortlist
from keras_transformer.decoding import Tensor, TranslationModel
from keras_transformer.errors import InputError
from keras_transformer.inference import search_options, teacher_forcing
from keras_transformer.inference.batch_translator import BatchTranslator
from keras_transformer.inference.cached_projection import cache_projection, refresh
from keras_transformer.inference.compiled_search import CompiledSearch, XlaShapes
from keras_transformer.inference.shortlist_lookup import make_lookup
from keras_transformer.search import Hypotheses
from keras_transformer.tasks import Task
from keras_transformer.text import Tokenizer, Vocabulary
from keras_transformer.text.tokenizer import with_eos


class Translator(tf.Module):
    """Translates sentences with a trained model.

    Args:
        model: see `TranslationModel`.
        source, target: the vocabularies.
        search: how to search; as the task does by default, or with the paper's settings.
        xla: shapes for which XLA compiles the search, but for options of single sentences.
        task: of the model; it may constrain searches and make answers of what they find.
        shortlist: of the vocabularies, where the search asks for one.

    Raises:
        InputError: a coverage penalty needs attention that the model lacks; see `make_lookup`.

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
        task: Task | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        super().__init__(name="translator")
        self.search = search or (task.search_config() if task else SearchConfig())
        self.task = task
        if self.search.coverage_penalty and not hasattr(model, "attention"):
            raise InputError(
                "coverage_penalty needs a model with attention, and this one has none; leave it out"
            )
        self._shortlist = shortlist
        self._lookup = make_lookup(shortlist, self.search, target.size, xla is not None)
        # Given translations are cut to the most tokens that a generated one can have.
        self._max_target_length = self.search.max_source_length + self.search.max_extra_length
        self.source_tokenizer = Tokenizer(source)
        self.target_tokenizer = self.source_tokenizer
        if target.fingerprint != source.fingerprint:
            self.target_tokenizer = Tokenizer(target)
        # A SavedModel that tracks a Keras model loads in Python and fails in the C++ server: the
        # module tracks the variables, and reaches the model through a function, never tracked.
        variables = [variable.value for variable in model.variables]
        self.variables_to_save = [*variables, *(self._lookup.variables if self._lookup else ())]
        self._get_model = lambda: model
        self.xla = xla
        self._compiled = xla and CompiledSearch(self._search, xla, self.search.max_extra_length)
        self._batches = BatchTranslator(self.signature, target)

    @property
    def model(self) -> TranslationModel:
        return self._get_model()

    def translate(
        self, sentences: Sequence[str], batch_size: int = 64, **options: Any
    ) -> list[list[Translation]]:
        """Translates any number of sentences; see `BatchTranslator.translate`."""
        refresh(self.model)
        return self._batches.translate(sentences, batch_size, **options)

    def score(
        self, source: Sequence[str], target: Sequence[str], batch_size: int = 64
    ) -> list[Score]:
        """Returns log-probabilities of translations; see `BatchTranslator.score`."""
        refresh(self.model)
        return self._batches.score(source, target, batch_size)

    def align(
        self, source: Sequence[str], target: Sequence[str], batch_size: int = 64
    ) -> list[list[tuple[int, int]]]:
        """Returns which words translations are made from; see `BatchTranslator.align`."""
        refresh(self.model)
        return self._batches.align(source, target, batch_size)

    def with_cached_projection(self) -> "Translator":
        """Returns a faster translator; functions of `signature` do not notice changed weights."""
        parts = self.source_tokenizer.vocabulary, self.target_tokenizer.vocabulary, self.search
        model = cache_projection(self.model)
        return Translator(model, *parts, self.xla, self.task, self._shortlist)

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to export by name, traced; see `signature`.

        serving_default     text to its translations
        translate_options   text, and options of each sentence, to its translations
        score               text and a translation of it to the translation's log-probability
        tokens              ids to the ids of their translations
        attention           text and a translation to the attention between them, if there is any

        The translator, which tracks the variables, must be the root of a SavedModel of them.
        """
        names = ["serving_default", "translate_options", "score", "tokens"]
        names += ["attention"] * hasattr(self.model, "attention")
        return {name: self.signature(name) for name in names}

    def signature(self, name: str) -> Any:
        """Returns one of the functions of `signatures`; `KeyError` where there is none."""
        if name == "serving_default":
            return self._translate_text.get_concrete_function()
        if name == "attention" and not hasattr(self.model, "attention"):
            raise KeyError(name)
        types = {"source": tf.string, "target": tf.string}
        text, pair = _columns({"text": tf.string}), _columns(types)
        ids = tf.TensorSpec([None, None], tf.int32, name="source")
        function, inputs = {
            "translate_options": (self.translate_options, text | self.option_inputs()),
            "score": (self._score, pair),
            "tokens": (self._translate_tokens, {"source": ids}),
            "attention": (self._attention, pair),
        }[name]
        return tf.function(function, autograph=False).get_concrete_function(**inputs)

    def __call__(self, text: Tensor) -> dict[str, Tensor]:
        """Returns "translations", string [B, N], best first, and "scores" [B, N] of text [B]."""
        if tf.executing_eagerly():
            refresh(self.model)
        return self._translate_text(text)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def _translate_text(self, text: Tensor) -> dict[str, Tensor]:
        return self._translate(text)

    def option_inputs(self) -> dict[str, tf.TensorSpec]:
        """Returns the inputs of `translate_options` besides the text, by name."""
        return _columns(search_options.option_types(self.search))

    def translate_options(self, text: Tensor, **columns: Tensor) -> dict[str, Tensor]:
        """Translates text [B] with options [B] of `option_types`.

        A negative number or empty text stands for the value of the configuration; phrases are
        separated by newlines.
        """
        text = _checked(text, columns.values(), "every option must have a value for each row")
        return self._translate(
            text, search_options.read_options(columns, self.search, self.target_tokenizer)
        )

    def _translate(
        self, text: Tensor, options: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        tokens = self.source_tokenizer.tokenize(text, self.search.max_source_length)
        hypotheses = self._search_tokens(tokens, options)
        translations = self.target_tokenizer.detokenize(hypotheses.ids)  # [B, N]
        if self.task is not None:
            translations = self.task.finish(translations, text)
        is_blank = (tokens.row_lengths() == 0)[:, None]
        return {
            "translations": tf.where(is_blank, "", translations),
            "scores": tf.where(is_blank, 0.0, hypotheses.scores),
        }

    def _translate_tokens(self, source: Tensor) -> dict[str, Tensor]:
        """Translates ids [B, S] that end in EOS; see `Tokenizer.unpad` for what else may come.

        Returns "ids" [B, N, L] with EOS, then PAD; "lengths" [B, N] with EOS; "scores" [B, N]. A
        row without EOS, or of nothing else, has translations of length 0 and score 0.
        """
        tokens = self.source_tokenizer.unpad(source)[:, : self.search.max_source_length]
        hypotheses = self._search_tokens(tokens)
        is_blank = (tokens.row_lengths() == 0)[:, None]  # [B, 1]
        return {
            "ids": tf.where(is_blank[:, :, None], PAD_ID, hypotheses.ids),
            "lengths": tf.where(is_blank, 0, hypotheses.lengths),
            "scores": tf.where(is_blank, 0.0, hypotheses.scores),
        }

    def _search_tokens(
        self, tokens: tf.RaggedTensor, options: Mapping[str, Tensor] | None = None
    ) -> Hypotheses:
        """Returns translations of ids [B, (length)] without EOS."""
        source = with_eos(tokens)  # [B, S]
        if self._compiled is not None and options is None:
            return self._compiled(source)
        return self._search(source, None, options)

    def _search(
        self, source: Tensor, longest: int | None, options: Mapping[str, Tensor] | None = None
    ) -> Hypotheses:
        vocabularies = self.source_tokenizer.vocabulary, self.target_tokenizer.vocabulary
        constraints = self.task.constraints(source, vocabularies) if self.task else ()
        parts = source, self.search, vocabularies[1], options, longest, constraints, self._lookup
        return search_options.search_translations(self.model, *parts)

    def _score(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        ids = self._read_pair(source, target)
        return teacher_forcing.score(self.model, *ids, max_length=self._max_target_length + 1)

    def _attention(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        ids, shifted, labels = self._read_pair(source, target)
        return teacher_forcing.token_values(self.model, ids, shifted) | {
            "attention": teacher_forcing.attention(self.model, ids, shifted, labels),
            "source_pieces": self.source_tokenizer.pieces(ids),
            "target_pieces": self.target_tokenizer.pieces(labels),
        }

    def _read_pair(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns ids: the source [B, S], the target [B, T] shifted right, the labels [B, T]."""
        source = _checked(source, [target], "source and target must have as many rows")
        source = self.source_tokenizer.tokenize(source, self.search.max_source_length)
        labels = with_eos(self.target_tokenizer.tokenize(target, self._max_target_length))
        shifted = tf.pad(labels[:, :-1], [[0, 0], [1, 0]], constant_values=BOS_ID)
        return with_eos(source), shifted, labels


def _checked(first: Tensor, others: Iterable[Tensor], message: str) -> Tensor:
    """Returns the first of several tensors [B] once it is sure that all have its rows."""
    sizes = [tf.size(each) == tf.size(first) for each in others]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(sizes), [message])]):
        return tf.identity(first)


def _columns(types: Mapping[str, tf.DType]) -> dict[str, tf.TensorSpec]:
    return {name: tf.TensorSpec([None], dtype, name=name) for name, dtype in types.items()}
