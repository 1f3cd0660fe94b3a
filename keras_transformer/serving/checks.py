"""Warm-up requests of a SavedModel, and its checks before it is published.

`make_requests`, `write_requests`: a model server answers warm-up requests before it reports that it
is ready, since the first request of each kind makes TensorFlow optimize its graph and takes
seconds. It reads them from the file `assets.extra/tf_serving_warmup_requests` of a version.
`compare_answers`: does a fresh process without this package give the answers of Python to them?
"""

import itertools
import pathlib
import pickle
import random
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.config import UNK_ID
from keras_transformer.config.search import REQUEST_OPTIONS
from keras_transformer.errors import InputError
from keras_transformer.inference import ModelFunctions
from keras_transformer.inference.local_translator import signature_inputs
from keras_transformer.sentences import UNSET
from keras_transformer.text import Vocabulary
from keras_transformer.text.sentencepiece_model import RESERVED_IDS

_BATCH_SIZE = 8
_MAX_GENERATED = 32  # tokens
_TOLERANCE = 1e-4  # of numbers, absolute and relative
# Near ties are rare: a wrong vocabulary, for example, changes most texts and no score.
_SENTENCES_PER_TIE = 10
_FRESH_PROCESS = pathlib.Path(__file__).with_name("fresh_process.py")
CHECK_TIMEOUT = 1800.0  # seconds; XLA may have to compile many shapes

Arrays = dict[str, Any]  # NumPy arrays by name


class Request(NamedTuple):
    """A request to a signature: arrays by name, dimension 0 the batch; text as bytes."""

    signature: str
    inputs: Arrays

    @property
    def size(self) -> int:
        """The number of sentences."""
        return len(next(iter(self.inputs.values())))


