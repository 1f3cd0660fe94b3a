"""A translator in this process, with the methods of `Client`: lists of sentences in and out.

What answers are the functions that an export has for its signatures, of a translator that is not
exported or of one that is loaded.

Shapes: B sentences, S source length, T target length.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.client.alignment import in_words_of_texts, read_alignments
from keras_transformer.client.inputs import Column, option_columns, pair_columns, text_column
from keras_transformer.client.outputs import (
    Score,
    Translation,
    read_scores,
    read_translations,
)
from keras_transformer.errors import InputError
from keras_transformer.host import num_cores
from keras_transformer.inference.search_options import spell
from keras_transformer.inference.signatures import inputs_of
from keras_transformer.text import Vocabulary

_MOST_AT_ONCE = 8  # batches; each takes memory


class BatchTranslator:
    """Translates, scores and aligns any number of sentences, in batches of like length.

    Args:
        function_of: gives the function of a signature by its name; asked for each at most once.
        target: the target's vocabulary, in which a prefix must be spelt; None does not check that.

    Example:
        >>> local = load_exported("exports/numbers/1")
        >>> local.translate(["two hundred"], max_length=3)[0][0].text
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
            batch_size: how many are translated at once.
            **options: those fields of `SearchConfig` that sentences may choose, see `option_types`,
                and "prefix": one value for all sentences, or a list with one for each, None for
                that of the translator. Several phrases of a sentence are a list, or text with a
                phrase on each line.

        Raises:
            InputError: there is no such option, or it cannot have such a value; the vocabulary
                cannot spell a prefix; one string is given in place of a list; or `batch_size` is
                below 1.
        """
        columns = {"text": text_column("text", sentences)}
        name = "serving_default"
        if options:
            name = "translate_options"
            inputs = inputs_of(self._function(name))
            types = {key: f"DT_{_type_name(spec.dtype)}" for key, spec in inputs.items()}
            columns |= option_columns(options, types, len(columns["text"].values))
            if self._target is not None:
                prefixes = [each for each in columns["prefix"].values if each.strip()]
                spell("prefix", prefixes, self._target)
        # Steps of a search are too small for several cores to share: each takes a batch of its own.
        at_once = min(_num_workers(), _MOST_AT_ONCE)
        return self._in_batches(name, columns, "text", batch_size, read_translations, at_once)

    def score(
        self, source: Sequence[str], target: Sequence[str], batch_size: int = 64
    ) -> list[Score]:
        """Returns how probable each of the translations `target` is.

        Raises:
            InputError: there are not as many of `target` as in `source`, or as in `translate`.
        """
        columns = pair_columns(source, target)
        return self._in_batches("score", columns, "target", batch_size, read_scores)

    def align(
        self, source: Sequence[str], target: Sequence[str], batch_size: int = 64
    ) -> list[list[tuple[int, int]]]:
        """Returns which word of the source each word of the target looked at most.

        Words are what stands between spaces. Only a vocabulary of whole words takes those that it
        does not know, where several stand in a row, for one.

        Returns:
            For each sentence pairs (number of the source word, number of the target word).

        Raises:
            InputError: as in `score`, or the model shows no attention.
        """
        columns = pair_columns(source, target)
        found = self._in_batches("attention", columns, "target", batch_size, read_alignments)
        return in_words_of_texts(found, columns["source"].values, columns["target"].values)

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            try:
                self._functions[name] = self._make(name)
            except KeyError as error:
                raise InputError(
                    f"the model has no signature {name!r}; export it anew, or leave out what asks "
                    "for it"
                ) from error
        return self._functions[name]

    def _in_batches(
        self,
        name: str,
        columns: Mapping[str, Column],
        key: str,
        batch_size: int,
        read: Callable[[Mapping[str, Any]], list[Any]],
        at_once: int = 1,
    ) -> list[Any]:
        """Returns what `read` makes of the answer to each row, rows of like `key` together.

        `at_once` batches are worked on at the same time.
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        function = self._function(name)
        inputs = inputs_of(function)
        texts = columns[key].values
        order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        results: list[Any] = [None] * len(texts)

        def answer(first: int) -> None:
            rows = order[first : first + batch_size]
            batch = {
                name: tf.constant([column.values[row] for row in rows], inputs[name].dtype)
                for name, column in columns.items()
            }
            answers = {name: _plain(values) for name, values in function(**batch).items()}
            for row, result in zip(rows, read(answers), strict=True):
                results[row] = result

        firsts = range(0, len(order), batch_size)
        if min(at_once, len(firsts)) <= 1:
            for first in firsts:
                answer(first)
        else:
            with futures.ThreadPoolExecutor(at_once) as pool:
                list(pool.map(answer, firsts))  # raises what was raised
        return results


def _num_workers() -> int:
    """Returns how many batches can be translated at once; a GPU takes one."""
    return 1 if tf.config.list_physical_devices("GPU") else num_cores()


def _plain(values: tf.Tensor) -> Any:
    """Returns a tensor as nested lists, its strings as text."""
    array = values.numpy()
    if array.dtype != object:
        return array.tolist()
    text = [each.decode("utf-8", "replace") for each in array.ravel()]
    return np.array(text, object).reshape(array.shape).tolist()


def _type_name(dtype: tf.DType) -> str:
    return {tf.string: "STRING", tf.float32: "FLOAT", tf.int32: "INT32", tf.int64: "INT64"}[dtype]
