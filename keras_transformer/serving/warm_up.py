"""Warm-up requests: a model server answers them before it reports that it is ready.

The first request of each kind makes TensorFlow optimize its graph and takes seconds. The server
reads these from the file `assets.extra/tf_serving_warmup_requests` of a version.
"""

import itertools
import pathlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.config import UNK_ID
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.inference.translator import Translator, signature_inputs
from keras_transformer.text import Vocabulary
from keras_transformer.text.vocabulary import RESERVED_IDS

with needs_extra("serving"):
    from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

BATCH_SIZES = (1, 8, 64)
_MOST_REQUESTS = 1000  # of a file; the server rejects more
_NUM_GENERATED = 64
_LONGEST_GENERATED = 32  # tokens


class Request(NamedTuple):
    """A request to a model server.

    Attributes:
        signature: its name.
        inputs: arrays by name, dimension 0 the batch; text as bytes in arrays of objects.
    """

    signature: str
    inputs: dict[str, np.ndarray[Any, Any]]

    @property
    def size(self) -> int:
        """The number of sentences."""
        return len(next(iter(self.inputs.values())))


def make_requests(
    translator: Translator,
    signatures: Mapping[str, Any],
    sentences: Sequence[str] = (),
    batch_sizes: Sequence[int] = BATCH_SIZES,
    most_sentences: int | None = None,
) -> list[Request]:
    """Returns requests to each signature with batches of each size, and to each compiled shape.

    A batch has sentences of all lengths; single sentences are the shortest, the median and the
    longest. XLA's programs, which all signatures share, are warmed up with ids, because the number
    of tokens in a text is not known in advance.

    Args:
        translator: the translator of the signatures.
        signatures: from `Translator.signatures`. Inputs other than "source", "target" and "text"
            are options, which keep the values of the export.
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
        lengths = [1 + number % _LONGEST_GENERATED for number in range(_NUM_GENERATED)]
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
                if name == "tokens":
                    inputs = {"source": _ids_column(rows)}
                else:
                    specs = signature_inputs(function).items()
                    inputs = {
                        key: columns[key] if key in columns else _as_exported(spec, size)
                        for key, spec in specs
                    }
                requests.append(Request(name, inputs))
    if translator.xla is not None:
        known = list(_text_ids(source)) or [UNK_ID]
        sizes, widths = translator.xla
        for size, width in itertools.product(_accepted(sizes, most_sentences), widths):
            rows = [generator.choices(known, k=width - 1) for _ in range(size)]  # and EOS
            requests.append(Request("tokens", {"source": _ids_column(rows)}))
    if len(requests) > _MOST_REQUESTS:
        raise InputError(
            f"{len(requests)} warm-up requests are more than the {_MOST_REQUESTS} that a model "
            "server takes; give fewer batch sizes"
        )
    return requests


def write_requests(version: pathlib.Path, requests: Sequence[Request], model_name: str) -> None:
    """Writes the warm-up file of a version: a TFRecord of `PredictionLog`."""
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
