"""Any number of sentences in batches of similar length, through functions from text to text.

The functions are those of a `ModelTranslator` or of an export; each takes a batch.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.errors import BatchesInProgressError, InputError
from keras_transformer.host import num_cores
from keras_transformer.results import Attention, Result, read_attention
from keras_transformer.sentences import (
    Answer,
    InputValues,
    SentenceTranslator,
    batches_by_length,
    in_row_order,
    pair_inputs,
    select_rows,
    texts_of,
)

# The memory that search needs grows with the tokens of the batches in progress, padding included.
# A sentence has no more tokens than bytes; tokens of ordinary text have three to five bytes.
_MAX_BATCH_BYTES = 1 << 15  # of one batch, unless it is a single sentence
_MAX_BYTES = 1 << 16  # of all batches in progress, unless there is only one
_MAX_BATCHES = 8  # in progress
_TYPES = {tf.string: "DT_STRING", tf.float32: "DT_FLOAT", tf.int32: "DT_INT32"}


class BatchTranslator(SentenceTranslator):
    """Computes the batches of a `SentenceTranslator` in this process.

    The functions are the signatures of a `ModelTranslator` or of a SavedModel.

    Args:
        signature: returns the function of a signature by its name; raises `KeyError` for others.

    Example:
        >>> exported = load_exported("exports/numbers/1")
        >>> exported.translate("two hundred", max_length=3).text
        'zweihundert'
    """

    def __init__(self, signature: Callable[[str], Any]) -> None:
        self._signature = signature

    def attention(self, source: Sequence[str], target: Sequence[str]) -> list[Attention]:
        """Returns the attention from which `align` takes words: the mean of the last layer's heads.

        Raises:
            InputError: as in `align`.
        """
        columns = pair_inputs(source, target)
        return self._read_rows("attention", columns, read_attention)

    def _input_types(self, signature: str) -> Mapping[str, str]:
        inputs = signature_inputs(self._find(signature))
        return {name: _TYPES[spec.dtype] for name, spec in inputs.items()}

    def _find(self, name: str, details: bool = False) -> Any:
        """Returns a function; that of an export has details or not, whatever is asked."""
        try:
            return self._signature(name)
        except KeyError as error:
            raise InputError(
                f"the model has no signature {name!r}; export it again, or remove the option that "
                "needs it"
            ) from error

    def _run(
        self,
        signature: str,
        columns: Mapping[str, InputValues],
        read: Callable[[Answer, Mapping[str, InputValues]], list[Result]],
        details: bool,
    ) -> list[Result]:
        texts = texts_of(columns)
        function = self._find(signature, details)
        inputs = signature_inputs(function)

        def answer(rows: Sequence[int]) -> list[Result]:
            batch = select_rows(columns, rows)
            try:
                outputs = function(
                    **{
                        name: tf.constant(column.values, inputs[name].dtype)
                        for name, column in batch.items()
                    }
                )
            except tf.errors.ResourceExhaustedError:  # no memory for a batch of this size
                if len(rows) == 1:
                    raise
                middle = len(rows) // 2
                return answer(rows[:middle]) + answer(rows[middle:])
            return read({name: _to_python(values) for name, values in outputs.items()}, batch)

        lengths = [sum(len(text.encode()) for text in row) for row in zip(*texts, strict=True)]
        batches = batches_by_length(lengths, self.batch_size, _MAX_BATCH_BYTES)
        # A search step is too small for several cores to share: each core takes a batch.
        num_workers = _num_workers() if "text" in columns else 1
        if min(num_workers, len(batches)) <= 1:
            return in_row_order(batches, map(answer, batches))
        sizes = [len(batch) * lengths[batch[0]] for batch in batches]
        return in_row_order(batches, _run_parallel(answer, batches, sizes, num_workers))


def signature_inputs(function: Any) -> dict[str, tf.TensorSpec]:
    """Returns the inputs of a function by name."""
    positional, keywords = function.structured_input_signature
    return {spec.name: spec for spec in [*positional, *keywords.values()]}


def _run_parallel(
    function: Callable[[Sequence[int]], list[Result]],
    batches: Sequence[Sequence[int]],
    sizes: Sequence[int],
    num_workers: int,
) -> list[list[Result]]:
    """Returns `function` of each batch; those in progress have at most `_MAX_BYTES` together."""
    running: dict[futures.Future[list[Result]], int] = {}
    started = []
    pool, is_interrupted = futures.ThreadPoolExecutor(num_workers), False
    try:
        for batch, size in zip(batches, sizes, strict=True):
            while len(running) == num_workers or (
                running and sum(running.values()) + size > _MAX_BYTES
            ):
                done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
                for future in done:
                    del running[future]
                    future.result()  # raises its error before more batches start
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
    return 1 if tf.config.list_physical_devices("GPU") else min(num_cores(), _MAX_BATCHES)


def _to_python(values: tf.Tensor) -> Any:
    """Returns a tensor as nested lists, its strings as text."""
    array = values.numpy()
    if array.dtype != object:
        return array.tolist()
    text = [value.decode("utf-8", "replace") for value in array.ravel()]
    return np.array(text, object).reshape(array.shape).tolist()
