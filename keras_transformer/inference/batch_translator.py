"""Lists of sentences in and out, with the methods of `Client`, for a translator in this process.

The answers come from the functions of the signatures, of a translator or of a SavedModel.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.batch_by_length import batches_by_length, in_row_order
from keras_transformer.client.alignment import in_words_of_texts, read_alignments
from keras_transformer.client.inputs import InputValues, option_inputs, pair_inputs, text_input
from keras_transformer.client.outputs import (
    Attention,
    Score,
    Translation,
    read_attention,
    read_scores,
    read_translations,
)
from keras_transformer.errors import InputError
from keras_transformer.host import num_cores
from keras_transformer.inference.search_options import TEXTS, encode_phrases
from keras_transformer.text import Vocabulary

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
