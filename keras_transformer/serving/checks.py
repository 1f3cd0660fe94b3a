"""Warm-up requests of a SavedModel, and its checks before it is published.

`make_requests`, `write_requests`: a model server answers warm-up requests before it reports that it
is ready, since the first request of each kind makes TensorFlow optimize its graph and takes
seconds. It reads them from the file `assets.extra/tf_serving_warmup_requests` of a version.
`check_operations`: can a model server run the version? It has the operations of its release
of TensorFlow and TensorFlow Text, and no Python.
`compare_answers`: does it give the answers of Python to the warm-up requests in a fresh process?
"""

import itertools
import pathlib
import random
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.config import PAD_ID, UNK_ID
from keras_transformer.errors import InputError, needs_extra, one_line
from keras_transformer.inference import ModelTranslator
from keras_transformer.inference.batch_translator import signature_inputs
from keras_transformer.text import Vocabulary
from keras_transformer.text.vocabulary import RESERVED_IDS

BATCH_SIZES: tuple[int, ...] = (1, 8, 64)
# Larger batches go to `serving_default` alone: the graph of each signature is ready after one
# sentence, and a batch of 64 takes as long as that.
_LARGEST_OF_OTHERS = 8
# Subsets of the outputs of `serving_default` that clients of their own ask for. TensorFlow prepares
# a graph for each, which takes seconds and some 50 MB.
_OUTPUT_SUBSETS = (("translations",), ("translations", "scores"))
_MAX_REQUESTS = 1000  # of a file; the server rejects more
_NUM_GENERATED = 64
_MAX_GENERATED = 32  # tokens

# The oldest model server that exports are for, its GraphDef version, and the operations that
# TensorFlow has gained since, up to the release that this package was compared with. TensorFlow
# Text has gained none.
OLDEST_SERVER = "2.20"
_GRAPH_VERSION = 2288
_NEWER_OPERATIONS = {"DecodeJxl"}
COMPARED_TENSORFLOW = (2, 21)

# They call the Python process that made the graph.
_PYTHON_OPERATIONS = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction"}
_TOLERANCE = 1e-4  # of numbers, absolute and relative
# Near ties are rare: a wrong vocabulary, for example, changes most texts and no score.
_SENTENCES_PER_TIE = 10
_FRESH_PROCESS = pathlib.Path(__file__).with_name("fresh_process.py")
CHECK_TIMEOUT = 1800.0  # seconds; XLA may have to compile many shapes


