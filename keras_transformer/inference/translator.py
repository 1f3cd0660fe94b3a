"""Text to text in Python: tokenize, encode, search, detokenize, in one TensorFlow graph.

`Translator.translate` sorts sentences by length and runs the graph on batches of them:

1. `Tokenizer.tokenize` cuts text [B] into ids [B, S] (text/tokenizer.py),
2. `search_translations` encodes the ids and hands the model's `step` to `beam_search` or `sample`
   (search/), with the constraints that options.py makes of a `SearchConfig`,
3. `Tokenizer.detokenize` makes text [B, N] of the ids found, and `Task.finish` completes it.

`export` writes the functions that run here, so that a model server gives the answers of Python.
Dimension 0 of their inputs and outputs is the batch, as servers that merge requests require; a
row's answer depends on no other row, except for the padding at its end.

Shapes: B sentences, S source length, T target length, both with EOS; N translations of a sentence,
L their longest length.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any, Literal, overload

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, PAD_ID, SearchConfig
from keras_transformer.decoding import Tensor, TranslationModel
from keras_transformer.errors import InputError
from keras_transformer.host import check_not_forked, num_cores
from keras_transformer.inference import scores
from keras_transformer.inference.acceleration import (
    CompiledSearch,
    XlaShapes,
    cache_projection,
    refresh,
)
from keras_transformer.inference.options import (
    encode_phrases,
    make_constraints,
    max_lengths,
    option_types,
    read_config,
    read_options,
)
from keras_transformer.results import (
    Attention,
    DetailedTranslation,
    InputValues,
    Score,
    Translation,
    batches_by_length,
    check_details,
    in_row_order,
    in_words_of_texts,
    option_inputs,
    pair_inputs,
    read_alignments,
    read_attention,
    read_details,
    read_scores,
    read_translations,
    text_input,
    warn_about_cut,
    with_alignments,
)
from keras_transformer.search import (
    Constraint,
    Hypotheses,
    beam_search,
    kv_cache_capacities,
    sample,
    sentence_seeds,
)
from keras_transformer.tasks import Task
from keras_transformer.text import Tokenizer, Vocabulary
from keras_transformer.text.tokenizer import with_eos

# The memory that search needs grows with the tokens of the batches in progress, padding included.
# A sentence has no more tokens than bytes; tokens of ordinary text have three to five bytes.
_MAX_BATCH_BYTES = 1 << 15  # of one batch, unless it is a single sentence
_MAX_BYTES = 1 << 16  # of all batches in progress, unless there is only one
_MAX_BATCHES = 8  # in progress
_TYPES = {tf.string: "DT_STRING", tf.float32: "DT_FLOAT", tf.int32: "DT_INT32"}


class BatchTranslator:
    """Translates, scores and aligns any number of sentences, in batches of similar length.

    Its methods are those of `Client`; the answers come from the signatures of a `Translator` or of
    a SavedModel.

    Args:
        signature: returns the function of a signature by its name; called once for each name.
        target: the target vocabulary, to check that it can spell prefixes and phrases; None skips
            this check.

    Example:
        >>> exported = load_exported("exports/numbers/1")
        >>> exported.translate(["two hundred"], max_length=3)[0][0].text
        'zweihundert'
    """

    def __init__(self, signature: Callable[[str], Any], target: Vocabulary | None = None) -> None:
        check_not_forked()
        self._function = functools.cache(signature)
        self._target = target

    @overload
    def translate(
        self,
        sentences: Sequence[str],
        batch_size: int = ...,
        *,
        details: Literal[False] = ...,
        **options: Any,
    ) -> list[list[Translation]]: ...

    @overload
    def translate(
        self,
        sentences: Sequence[str],
        batch_size: int = ...,
        *,
        details: Literal[True],
        **options: Any,
    ) -> list[list[DetailedTranslation]]: ...

    def translate(
        self,
        sentences: Sequence[str],
        batch_size: int = 64,
        *,
        details: bool = False,
        **options: Any,
    ) -> Any:
        """Returns the translations of each sentence, best first.

        Args:
            sentences: any number of them.
            batch_size: the maximum number of sentences of a batch; batches of long sentences are
                smaller.
            details: whether to return each as a `DetailedTranslation`, with the log-probability of
                each token, the alignment, and whether its source or itself was cut.
            **options: the fields of `SearchConfig` that may differ between sentences, see
                `option_types`, and "prefix": one value for all sentences, or a list with one for
                each, None for the translator's own. A list of phrases is for all sentences, a list
                of such lists has those of each sentence.

        Raises:
            InputError: an option is unknown or its value invalid; the vocabulary cannot spell a
                prefix or phrase; `sentences` is a single string; `batch_size` is below 1; the model
                was exported without details.
        """
        columns = {"text": text_input("text", sentences)}
        name = "serving_default"
        if options:
            name = "translate_options"
            inputs = signature_inputs(self._find(name))
            types = {key: _TYPES[spec.dtype] for key, spec in inputs.items()}
            columns |= option_inputs(options, types, len(columns["text"].values))
            if self._target is not None:
                for option in ("prefix", "banned_phrases"):
                    lines = {line for text in columns[option].values for line in text.split("\n")}
                    phrases = sorted(filter(str.strip, lines))
                    encode_phrases(option, phrases, self._target)
        # A search step is too small for several cores to share: each core takes a batch.
        num_workers = min(_num_workers(), _MAX_BATCHES)
        read: Callable[[Mapping[str, Any]], list[Any]] = read_translations
        if details:
            check_details(self._find(name).structured_outputs)
            read = read_details
        found = self._run_in_batches(name, columns, batch_size, read, num_workers)
        return with_alignments(found, columns["text"].values) if details else found

    def score(
        self, source: Sequence[str], target: Sequence[str], batch_size: int = 64
    ) -> list[Score]:
        """Returns the log-probability of each of the translations `target`.

        Warns if the model cuts translations that are longer than any that it can generate.

        Raises:
            InputError: the numbers of sentences differ, or as in `translate`.
        """
        scores = self._run_in_batches("score", pair_inputs(source, target), batch_size, read_scores)
        warn_about_cut(scores)
        return scores

    def attention(
        self, source: Sequence[str], target: Sequence[str], batch_size: int = 64
    ) -> list[Attention]:
        """Returns the attention from which `align` takes words, see `Transformer.attention`.

        Raises:
            InputError: as in `align`.
        """
        columns = pair_inputs(source, target)
        return self._run_in_batches("attention", columns, batch_size, read_attention)

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
        found = self._run_in_batches("attention", columns, batch_size, read_alignments)
        return in_words_of_texts(found, columns["source"].values, columns["target"].values)

    def _find(self, name: str) -> Any:
        try:
            return self._function(name)
        except KeyError as error:
            if error.args != (name,):  # of the model or the task
                raise
            raise InputError(
                f"the model has no signature {name!r}; export it again, or remove the option that "
                "needs it"
            ) from error

    def _run_in_batches(
        self,
        name: str,
        columns: Mapping[str, InputValues],
        batch_size: int,
        read: Callable[[Mapping[str, Any]], list[Any]],
        num_workers: int = 1,
    ) -> list[Any]:
        """Returns what `read` makes of the answers of a signature, in the order of the rows."""
        check_not_forked()
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        function = self._find(name)
        inputs = signature_inputs(function)

        def answer(rows: Sequence[int]) -> list[Any]:
            batch = {
                name: tf.constant([column.values[row] for row in rows], inputs[name].dtype)
                for name, column in columns.items()
            }
            try:
                outputs = function(**batch)
            except tf.errors.ResourceExhaustedError:  # no memory for a batch of this size
                if len(rows) == 1:
                    raise
                middle = len(rows) // 2
                return answer(rows[:middle]) + answer(rows[middle:])
            return read({name: _to_python(values) for name, values in outputs.items()})

        texts = [columns[name].values for name in ("text", "source", "target") if name in columns]
        lengths = [sum(len(text.encode()) for text in row) for row in zip(*texts, strict=True)]
        batches = batches_by_length(lengths, batch_size, _MAX_BATCH_BYTES)
        if min(num_workers, len(batches)) <= 1:
            return in_row_order(batches, map(answer, batches))
        sizes = [len(batch) * lengths[batch[0]] for batch in batches]
        return in_row_order(batches, _run_parallel(answer, batches, sizes, num_workers))


class Translator(tf.Module, BatchTranslator):
    """Translates sentences with a trained model.

    Args:
        model: see `TranslationModel`.
        source, target: the vocabularies.
        search: how to search; by default the task's own search, or the paper's.
        xla: shapes for which XLA compiles the search of sentences without options.
        task: of the model; it may constrain searches and complete their outputs.
        details: whether `signatures` and calls return what a `DetailedTranslation` has, too.

    Raises:
        InputError: a coverage penalty needs attention, which the model lacks; details cannot be
            combined with XLA.

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
        details: bool = False,
    ) -> None:
        tf.Module.__init__(self, name="translator")
        BatchTranslator.__init__(self, self.signature, target)
        self.search = search or (task.search_config() if task else SearchConfig())
        self.task = task
        if self.search.coverage_penalty and not hasattr(model, "attention"):
            raise InputError(
                f"coverage_penalty={self.search.coverage_penalty} needs a model with attention; "
                "set it to 0"
            )
        if details and xla is not None:
            raise InputError("details cannot be combined with XLA; remove one of them")
        self.details = details
        self.source_tokenizer = Tokenizer(source)
        self.target_tokenizer = self.source_tokenizer
        if target.fingerprint != source.fingerprint:
            self.target_tokenizer = Tokenizer(target)
        # A SavedModel that tracks a Keras model loads in Python and fails in the C++ server: the
        # module tracks the variables, and reaches the model through a function, never tracked.
        self.variables_to_save = [variable.value for variable in model.variables]
        self._get_model = lambda: model
        parts = source, target, self.search, None, task
        self._detailed = functools.cache(lambda: Translator(model, *parts, details=True))
        self.xla = xla
        self._compiled = xla and CompiledSearch(self._search, xla, self.search.max_extra_length)

    @property
    def model(self) -> TranslationModel:
        return self._get_model()

    def with_cached_projection(self) -> "Translator":
        """Returns a faster translator; functions of `signature` do not notice changed weights."""
        parts = self.source_tokenizer.vocabulary, self.target_tokenizer.vocabulary, self.search
        model = cache_projection(self.model)
        return Translator(model, *parts, self.xla, self.task, self.details)

    def translate(self, sentences: Sequence[str], batch_size: int = 64, **options: Any) -> Any:
        """Translates as `BatchTranslator.translate`; details need no other translator."""
        if options.get("details") and not self.details:
            return self._detailed().translate(sentences, batch_size, **options)
        return super().translate(sentences, batch_size, **options)

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
        """Returns one of the functions of `signatures`; raises `KeyError` for another name."""
        if name == "serving_default":
            return self._translate_text.get_concrete_function()
        if name == "attention" and not hasattr(self.model, "attention"):
            raise KeyError(name)
        text = _columns({"text": tf.string})
        pair = _columns({"source": tf.string, "target": tf.string})
        function, inputs = {
            "translate_options": (self.translate_options, text | self.option_inputs()),
            "score": (self._score, pair),
            "tokens": (self._translate_tokens, _columns({"source": tf.string})),
            "attention": (self._attention, pair),
        }[name]
        return tf.function(function, autograph=False).get_concrete_function(**inputs)

    def option_inputs(self) -> dict[str, tf.TensorSpec]:
        """Returns the inputs of `translate_options` besides the text, by name."""
        return _columns(option_types(self.search))

    def __call__(self, text: Tensor) -> dict[str, Tensor]:
        """Returns "translations", string [B, N], best first, and "scores" [B, N] of text [B].

        With details also "tokens", string [B, N, L], and "token_scores" [B, N, L] with EOS, then
        padding; "source_cut", bool [B], and "output_cut", bool [B, N]; and, if the model has
        attention, "source_tokens", string [B, S], and "attention" [B, N, L, S].
        """
        if tf.executing_eagerly():
            refresh(self.model)
        return self._translate_text(text)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def _translate_text(self, text: Tensor) -> dict[str, Tensor]:
        # A server does not check ranks: it would flatten a matrix.
        return self._translate(tf.ensure_shape(text, [None]))

    def translate_options(self, text: Tensor, **columns: Tensor) -> dict[str, Tensor]:
        """Translates text [B] with options [B] of `option_types`.

        A negative number or empty text stands for the value of the configuration; phrases are
        separated by newlines.
        """
        text = _checked(text, columns.values(), "every option must have a value for each row")
        return self._translate(text, read_options(columns, self.search, self.target_tokenizer))

    def _translate(
        self, text: Tensor, options: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        if self.task is not None:
            text = self.task.read_text(text)
        limit = self.search.max_source_length
        tokens = self.source_tokenizer.tokenize(text, limit + self.details)
        details = {}
        if self.details:  # one token more shows whether there is one
            details["source_cut"] = tokens.row_lengths() > limit
            tokens = tokens[:, :limit]
        hypotheses = self._search_tokens(tokens, options)
        translations = self.target_tokenizer.detokenize(hypotheses.ids)  # [B, N]
        if self.task is not None:
            translations = self.task.finish(translations, text)
        is_blank = (tokens.row_lengths() == 0)[:, None]  # [B, 1]
        if self.details:
            ids = tf.where(is_blank[:, :, None], PAD_ID, hypotheses.ids)
            details["tokens"] = self.target_tokenizer.pieces(ids)
            for name, values in hypotheses.details.items():
                blank = tf.reshape(is_blank, [-1, *[1] * (values.shape.rank - 1)])
                details[name] = tf.where(blank, tf.zeros([], values.dtype), values)
            if "attention" in details:
                details["source_tokens"] = self.source_tokenizer.pieces(with_eos(tokens))
        return details | {
            "translations": tf.where(is_blank, "", translations),
            "scores": tf.where(is_blank, 0.0, hypotheses.scores),
        }

    def _translate_tokens(self, source: Tensor) -> dict[str, Tensor]:
        """Translates rows of ids, string [B]; see `Tokenizer.read_ids`.

        A matrix of ids would need padding, and model servers may crash when they pad requests of a
        batch. Returns "ids" [B, N, L] with EOS, then PAD; "lengths" [B, N] with EOS; "scores"
        [B, N]. A row without ids has translations of length 0 and score 0.
        """
        tokens = self.source_tokenizer.read_ids(source)[:, : self.search.max_source_length]
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
        return search_translations(
            self.model,
            source,
            self.search,
            vocabularies[1],
            options,
            max_length_bound=longest,
            constraints=self.task.constraints(source, vocabularies) if self.task else (),
            details=self.details,
        )

    def _score(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        *ids, is_cut = self._read_pair(source, target)
        return scores.score(self.model, *ids) | {"is_cut": is_cut}

    def _attention(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        ids, shifted, labels, _ = self._read_pair(source, target)
        return scores.token_values(self.model, ids, shifted) | {
            "attention": scores.attention(self.model, ids, shifted, labels),
            "source_pieces": self.source_tokenizer.pieces(ids),
            "target_pieces": self.target_tokenizer.pieces(labels),
        }

    def _read_pair(self, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Returns ids: the source [B, S], the target [B, T] shifted right, the labels [B, T].

        The last, bool [B], tells which targets were cut to the longest that search can generate.
        """
        source = _checked(source, [target], "source and target must have as many rows")
        if self.task is not None:
            source = self.task.read_text(source)
        source = self.source_tokenizer.tokenize(source, self.search.max_source_length)
        longest = self.search.max_source_length + self.search.max_extra_length
        tokens = self.target_tokenizer.tokenize(target, longest + 1)
        labels = with_eos(tokens[:, :longest])
        shifted = tf.pad(labels[:, :-1], [[0, 0], [1, 0]], constant_values=BOS_ID)
        return with_eos(source), shifted, labels, tokens.row_lengths() > longest

    def _find(self, name: str) -> Any:
        refresh(self.model)
        return super()._find(name)


def search_translations(
    model: TranslationModel,
    source: Tensor,
    search: SearchConfig,
    target: Vocabulary,
    options: Mapping[str, Tensor] | None = None,
    max_length_bound: int | None = None,
    constraints: Sequence[Constraint] = (),
    details: bool = False,
) -> Hypotheses:
    """Returns translations of source ids [B, S], each with EOS, then PAD.

    Args:
        model: see `TranslationModel`.
        source: the ids, no longer than the model may read.
        search: how to search.
        target: the vocabulary, which gives the tokens of the configuration's phrases.
        options: what sentences set instead of the configuration, by the names of its fields,
            numbers as [B]; "prefix" as int32 [B, any], phrases as int32 [B, P, M].
        max_length_bound: the most tokens that any translation may have before EOS, where shapes
            must be known before the graph runs, as for XLA.
        constraints: in addition to those of the configuration, for example a task's.
        details: whether to return `Hypotheses.details`, and among them "output_cut", bool [B, N]:
            whether a translation has as many tokens as it may have, after which EOS is forced.
    """
    lengths = tf.math.count_nonzero(source, axis=1, dtype=tf.int32) - 1  # [B], without EOS
    settings = read_config(search, target) | dict(options or {})
    is_sampled = search.method == "sampling"
    state = model.encode(
        source,
        num_hypotheses=search.num_translations if is_sampled else search.beam_size,
        capacity=None if max_length_bound is None else kv_cache_capacities(max_length_bound)[0],
        coverage=details or "coverage_penalty" in settings,  # whose steps are the attention
    )
    arguments = dict(
        bos_ids=tf.fill(tf.shape(lengths), BOS_ID),
        max_lengths=max_lengths(settings, lengths),
        length_penalty=settings["length_penalty"],
        length_penalty_form=search.length_penalty_form,
        coverage_penalty=settings.get("coverage_penalty", 0.0),
        constraints=[*make_constraints(settings, search, target), *constraints],
        num_translations=search.num_translations,
        max_length_bound=max_length_bound,
        details=details,
    )
    if is_sampled:
        settings["seed"] = sentence_seeds(settings["seed"], source)
        sampling = {name: settings[name] for name in SearchConfig.fields_with(method="sampling")}
        found = sample(model.step, state, **arguments, **sampling)
    else:
        found = beam_search(
            model.step,
            state,
            **arguments,
            beam_size=search.beam_size,
            early_stop=search.early_stop,
        )
    if not details:
        return found
    output_cut = found.lengths > arguments["max_lengths"][:, None]  # EOS counts in lengths
    return found._replace(details=found.details | {"output_cut": output_cut})


def signature_inputs(function: Any) -> dict[str, tf.TensorSpec]:
    """Returns the inputs of a signature's function by name."""
    positional, keywords = function.structured_input_signature
    return {spec.name: spec for spec in [*positional, *keywords.values()]}


def _checked(first: Tensor, others: Iterable[Tensor], message: str) -> Tensor:
    """Returns the first of several tensors [B] after a check that all have as many rows."""
    first, *others = (tf.ensure_shape(each, [None]) for each in (first, *others))
    sizes = [tf.size(each) == tf.size(first) for each in others]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(sizes), [message])]):
        return tf.identity(first)


def _columns(types: Mapping[str, tf.DType]) -> dict[str, tf.TensorSpec]:
    return {name: tf.TensorSpec([None], dtype, name=name) for name, dtype in types.items()}


def _run_parallel(
    function: Callable[[Sequence[int]], list[Any]],
    batches: Sequence[Sequence[int]],
    sizes: Sequence[int],
    num_workers: int,
) -> list[list[Any]]:
    """Returns `function` of each batch; those in progress have at most `_MAX_BYTES` together."""
    running: dict[futures.Future[list[Any]], int] = {}
    started = []
    with futures.ThreadPoolExecutor(num_workers) as pool:
        for batch, size in zip(batches, sizes, strict=True):
            while len(running) == num_workers or (
                running and sum(running.values()) + size > _MAX_BYTES
            ):
                done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
                for each in done:
                    del running[each]
                    each.result()  # raises its error before more batches start
            started.append(pool.submit(function, batch))
            running[started[-1]] = size
        return [future.result() for future in started]


def _num_workers() -> int:
    """Returns how many batches can be translated at once; a GPU takes one."""
    return 1 if tf.config.list_physical_devices("GPU") else num_cores()


def _to_python(values: tf.Tensor) -> Any:
    """Returns a tensor as nested lists, its strings as text."""
    array = values.numpy()
    if array.dtype != object:
        return array.tolist()
    text = [each.decode("utf-8", "replace") for each in array.ravel()]
    return np.array(text, object).reshape(array.shape).tolist()
