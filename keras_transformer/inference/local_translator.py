"""Any number of sentences in batches of similar length, through functions from text to text.

`translate` and its like are in sentences.py; `Translator`, which also loads models by their names,
is in loading.py.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent import futures
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from typing_extensions import Self

from keras_transformer.config import SearchConfig
from keras_transformer.decoding import TranslationModel
from keras_transformer.errors import BatchesInProgressError, InputError
from keras_transformer.host import num_cores
from keras_transformer.inference.compiled_search import XlaShapes
from keras_transformer.inference.model_functions import ModelFunctions
from keras_transformer.outputs import Result
from keras_transformer.sentences import (
    Answer,
    Columns,
    SentenceTranslator,
    batches_by_length,
    in_row_order,
    select_rows,
)
from keras_transformer.tasks import Task
from keras_transformer.text import Vocabulary

# The memory that search needs grows with the tokens of the batches in progress, padding included.
# A sentence has no more tokens than bytes; tokens of ordinary text have three to five bytes.
_MAX_BATCH_BYTES = 1 << 15  # of one batch, unless it is a single sentence
_MAX_BYTES = 1 << 16  # of all batches in progress, unless each is a single sentence
_MAX_BATCHES = 8  # in progress


class LocalTranslator(SentenceTranslator):
    """Translates, scores and aligns sentences with a trained model, or with an export.

    Args:
        model: a `Seq2SeqModel`, an `Ensemble` or another `TranslationModel`.
        source, target: the vocabularies; without `target`, the source's is that of both sides.
        search: how to search; by default the task's own search, or the paper's.
        xla: shapes for which XLA compiles the search of sentences without options; by
            default six where there is a GPU, see `gpu_shapes`; False for none.
        task: of the model; it may constrain searches and complete their outputs.

    Attributes:
        functions: of the model, see `ModelFunctions`.
        model, source, target, search: as given. An export has none of these five.

    Raises:
        InputError: a coverage penalty needs attention, which the model lacks; or a vocabulary has
            another size than the model.

    Example:
        >>> translator = Translator(run.load_model(), *run.vocabularies())
        >>> translator.translate("two hundred").text
        'zweihundert'
    """

    def __init__(
        self,
        model: TranslationModel,
        source: Vocabulary,
        target: Vocabulary | None = None,
        search: SearchConfig | None = None,
        xla: XlaShapes | Literal[False] | None = None,
        task: Task | None = None,
    ) -> None:
        self.functions = ModelFunctions(model, source, target, search, xla, task)
        self._function: Callable[[str], Any] = self.functions.function
        self.model, self.search = model, self.functions.search
        self.source, self.target = self.functions.vocabularies

    @classmethod
    def from_functions(cls, function: Callable[[str], Any]) -> Self:
        """Returns the translator of an export, or of other functions with such inputs.

        Args:
            function: takes the name of a function; returns the function, or raises `KeyError`.
        """
        translator = cls.__new__(cls)
        translator._function = function
        return translator

    def _input_names(self, signature: str) -> Collection[str]:
        return signature_inputs(self._signature(signature))

    def _signature(self, name: str) -> Any:
        try:
            return self._function(name)
        except KeyError as error:
            raise InputError(
                f"the model has no signature {name!r}; export it again, or remove the option that "
                "needs it"
            ) from error

    def _run(
        self, signature: str, columns: Columns, read: Callable[[Answer], list[Result]]
    ) -> list[Result]:
        function = self._signature(signature)
        inputs = signature_inputs(function)

        def answer(rows: Sequence[int]) -> list[Result]:
            outputs = function(
                **{
                    name: tf.constant(column, inputs[name].dtype)
                    for name, column in select_rows(columns, rows).items()
                }
            )
            return read({name: _to_python(values) for name, values in outputs.items()})

        # A search step is too small for several cores to share: each core takes a batch.
        num_workers = _num_workers() if "text" in columns else 1
        texts = [columns[name] for name in ("text", "source", "target") if name in columns]
        lengths = [sum(len(text.encode()) for text in row) for row in zip(*texts, strict=True)]
        most_bytes = min(_MAX_BATCH_BYTES, _MAX_BYTES // num_workers)
        batches = batches_by_length(lengths, self.batch_size, most_bytes)
        return in_row_order(batches, _map_in_threads(answer, batches, num_workers))


def signature_inputs(function: Any) -> dict[str, tf.TensorSpec]:
    """Returns the inputs of a function by name."""
    positional, keywords = function.structured_input_signature
    return {spec.name: spec for spec in [*positional, *keywords.values()]}


def _map_in_threads(
    function: Callable[[Sequence[int]], list[Result]],
    batches: Sequence[Sequence[int]],
    num_workers: int,
) -> list[list[Result]]:
    """Returns `function` of each batch; an error ends the call before more batches start."""
    if min(num_workers, len(batches)) <= 1:
        return [*map(function, batches)]
    pool, is_interrupted = futures.ThreadPoolExecutor(num_workers), False
    try:
        return [*pool.map(function, batches)]
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
