"""Requests to a model server over gRPC."""

import array
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from keras_transformer.client.transport import Certificates, ServingError
from keras_transformer.protobuf import message_classes
from keras_transformer.sentences import Columns

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.enable_http_proxy", 0),  # as over REST
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A channel fails all requests between its attempts to connect.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
# By number of `tensorflow.DataType` the field of a tensor's values, and the type code of `array`.
_FIELDS = {
    1: ("float_val", "f"),
    3: ("int_val", "i"),
    7: ("string_val", "b"),
    9: ("int64_val", "q"),
    10: ("bool_val", "b"),
}
_NUMBERS: dict[type, int] = {float: 1, int: 3, str: 7}
# Of TensorFlow Serving, under its numbers.
_MESSAGES = message_classes(
    "serving",
    {
        "Version": {"value": (1, "int64")},
        "ModelSpec": {
            "name": (1, "string"),
            "version": (2, "Version"),
            "signature_name": (3, "string"),
        },
        "Dim": {"size": (1, "int64")},
        "TensorShape": {"dim": (2, "Dim*")},
        "Tensor": {
            "dtype": (1, "int32"),
            "tensor_shape": (2, "TensorShape"),
            "tensor_content": (4, "bytes"),
            "float_val": (5, "float*"),
            "int_val": (7, "int32*"),
            "string_val": (8, "bytes*"),
            "int64_val": (10, "int64*"),
            "bool_val": (11, "bool*"),
        },
        "NamedTensor": {"key": (1, "string"), "value": (2, "Tensor")},
        "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "NamedTensor*")},
        "PredictResponse": {"outputs": (1, "NamedTensor*")},
        "GetModelMetadataRequest": {
            "model_spec": (1, "ModelSpec"),
            "metadata_field": (2, "string*"),
        },
        "GetModelMetadataResponse": {"metadata": (2, "Metadata*")},
        "Metadata": {"key": (1, "string"), "value": (2, "Any")},
        "Any": {"value": (2, "SignatureMap")},  # of the metadata "signature_def"
        "SignatureMap": {"signature_def": (1, "NamedSignature*")},
        "NamedSignature": {"key": (1, "string"), "value": (2, "Signature")},
        "Signature": {"inputs": (1, "NamedInfo*")},
        "NamedInfo": {"key": (1, "string")},
    },
)


class GrpcTransport:
    """A channel to a model, which connects at the first request; thread-safe.

    Requests raise `ServingError`. Without a version they ask for the latest one, without
    certificates there is no TLS, and headers are the metadata of every request.
    """

    def __init__(
        self,
        address: str,
        model: str,
        version: int | None,
        certificates: Certificates | None,
        headers: Mapping[str, str],
    ) -> None:
        if certificates is None:
            self._channel = grpc.insecure_channel(address, _OPTIONS)
        else:
            root, chain, key = (path and pathlib.Path(path).read_bytes() for path in certificates)
            credentials = grpc.ssl_channel_credentials(root, key, chain)
            self._channel = grpc.secure_channel(address, credentials, _OPTIONS)
        self._model = {"name": model, "version": None if version is None else {"value": version}}
        self._metadata = tuple(headers.items())

    def predict(self, signature: str, inputs: Columns, timeout_s: float) -> Mapping[str, Any]:
        """Returns the outputs of a signature by name, as nested lists with text as str."""
        request = {"model_spec": self._model | {"signature_name": signature}}
        tensors = [{"key": name, "value": _tensor(values)} for name, values in inputs.items()]
        answer = self._call("Predict", request | {"inputs": tensors}, timeout_s)
        return {output.key: _values(output.value) for output in answer.outputs}

    def signatures(self, timeout_s: float) -> dict[str, list[str]]:
        """Returns the inputs of each signature."""
        request = {"model_spec": self._model, "metadata_field": ["signature_def"]}
        answer = self._call("GetModelMetadata", request, timeout_s)
        return {
            signature.key: [entry.key for entry in signature.value.inputs]
            for signature in answer.metadata[0].value.value.signature_def
        }

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: str, request: Mapping[str, Any], timeout_s: float) -> Any:
        call = self._channel.unary_unary(
            f"/tensorflow.serving.PredictionService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_MESSAGES[f"{method}Response"].FromString,
        )
        message = _MESSAGES[f"{method}Request"](**request)
        try:
            return call(message, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            code, details = error.code().name, error.details() or ""
            if "larger than max" in details:
                code = "INVALID_ARGUMENT"  # another attempt would be as large
            raise ServingError(details, code) from error


def _tensor(values: list[Any]) -> dict[str, Any]:
    """Returns the fields of a tensor with a value for each sentence, all of one type."""
    number = next(number for kind, number in _NUMBERS.items() if isinstance(values[0], kind))
    field, _ = _FIELDS[number]
    values = [value.encode() if isinstance(value, str) else value for value in values]
    return {"dtype": number, "tensor_shape": {"dim": [{"size": len(values)}]}, field: values}


def _values(tensor: Any) -> Any:
    """Returns the values of a tensor as nested lists, with text as str."""
    field, code = _FIELDS[tensor.dtype]
    values = list(getattr(tensor, field) or array.array(code, tensor.tensor_content))
    if field == "string_val":
        values = [value.decode("utf-8", "replace") for value in values]
    return _nested(values, [dim.size for dim in tensor.tensor_shape.dim])


def _nested(values: list[Any], shape: Sequence[int]) -> list[Any]:
    if len(shape) == 1:
        return values
    size = math.prod(shape[1:])
    return [_nested(values[row * size : (row + 1) * size], shape[1:]) for row in range(shape[0])]
