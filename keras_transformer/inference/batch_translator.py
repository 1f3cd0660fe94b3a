"""Any number of sentences in batches of similar length, through functions from text to text.

The functions are those of a `Translator` or of an export; each takes a batch.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, Literal, overload

import numpy as np
import tensorflow as tf

from keras_transformer.errors import BatchesInProgressError, InputError
from keras_transformer.host import check_not_forked, num_cores
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
from keras_transformer.text import Vocabulary
from keras_transformer.text.vocabulary import check_language_code

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
        signature: returns the function of a signature by its name; raises `KeyError` for others.
        target: the target vocabulary, to check that it can spell prefixes and phrases; None skips
            this check.
        language_codes: those that a source may begin with, to reject others; empty skips this
            check.

    Example:
        >>> exported = load_exported("exports/numbers/1")
        >>> exported.translate(["two hundred"], max_length=3)[0][0].text
        'zweihundert'
    """

    def __init__(
        self,
        signature: Callable[[str], Any],
        target: Vocabulary | None = None,
        language_codes: Sequence[str] = (),
    ) -> None:
        check_not_forked()
        self._signature = signature
        self._target = target
        self._language_codes = language_codes

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

        Words are separated by spaces. A vocabulary of whole words reads several unknown words in a
        row as one; the list of such a sentence is empty.

        Returns:
            For each sentence pairs (index of the source word, index of the target word).

        Raises:
            InputError: as in `score`, or the model has no attention.
        """
        columns = pair_inputs(source, target)
        found = self._run_in_batches("attention", columns, batch_size, read_alignments)
        return in_words_of_texts(found, columns["source"].values, columns["target"].values)

    def _find(self, name: str, details: bool = False) -> Any:
        """Returns a function; that of an export has details or not, whatever is asked."""
        try:
            return self._signature(name)
        except KeyError as error:
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
        details: bool = False,
    ) -> list[Any]:
        """Returns what `read` makes of the answers of a signature, in the order of the rows."""
        check_not_forked()
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        for text in columns["text" if "text" in columns else "source"].values:
            check_language_code(text, self._language_codes)
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


def signature_inputs(function: Any) -> dict[str, tf.TensorSpec]:
    """Returns the inputs of a function by name."""
    positional, keywords = function.structured_input_signature
    return {spec.name: spec for spec in [*positional, *keywords.values()]}


def _run_parallel(
    function: Callable[[Sequence[int]], list[Any]],
    batches: Sequence[Sequence[int]],
    sizes: Sequence[int],
    num_workers: int,
) -> list[list[Any]]:
    """Returns `function` of each batch; those in progress have at most `_MAX_BYTES` together."""
    running: dict[futures.Future[list[Any]], int] = {}
    started = []
    pool, is_interrupted = futures.ThreadPoolExecutor(num_workers), False
    try:
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
    except KeyboardInterrupt as error:
        is_interrupted = True
        raise BatchesInProgressError from error
    finally:
        pool.shutdown(wait=not is_interrupted, cancel_futures=True)


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
