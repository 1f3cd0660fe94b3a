"""Text to text in Python: any number of sentences, in batches of similar length.

`BatchTranslator` sends batches through functions, which are those of a model (functions.py) or of
an export. The way of a batch is:

1. `Tokenizer.tokenize` cuts text [B] into ids [B, S] (text/tokenizer.py),
2. `search_translations` encodes the ids and hands the model's `step` to `beam_search` or `sample`,
   with the constraints that it makes of a `SearchConfig` (generate.py, search/),
3. `Tokenizer.detokenize` makes text [B, N] of the ids found, and `Task.finish` completes it.

Shapes: B sentences, S source length, N translations of a sentence.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, Literal, overload

import numpy as np
import tensorflow as tf

from keras_transformer.config import SearchConfig
from keras_transformer.decoding import Tensor, TranslationModel
from keras_transformer.errors import InputError
from keras_transformer.host import check_not_forked, num_cores
from keras_transformer.inference.compiled_search import XlaShapes, gpu_shapes
from keras_transformer.inference.functions import StoredProjection, TextFunctions, signature_inputs
from keras_transformer.inference.generate import encode_phrases
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
from keras_transformer.tasks import Task
from keras_transformer.text import Vocabulary

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
        sentences: str,
        batch_size: int = ...,
        *,
        details: Literal[False] = ...,
        **options: Any,
    ) -> Translation: ...

    @overload
    def translate(
        self, sentences: str, batch_size: int = ..., *, details: Literal[True], **options: Any
    ) -> DetailedTranslation: ...

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
        sentences: str | Sequence[str],
        batch_size: int = 64,
        *,
        details: bool = False,
        **options: Any,
    ) -> Any:
        """Returns the translations of each sentence, best first; of a string the best one.

        Warns if a prefix or a phrase cannot be kept as it is, see `read_options`.

        Args:
            sentences: any number of them, or one string.
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
                prefix or phrase; `batch_size` is below 1; the model was exported without details.
        """
        if isinstance(sentences, str):
            found = self.translate([sentences], batch_size, details=details, **options)  # type: ignore[call-overload]
            return found[0][0]
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
        ignored: list[bool] = []

        def read(answer: Mapping[str, Any]) -> list[Any]:
            ignored.extend(answer.get("options_ignored", ()))
            return read_details(answer) if details else read_translations(answer)

        if details:
            check_details(self._find(name, details).structured_outputs)
        # A search step is too small for several cores to share: each core takes a batch.
        num_workers = min(_num_workers(), _MAX_BATCHES)
        found = self._run_in_batches(name, columns, batch_size, read, num_workers, details)
        if any(ignored):
            warnings.warn(
                f"the prefix or a banned phrase of {sum(ignored)} of {len(found)} sentences is not "
                "kept as it is: the vocabulary lacks characters of it, or it is too long",
                stacklevel=2,
            )
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

    def _find(self, name: str, details: bool = False) -> Any:
        """Returns a function; one of a model has details if they are asked for."""
        try:
            return self._lookup(name, details)
        except KeyError as error:
            if error.args != (name,):  # of the model or the task
                raise
            raise InputError(
                f"the model has no signature {name!r}; export it again, or remove the option that "
                "needs it"
            ) from error

    def _lookup(self, name: str, details: bool) -> Any:
        return self._function(name)  # of an export, which has them or not

    def _run_in_batches(
        self,
        name: str,
        columns: Mapping[str, InputValues],
        batch_size: int,
        read: Callable[[Mapping[str, Any]], list[Any]],
        num_workers: int = 1,
        details: bool = False,
    ) -> list[Any]:
        """Returns what `read` makes of the answers of a signature, in the order of the rows."""
        check_not_forked()
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        function = self._find(name, details)
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


class Translator(BatchTranslator):
    """Translates sentences with a trained model.

    Args:
        model: see `TranslationModel`.
        source, target: the vocabularies.
        search: how to search; by default the task's own search, or the paper's.
        xla: shapes for which XLA compiles the search of sentences without options and details; by
            default six where there is a GPU, see `gpu_shapes`.
        task: of the model; it may constrain searches and complete their outputs.
        details: whether the functions of an export return what a `DetailedTranslation` has, too.
        stores_projection: see `with_cached_projection`.

    Attributes:
        functions: what it calls and what `export` writes.

    Raises:
        InputError: a coverage penalty needs attention, which the model lacks; details cannot be
            combined with XLA.

    Example:
        >>> translator = Translator(run.load_model(), *run.vocabularies())
        >>> translator.translate("two hundred").text
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
        stores_projection: bool = False,
    ) -> None:
        search = search or (task.search_config() if task else SearchConfig())
        if search.coverage_penalty and not hasattr(model, "attention"):
            raise InputError(
                f"coverage_penalty={search.coverage_penalty} needs a model with attention; "
                "set it to 0"
            )
        if details and xla is not None:
            raise InputError("details cannot be combined with XLA; remove one of them")
        self.model, self.search, self.task, self.details = model, search, task, details
        self.xla = xla or (None if details else gpu_shapes())
        self.functions = TextFunctions(
            model,
            source,
            target,
            search,
            task=task,
            xla=self.xla,
            details=details,
            projection=StoredProjection(model) if stores_projection else None,
        )
        self.source_tokenizer = self.functions.source_tokenizer
        self.target_tokenizer = self.functions.target_tokenizer
        super().__init__(self.functions.function, target)

    def with_cached_projection(self) -> "Translator":
        """Returns a faster translator, which computes the matrix of the logits only once.

        Calls from Python follow changed weights; functions of `signatures` do not notice them.
        """
        return Translator(
            self.model,
            self.source_tokenizer.vocabulary,
            self.target_tokenizer.vocabulary,
            self.search,
            self.xla,
            self.task,
            self.details,
            stores_projection=True,
        )

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to export by name, traced; see `TextFunctions`."""
        return {name: self.functions.function(name) for name in self.functions.names}

    def __call__(self, text: Tensor) -> dict[str, Tensor]:
        """Returns "translations", string [B, N], best first, and "scores" [B, N] of text [B].

        With details also what `TextFunctions` adds then.
        """
        answer: dict[str, Tensor] = self._find("serving_default")(text=text)
        return answer

    def _lookup(self, name: str, details: bool) -> Any:
        self.functions.refresh()
        return self.functions.function(name, details or self.details)


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