class Request(NamedTuple):
    """A request to a model server.

    Attributes:
        signature: its name.
        inputs: arrays by name, dimension 0 the batch; text as bytes in arrays of objects.
        outputs: the names of the outputs to return, the request's `output_filter`; none means all.
    """

    signature: str
    inputs: dict[str, np.ndarray[Any, Any]]
    outputs: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of sentences."""
        return len(next(iter(self.inputs.values())))


def make_requests(
    translator: ModelTranslator,
    signatures: Mapping[str, Any],
    sentences: Sequence[str] = (),
    batch_sizes: Sequence[int] = BATCH_SIZES,
    most_sentences: int | None = None,
) -> list[Request]:
    """Returns requests to each signature, and to each compiled shape.

    `serving_default` gets batches of each size, the others those of up to 8 sentences. A batch has
    sentences of all lengths; single sentences are the shortest, the median and the longest. Usual
    subsets of the outputs of `serving_default` are requested once. XLA's programs, which all
    signatures share, are warmed up with ids, because the number of tokens in a text is not known
    in advance.

    Args:
        translator: the translator of the signatures.
        signatures: from `ModelTranslator.signatures`. Inputs other than "source", "target" and
            "text" are options, which keep the values of the export.
        sentences: typical text; by default it is generated from the vocabulary.
        batch_sizes: sentences of a request.
        most_sentences: the most that the server accepts in a request; None for any number. It does
            not load a version whose warm-up requests it rejects.

    Raises:
        InputError: these are more requests than a model server accepts.
    """
    source = translator.source_tokenizer.vocabulary
    target = translator.target_tokenizer.vocabulary
    generator = random.Random(0)
    if not any(sentence.strip() for sentence in sentences):
        lengths = [1 + number % _MAX_GENERATED for number in range(_NUM_GENERATED)]
        sentences = [_generate_text(source, length, generator) for length in lengths]
    ids = source.encode(sentences, max_tokens=translator.search.max_source_length)
    by_length = sorted(range(len(ids)), key=lambda index: len(ids[index]))

    requests = []
    for size in _accepted(batch_sizes, most_sentences):
        places = np.linspace(0, len(ids) - 1, 3 if size == 1 else size).round().astype(int)
        for batch in np.split(places, 3) if size == 1 else [places]:
            rows = [ids[by_length[place]] for place in batch]
            texts = _text_column([sentences[by_length[place]] for place in batch])
            targets = _text_column([_generate_text(target, len(row), generator) for row in rows])
            columns = {"text": texts, "source": texts, "target": targets}
            for name, function in signatures.items():
                if size > _LARGEST_OF_OTHERS and name != "serving_default":
                    continue
                if name == "tokens":
                    inputs = {"source": _ids_column(rows)}
                else:
                    specs = signature_inputs(function).items()
                    inputs = {
                        key: columns[key] if key in columns else _as_exported(spec, size)
                        for key, spec in specs
                    }
                requests.append(Request(name, inputs))
    first = next((each for each in requests if each.signature == "serving_default"), None)
    if first is not None:
        requests += [first._replace(outputs=outputs) for outputs in _OUTPUT_SUBSETS]
    if translator.xla is not None:
        known = list(_text_ids(source)) or [UNK_ID]
        sizes, widths = translator.xla
        for size, width in itertools.product(_accepted(sizes, most_sentences), widths):
            rows = [generator.choices(known, k=width - 1) for _ in range(size)]  # and EOS
            requests.append(Request("tokens", {"source": _ids_column(rows)}))
    if len(requests) > _MAX_REQUESTS:
        raise InputError(
            f"{len(requests)} warm-up requests are more than the {_MAX_REQUESTS} that a model "
            "server takes; give fewer batch sizes"
        )
    return requests


def check_installed() -> None:
    """Raises `InputError` if TensorFlow Serving's messages, which exports need, are missing."""
    with needs_extra("serving"):
        from tensorflow_serving.apis import prediction_log_pb2  # noqa: F401


def write_requests(version: pathlib.Path, requests: Sequence[Request], model_name: str) -> None:
    """Writes the warm-up file of a version: a TFRecord of `PredictionLog`."""
    from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

    path = version / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs, outputs in requests:
            request = predict_pb2.PredictRequest(
                model_spec=model_pb2.ModelSpec(name=model_name, signature_name=signature),
                inputs={name: tf.make_tensor_proto(value) for name, value in inputs.items()},
                output_filter=outputs,
            )
            log = prediction_log_pb2.PredictLog(request=request)
            writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


def _accepted(sizes: Sequence[int], most_sentences: int | None) -> list[int]:
    """Returns the sizes, larger ones cut to what the server accepts, each once."""
    return sorted({min(size, most_sentences or size) for size in sizes})