def make_requests(
    functions: ModelFunctions, signatures: Mapping[str, Any], sentences: Sequence[str] = ()
) -> list[Request]:
    """Returns requests to each signature, and to each compiled shape.

    Each signature gets the sentence of the median length, then a batch of 8 of all lengths. XLA's
    programs get text of the most tokens that fit.

    Args:
        functions: of a model.
        signatures: from `ModelFunctions.signatures`. Inputs other than "source", "target" and
            "text" are options, which keep the values of the export.
        sentences: typical text; by default it is generated from the vocabulary.
    """
    source, target = functions.vocabularies
    generator = random.Random(0)
    if not any(map(str.strip, sentences)):
        sentences = [_generate_text(source, 1 + n, generator) for n in range(_MAX_GENERATED)]
    lengths = _count_tokens(functions, sentences)
    by_length = np.argsort(lengths, kind="stable")
    spread = by_length[np.linspace(0, len(lengths) - 1, _BATCH_SIZE).astype(int)]
    requests = []
    for rows in ([by_length[len(lengths) // 2]], spread):
        texts = _column([sentences[row] for row in rows])
        targets = _column([_generate_text(target, lengths[row], generator) for row in rows])
        columns = {"text": texts, "source": texts, "target": targets}
        for name, function in signatures.items():
            inputs = {
                key: columns[key]
                if key in columns
                else np.full(len(rows), UNSET[REQUEST_OPTIONS[key].type], spec.dtype.as_numpy_dtype)
                for key, spec in signature_inputs(function).items()
            }
            requests.append(Request(name, inputs))
    if functions.xla is not None:
        for size, width in itertools.product(*functions.xla):
            texts = [_generate_text(source, length, generator) for length in range(width)]
            pairs = zip(_count_tokens(functions, texts), texts, strict=True)
            _, longest = max(pair for pair in pairs if pair[0] < width)  # EOS is one more
            requests.append(Request("serving_default", {"text": _column([longest] * size)}))
    return requests


def _column(texts: Sequence[str]) -> Any:
    return np.array([text.encode() for text in texts], object)


def _count_tokens(functions: ModelFunctions, sentences: Sequence[str]) -> list[int]:
    """Returns how many tokens of each sentence the model reads, or one more where it has more."""
    return functions.read(tf.constant(sentences)).lengths.numpy().tolist()


def _generate_text(vocabulary: Vocabulary, length: int, generator: random.Random) -> str:
    """Returns the text of random tokens; read again, it may have fewer or more."""
    ids = range(len(RESERVED_IDS), vocabulary.size) or [UNK_ID]
    return vocabulary.decode([generator.choices(ids, k=length)])[0]


def write_requests(version: pathlib.Path, requests: Sequence[Request], model_name: str) -> None:
    """Writes the warm-up file of a version: a TFRecord of `PredictionLog`."""
    from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

    path = version / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests:
            request = predict_pb2.PredictRequest(
                model_spec=model_pb2.ModelSpec(name=model_name, signature_name=signature),
                inputs={name: tf.make_tensor_proto(value) for name, value in inputs.items()},
            )
            log = prediction_log_pb2.PredictLog(request=request)
            writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


def compare_answers(
    version: pathlib.Path,
    requests: Sequence[Request],
    signatures: Mapping[str, Any],
    timeout: float = CHECK_TIMEOUT,
) -> None:
    """Compares a fresh process's answers to the warm-up requests with those of Python.

    Where two translations have nearly the same score, rounding decides between them: a few
    sentences whose scores agree may differ otherwise.

    Args:
        version: the folder of the SavedModel, with the file of these requests in it.
        requests, signatures: the requests of that file, and the functions in Python by name.
        timeout: seconds that the process may take.

    Raises:
        InputError: the process cannot answer, takes too long, or its answers differ from Python's.
        tf.errors.OpError: Python cannot answer.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "answers")
        process = subprocess.Popen(
            [sys.executable, "-I", str(_FRESH_PROCESS), str(version), str(path), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            expected = [_answer(request, signatures) for request in requests]  # meanwhile
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise InputError(
                f"a fresh process did not answer the export's warm-up requests within {timeout:g} "
                "seconds; give fewer or shorter sentences"
            ) from error
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            reason = textwrap.shorten(output, 300) or f"it ended with status {process.returncode}"
            raise InputError(
                f"a fresh process without keras_transformer cannot run the export: {reason}"
            )
        answers = pickle.loads(path.read_bytes())
    count = sum(
        _count_differing(request.signature, ours, theirs)
        for request, ours, theirs in zip(requests, expected, answers, strict=True)
    )
    num_sentences = sum(request.size for request in requests)
    if count > max(1, num_sentences // _SENTENCES_PER_TIE):
        raise InputError(
            f"{count} of {num_sentences} answers of the export differ from Python's, though their "
            f"scores agree within {_TOLERANCE}: too many for near ties of translations"
        )


def _answer(request: Request, signatures: Mapping[str, Any]) -> Arrays:
    """Returns the outputs in Python, on the CPU like the other process: GPUs round differently."""
    with tf.device("/CPU:0"):
        inputs = {name: tf.constant(value) for name, value in request.inputs.items()}
        outputs = signatures[request.signature](**inputs)
        return {name: value.numpy() for name, value in outputs.items()}


def _count_differing(signature: str, ours: Arrays, theirs: Arrays) -> int:
    """Returns the number of sentences with equal scores and another text.

    Raises `InputError` where answers differ otherwise, or a number is not finite, as JSON requires.
    """
    if ours.keys() != theirs.keys():
        raise InputError(
            f"signature {signature} gives {', '.join(sorted(theirs))} when exported, but "
            f"{', '.join(sorted(ours))} in Python"
        )
    is_search = np.ndim(ours.get("scores", 0.0)) == 2  # [B, N]
    rows: set[int] = set()
    for name, expected in ours.items():
        exported = theirs[name]
        is_equal: Any = np.array(False)
        if exported.shape == expected.shape:
            is_equal = exported == expected
            if expected.dtype.kind == "f":
                is_equal = np.isclose(exported, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
                is_equal &= np.isfinite(expected)
        may_differ = is_search and name == "translations" and is_equal.ndim > 0
        if not is_equal.all() and not may_differ:
            raise InputError(
                f"output {name} of signature {signature} is infinite, or changes when it is "
                f"exported: {textwrap.shorten(f'{exported!r} instead of {expected!r}', 300)}"
            )
        rows.update(np.flatnonzero(~is_equal.reshape(len(expected), -1).all(axis=1)).tolist())
    return len(rows)
