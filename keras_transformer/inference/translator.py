"""Text to text in one TensorFlow graph: tokenize, encode, search, detokenize.

The functions that translate in Python are those that `export` writes, so that a model server gives
the answers of Python. Dimension 0 of their inputs and outputs is the batch, as servers that merge
requests require; a row's answer does not depend on the others, but for padding at its end.

Shapes: B sentences, S source length, T target length, both with EOS; N translations a sentence,
L their longest length.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, PAD_ID, SearchConfig
from keras_transformer.data import Shortlist
from keras_transformer.decoding import Tensor, TranslationModel
from keras_transformer.errors import InputError
from keras_transformer.host import num_cores
from keras_transformer.inference import options as search_options
from keras_transformer.inference import scores as teacher_forcing
from keras_transformer.inference.cached_projection import cache_projection, refresh
from keras_transformer.inference.compiled_search import CompiledSearch, XlaShapes
from keras_transformer.inference.options import TEXTS, encode_phrases, make_lookup
from keras_transformer.results import (
    Attention,
    InputValues,
    Score,
    Translation,
    batches_by_length,
    in_row_order,
    in_words_of_texts,
    option_inputs,
    pair_inputs,
    read_alignments,
    read_attention,
    read_scores,
    read_translations,
    text_input,
)
from keras_transformer.search import Hypotheses
from keras_transformer.tasks import Task
from keras_transformer.text import Tokenizer, Vocabulary
from keras_transformer.text.tokenizer import with_eos

# Lists of sentences in and out, with the methods of `Client`, for a translator in this process.
#
# The answers come from the functions of the signatures, of a translator or of a SavedModel.

# Memory grows with the tokens of the batches that are translated at once, padding included. A
# sentence has no more tokens than bytes; a token of usual text has three to five.
_MAX_BATCH_BYTES = 1 << 15  # of one batch, unless it is a single sentence
_MAX_BYTES = 1 << 16  # of all batches at once, unless there is one only
_MAX_BATCHES = 8  # at once


class BatchTranslator:
    """Translates, scores and aligns any number of sentences, in batches of similar length.

    Args:
        function_of: gives the function of a signature by its name; asked for each at most once.
        target: the target's vocabulary, in which prefixes and phrases must be spelt; None does
            not check that.

    Example:
        >>> exported = load_exported("exports/numbers/1")
        >>> exported.translate(["two hundred"], max_length=3)[0][0].text
        'zweihundert'
    """

    def __init__(self, function_of: Callable[[str], Any], target: Vocabulary | None = None) -> None:
        self._make = function_of
        self._target = target
        self._functions: dict[str, Any] = {}

    def translate(
        self, sentences: Sequence[str], batch_size: int = 64, **options: Any
    ) -> list[list[Translation]]:
        """Returns the translations of each sentence, best first.

        Args:
            sentences: any number of them.
            batch_size: the most sentences of a batch; batches of long ones are smaller.
            **options: those fields of `SearchConfig` that may differ between sentences, see
                `option_types`, and "prefix": one value for all sentences, or a list with one for
                each, None for the translator's own. Several phrases of a sentence are a list, or
                text with a phrase on each line.

        Raises:
            InputError: there is no such option, or it cannot have such a value; the vocabulary
                cannot spell a prefix or phrase; one string is given in place of a list; or
                `batch_size` is below 1.
        """
        columns = {"text": text_input("text", sentences)}
        name = "serving_default"
        if options:
            name = "translate_options"
            inputs = signature_inputs(self._function(name))
            types = {key: f"DT_{_type_name(spec.dtype)}" for key, spec in inputs.items()}
            columns |= option_inputs(options, types, len(columns["text"].values))
            if self._target is not None:
                for option in TEXTS:
                    lines = {line for text in columns[option].values for line in text.split("\n")}
                    encode_phrases(option, sorted(filter(str.strip, lines)), self._target)
        # The steps of a search are too small for several cores to share: each takes a batch.
        at_once = min(_num_workers(), _MAX_BATCHES)
        lengths = _num_bytes(columns["text"])
        return self._in_batches(name, columns, lengths, batch_size, read_translations, at_once)

    def score(
        self, source: Sequence[str], target: Sequence[str], batch_size: int = 64
    ) -> list[Score]:
        """Returns the log-probability of each of the translations `target`.

        Raises:
            InputError: the numbers of sentences differ, or as in `translate`.
        """
        columns = pair_inputs(source, target)
        lengths = _pair_lengths(columns)
        return self._in_batches("score", columns, lengths, batch_size, read_scores)

    def attention(
        self, source: Sequence[str], target: Sequence[str], batch_size: int = 64
    ) -> list[Attention]:
        """Returns the mean attention of the last layer's heads, from which `align` takes words.

        Raises:
            InputError: as in `align`.
        """
        columns = pair_inputs(source, target)
        lengths = _pair_lengths(columns)
        return self._in_batches("attention", columns, lengths, batch_size, read_attention)

    def align(
        self, source: Sequence[str], target: Sequence[str], batch_size: int = 64
    ) -> list[list[tuple[int, int]]]:
        """Returns the source word to which each target word attends most.

        Words are separated by spaces. Only a vocabulary of whole words reads several unknown words
        in a row as one.

        Returns:
            For each sentence pairs (index of the source word, index of the target word).

        Raises:
            InputError: as in `score`, or the model has no attention.
        """
        columns = pair_inputs(source, target)
        lengths = _pair_lengths(columns)
        found = self._in_batches("attention", columns, lengths, batch_size, read_alignments)
        return in_words_of_texts(found, columns["source"].values, columns["target"].values)

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            try:
                self._functions[name] = self._make(name)
            except KeyError as error:
                raise InputError(
                    f"the model has no signature {name!r}; export it again, or leave out what asks "
                    "for it"
                ) from error
        return self._functions[name]

    def _in_batches(
        self,
        name: str,
        columns: Mapping[str, InputValues],
        lengths: Sequence[int],
        batch_size: int,
        read: Callable[[Mapping[str, Any]], list[Any]],
        at_once: int = 1,
    ) -> list[Any]:
        """Returns what `read` makes of the answers of a signature, in the order of the rows.

        At most `at_once` batches run at the same time.
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        function = self._function(name)
        inputs = signature_inputs(function)

        def answer(rows: Sequence[int]) -> list[Any]:
            batch = {
                name: tf.constant([column.values[row] for row in rows], inputs[name].dtype)
                for name, column in columns.items()
            }
            return read({name: _plain(values) for name, values in function(**batch).items()})

        batches = batches_by_length(lengths, batch_size, _MAX_BATCH_BYTES)
        if min(at_once, len(batches)) <= 1:
            return in_row_order(batches, map(answer, batches))
        sizes = [len(batch) * lengths[batch[0]] for batch in batches]
        return in_row_order(batches, _run(answer, batches, sizes, at_once))