def _text_column(texts: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.array([text.encode() for text in texts], object)


def _ids_column(rows: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
    """Returns rows of ids as the signature `tokens` takes them."""
    return _text_column([" ".join(map(str, row)) for row in rows])


def _as_exported(spec: tf.TensorSpec, size: int) -> np.ndarray[Any, Any]:
    """Returns the values of an option that keep those of the export."""
    value = b"" if spec.dtype == tf.string else -1
    return np.full(size, value, spec.dtype.as_numpy_dtype)


def _text_ids(vocabulary: Vocabulary) -> range:
    """Returns the ids of tokens that are text."""
    return range(len(RESERVED_IDS), vocabulary.size)


def _generate_text(vocabulary: Vocabulary, length: int, generator: random.Random) -> str:
    """Returns text of about `length` random tokens of the vocabulary."""
    ids = _text_ids(vocabulary)
    return vocabulary.decode([generator.choices(ids, k=length)])[0] if ids else ""


def check_operations(version: pathlib.Path, *, allow_xla: bool = False) -> list[str]:
    """Checks the operations of a SavedModel, those in its functions included.

    Warns where TensorFlow is too new to know what the oldest server lacks.

    Args:
        version: its folder.
        allow_xla: whether functions may be compiled by XLA, which a server must be started for.

    Returns:
        The names of operations that TensorFlow does not have. `compare_answers` shows whether
        TensorFlow Text has them.

    Raises:
        InputError: TensorFlow Serving from `OLDEST_SERVER` on cannot run one of them.
    """
    model = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    functions = [
        function for graph in model.meta_graphs for function in graph.graph_def.library.function
    ]
    nodes = [node for graph in model.meta_graphs for node in graph.graph_def.node]
    nodes += [node for function in functions for node in function.node_def]
    operations = {node.op for node in nodes}
    if python := sorted(operations & _PYTHON_OPERATIONS):
        raise InputError(
            f"the export calls Python ({', '.join(python)}), which a model server does not have; "
            "write that part of the model with TensorFlow operations"
        )
    oldest = max(graph.graph_def.versions.min_consumer for graph in model.meta_graphs)
    if (newer := sorted(operations & _NEWER_OPERATIONS)) or oldest > _GRAPH_VERSION:
        raise InputError(
            f"the export needs {', '.join(newer) or f'GraphDef version {oldest}'}, which "
            f"TensorFlow Serving {OLDEST_SERVER} does not have; write that part of the model with "
            "older operations"
        )
    is_compiled = any(holder.attr["_XlaMustCompile"].b for holder in [*nodes, *functions])
    if (is_compiled or any(name.startswith("Xla") for name in operations)) and not allow_xla:
        raise InputError(
            "the export has functions that XLA must compile, which model servers on CPUs reject; "
            "make the Translator without xla, or allow XLA"
        )
    if tuple(map(int, tf.__version__.split(".")[:2])) > COMPARED_TENSORFLOW:
        warnings.warn(
            f"the export may need operations that TensorFlow {tf.__version__} has and TensorFlow "
            f"Serving {OLDEST_SERVER} lacks; serve it with a release that is as new",
            stacklevel=2,
        )
    called = {function.signature.name for function in functions}
    return sorted(name for name in operations - called if not hasattr(tf.raw_ops, name))


def compare_answers(
    version: pathlib.Path,
    requests: Sequence[Request],
    signatures: Mapping[str, Any],
    timeout: float = CHECK_TIMEOUT,
) -> None:
    """Compares a fresh process's answers to the warm-up requests with those of Python.

    Where two translations have nearly the same score, rounding decides between them: a few
    sentences whose scores agree may differ otherwise, which is reported as a warning.

    Args:
        version: the folder of the SavedModel, with the file of these requests in it.
        requests: the requests of that file.
        signatures: the functions in Python, by name.
        timeout: seconds that the process may take.

    Raises:
        InputError: the process or Python cannot answer, the process takes too long, or its answers
            differ from Python's.
    """
    from tensorflow_serving.apis import prediction_log_pb2

    with tempfile.TemporaryDirectory() as folder:
        answers = str(pathlib.Path(folder, "answers"))
        expected = _answer_both_ways(version, answers, requests, signatures, timeout)
        records = [record.numpy() for record in tf.data.TFRecordDataset(answers)]
    num_ties = 0
    for request, ours, record in zip(requests, expected, records, strict=True):
        response = prediction_log_pb2.PredictionLog.FromString(record).predict_log.response
        theirs = {name: tf.make_ndarray(value) for name, value in response.outputs.items()}
        num_ties += _compare(request.signature, ours, theirs)
    if num_ties:
        num_sentences = sum(request.size for request in requests)
        message = (
            f"{num_ties} of {num_sentences} answers to the warm-up requests differ between the "
            f"export and Python, though their scores agree within {_TOLERANCE}"
        )
        if num_ties > max(1, num_sentences // _SENTENCES_PER_TIE):
            raise InputError(f"{message}: too many for near ties of translations")
        warnings.warn(f"{message}: near ties, which rounding decides", stacklevel=2)


def _answer_both_ways(
    version: pathlib.Path,
    answers: str,
    requests: Sequence[Request],
    signatures: Mapping[str, Any],
    timeout: float,
) -> list[dict[str, Any]]:
    """Writes a fresh process's answers to the file `answers`, and returns those of Python."""
    process = subprocess.Popen(
        [sys.executable, "-I", str(_FRESH_PROCESS), str(version), answers, *sys.path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + timeout
    try:
        expected = []
        with tf.device("/CPU:0"):  # like the other process: GPUs round differently
            for name, inputs, subset in requests:
                outputs = signatures[name](**{key: tf.constant(inputs[key]) for key in inputs})
                expected.append({key: outputs[key].numpy() for key in subset or outputs})
        has_ended = process.poll() is not None  # in time, though this process took longer
        seconds_left = max(deadline - time.monotonic(), 0.0)
        output, _ = process.communicate(timeout=None if has_ended else seconds_left)
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"a fresh process did not answer the export's warm-up requests within {timeout:g} "
            "seconds; allow more (--check_timeout), or give fewer or shorter sentences"
        ) from error
    except tf.errors.OpError as error:
        raise InputError(
            f"the translator fails on the export's warm-up requests: {one_line(error)}"
        ) from error
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        reason = textwrap.shorten(output, 300) or f"it ended with status {process.returncode}"
        raise InputError(
            f"a fresh process without keras_transformer cannot run the export: {reason}"
        )
    return expected


def _compare(signature: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> int:
    """Returns the number of sentences with near ties: equal scores, and other text or tokens.

    Raises `InputError` where answers differ otherwise, or a number is not finite, as JSON requires.
    """
    if ours.keys() != theirs.keys():
        raise InputError(
            f"signature {signature} gives {', '.join(sorted(theirs))} when exported, but "
            f"{', '.join(sorted(ours))} in Python"
        )
    ties: set[int] = set()
    # The outputs [B, N, ...] of a search have scores [B, N] beside them.
    shape = np.shape(ours.get("scores", 0.0))
    for name, expected in ours.items():
        exported = theirs[name]
        if expected.dtype.kind == "f" and not np.isfinite(expected).all():
            raise InputError(f"output {name} of signature {signature} has infinite numbers")
        is_of_search = len(shape) == 2 and name != "scores"
        if is_of_search and exported.shape[:2] == expected.shape[:2] == shape:
            ties |= _differing_rows(exported, expected)
        elif exported.shape != expected.shape or _differs(exported, expected).any():
            raise InputError(
                f"output {name} of signature {signature} changes when it is exported: "
                + textwrap.shorten(f"{exported!r} instead of {expected!r}", 300)
            )
    return len(ties)


def _differing_rows(exported: Any, expected: Any) -> set[int]:
    """Returns the rows that differ; arrays [B, N, L, ...] may differ in L, by padding."""
    if expected.ndim >= 3:
        length = max(exported.shape[2], expected.shape[2])
        padding = b"" if expected.dtype == object else PAD_ID
        exported, expected = (
            np.pad(
                array,
                [(0, length - size if axis == 2 else 0) for axis, size in enumerate(array.shape)],
                constant_values=padding,
            )
            for array in (exported, expected)
        )
    differs = _differs(exported, expected).reshape(len(expected), -1).any(axis=1)
    return set(np.flatnonzero(differs).tolist())


def _differs(exported: Any, expected: Any) -> Any:
    """Returns a mask of the places where arrays differ, numbers by more than the tolerance."""
    if expected.dtype.kind == "f":
        return ~np.isclose(exported, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
    return exported != expected
