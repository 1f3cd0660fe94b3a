"""Requests to a model server over gRPC."""

import array
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from keras_transformer.client.messages import MESSAGES
from keras_transformer.client.transport import Certificates, ModelName, RequestError
from keras_transformer.sentences import InputValues

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.enable_http_proxy", 0),  # as over REST
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A channel fails all requests between its attempts to connect.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_ROUND_ROBIN = ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}')
# By `tensorflow.DataType` its number, the field of a tensor's values, and that of `array`.
_TYPES = {
    "DT_FLOAT": (1, "float_val", "f"),
    "DT_INT32": (3, "int_val", "i"),
    "DT_STRING": (7, "string_val", ""),
    "DT_INT64": (9, "int64_val", "q"),
    "DT_BOOL": (10, "bool_val", "b"),
}
_BY_NUMBER = {number: (name, field, code) for name, (number, field, code) in _TYPES.items()}


class GrpcTransport:
    """A channel to a model, which connects at the first request; thread-safe.

    Requests raise `RequestError`.

    Args:
        address: a target of gRPC; the addresses of one with "dns:" take turns.
        model: which to ask.
        certificates: None for no TLS.
        headers: metadata of every request.
    """

    def __init__(
        self,
        address: str,
        model: ModelName,
        certificates: Certificates | None,
        headers: Mapping[str, str],
    ) -> None:
        options = [*_OPTIONS, _ROUND_ROBIN] if address.startswith("dns:") else _OPTIONS
        if certificates is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            root, chain, key = (path and pathlib.Path(path).read_bytes() for path in certificates)
            credentials = grpc.ssl_channel_credentials(root, key, chain)
            self._channel = grpc.secure_channel(address, credentials, options)
        self._model = MESSAGES["ModelSpec"](name=model.name, version_label=model.label or "")
        if model.version is not None:
            self._model.version.value = model.version
        self._metadata = tuple(headers.items())

    def predict(
        self, signature: str, inputs: Mapping[str, InputValues], timeout_s: float
    ) -> Mapping[str, Any]:
        """Returns the outputs of a signature by name, as nested lists with text as str."""
        request = MESSAGES["PredictRequest"](model_spec=self._model)
        request.model_spec.signature_name = signature
        for name, (values, dtype) in inputs.items():
            tensor = request.inputs.add(key=name).value
            tensor.dtype, field, _ = _TYPES[dtype]
            tensor.tensor_shape.dim.add(size=len(values))
            getattr(tensor, field).extend(
                value.encode() if isinstance(value, str) else value for value in values
            )
        answer = self._call("Predict", request, timeout_s)
        return {output.key: _values(output.value) for output in answer.outputs}

    def signatures(self, timeout_s: float) -> dict[str, dict[str, str]]:
        """Returns for each signature the `tensorflow.DataType` of each of its inputs."""
        request = MESSAGES["GetModelMetadataRequest"](
            model_spec=self._model, metadata_field=["signature_def"]
        )
        answer = self._call("GetModelMetadata", request, timeout_s)
        return {
            signature.key: {
                entry.key: _BY_NUMBER[entry.value.dtype][0] for entry in signature.value.inputs
            }
            for signature in answer.metadata[0].value.value.signature_def
            if not signature.key.startswith("__")  # TensorFlow's own
        }

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        call = self._channel.unary_unary(
            f"/tensorflow.serving.PredictionService/{method}",
            request_serializer=MESSAGES[f"{method}Request"].SerializeToString,
            response_deserializer=MESSAGES[f"{method}Response"].FromString,
        )
        try:
            return call(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            code, details = error.code().name, error.details() or ""
            if "larger than max" in details:
                code = "INVALID_ARGUMENT"  # another attempt would be as large
            raise RequestError(code, details) from error


def _values(tensor: Any) -> Any:
    """Returns the values of a tensor as nested lists, with text as str."""
    _, field, code = _BY_NUMBER[tensor.dtype]
    values = list(getattr(tensor, field) or array.array(code or "b", tensor.tensor_content))
    if field == "string_val":
        values = [value.decode("utf-8", "replace") for value in values]
    return _nested(values, [dim.size for dim in tensor.tensor_shape.dim])


def _nested(values: list[Any], shape: Sequence[int]) -> list[Any]:
    if len(shape) == 1:
        return values
    size = math.prod(shape[1:])
    return [_nested(values[row * size : (row + 1) * size], shape[1:]) for row in range(shape[0])]