def signature_inputs(function: Any) -> dict[str, tf.TensorSpec]:
    """Returns the inputs of a signature's function by name."""
    positional, keywords = function.structured_input_signature
    return {spec.name: spec for spec in [*positional, *keywords.values()]}


def _run(
    function: Callable[[Sequence[int]], list[Any]],
    batches: Sequence[Sequence[int]],
    sizes: Sequence[int],
    at_once: int,
) -> list[list[Any]]:
    """Returns `function` of each batch, computed by `at_once` threads at most.

    The batches under way have at most `_MAX_BYTES`, unless there is one only.
    """
    running: dict[futures.Future[list[Any]], int] = {}
    started = []
    with futures.ThreadPoolExecutor(at_once) as pool:
        for batch, size in zip(batches, sizes, strict=True):
            while len(running) == at_once or (
                running and sum(running.values()) + size > _MAX_BYTES
            ):
                done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
                for each in done:
                    del running[each]
                    each.result()  # raises its error before more are started
            future = pool.submit(function, batch)
            running[future] = size
            started.append(future)
        return [future.result() for future in started]


def _num_workers() -> int:
    """Returns how many batches can be translated at once; a GPU takes one."""
    return 1 if tf.config.list_physical_devices("GPU") else num_cores()


def _num_bytes(column: InputValues) -> list[int]:
    return [len(text.encode()) for text in column.values]


def _pair_lengths(columns: Mapping[str, InputValues]) -> list[int]:
    pairs = zip(_num_bytes(columns["source"]), _num_bytes(columns["target"]), strict=True)
    return [source + target for source, target in pairs]


def _plain(values: tf.Tensor) -> Any:
    """Returns a tensor as nested lists, its strings as text."""
    array = values.numpy()
    if array.dtype != object:
        return array.tolist()
    text = [each.decode("utf-8", "replace") for each in array.ravel()]
    return np.array(text, object).reshape(array.shape).tolist()


def _type_name(dtype: tf.DType) -> str:
    return {tf.string: "STRING", tf.float32: "FLOAT", tf.int32: "INT32", tf.int64: "INT64"}[dtype]


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
