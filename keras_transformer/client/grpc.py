"""Requests to a model server over gRPC; needs the package tensorflow-serving-api."""

from collections.abc import Callable, Mapping
from typing import Any

import grpc
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from keras_transformer.client.transport import (
    LOOPBACK,
    PORT_NOT_OF_GRPC,
    Certificates,
    ModelName,
    RequestError,
    VersionStatus,
)
from keras_transformer.sentences import InputValues

_ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'
_TOO_LARGE = "larger than max"
_NO_HTTP2 = ("http1.x server", "Failed parsing HTTP/2")
_OPTIONS: list[tuple[str, Any]] = [
    # Messages of any size, as over REST.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A channel fails all requests between its attempts to connect.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class GrpcTransport:
    """A `Transport` over one channel."""

    def __init__(
        self,
        host: str,
        port: int,
        certificates: Certificates | None,
        headers: Mapping[str, str],
        *,
        resolver: str = "",
    ) -> None:
        """Makes a channel, which connects at the first request.

        Args:
            host, port: the server.
            certificates: None for no TLS.
            headers: metadata of every request.
            resolver: the beginning of a target, such as "dns:///", whose addresses are used in
                turn; empty for one that keeps to the first that answers.
        """
        # Credentials may be sent in clear text to this machine, but not to a proxy.
        use_proxy = host not in LOOPBACK
        target = f"{resolver}{host}:{port}"
        options = [*_OPTIONS, ("grpc.enable_http_proxy", int(use_proxy))]
        if resolver:
            options.append(("grpc.service_config", _ROUND_ROBIN))
        if certificates is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            certificates.ssl_context()  # gRPC would report wrong files at the first request
            root, chain, key = certificates.contents()
            secrets = grpc.ssl_channel_credentials(root, key, chain)
            if certificates.server_name is not None:
                options.append(("grpc.ssl_target_name_override", certificates.server_name))
            self._channel = grpc.secure_channel(target, secrets, options)
        self._metadata = tuple(headers.items())
        self._predictions = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)

    def predict(
        self, model: ModelName, signature: str, inputs: Mapping[str, InputValues], timeout_s: float
    ) -> Mapping[str, Any]:
        request = predict_pb2.PredictRequest(model_spec=_spec(model, signature))
        for name, (values, dtype) in inputs.items():
            tensor = tf.make_tensor_proto(values, types_pb2.DataType.Value(dtype))
            request.inputs[name].CopyFrom(tensor)
        outputs = self._call(self._predictions.Predict, request, timeout_s).outputs
        return {name: _decode(tf.make_ndarray(value).tolist()) for name, value in outputs.items()}

    def signatures(self, model: ModelName, timeout_s: float) -> dict[str, dict[str, str]]:
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=_spec(model), metadata_field=["signature_def"]
        )
        answer = self._call(self._predictions.GetModelMetadata, request, timeout_s)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        answer.metadata["signature_def"].Unpack(signatures)
        type_name = types_pb2.DataType.Name
        return {
            name: {key: type_name(value.dtype) for key, value in signature.inputs.items()}
            for name, signature in signatures.signature_def.items()
            if not name.startswith("__")  # TensorFlow's own
        }

    def versions(self, name: str, timeout_s: float) -> list[VersionStatus]:
        request = get_model_status_pb2.GetModelStatusRequest(model_spec=_spec(ModelName(name)))
        answer = self._call(self._models.GetModelStatus, request, timeout_s)
        states = get_model_status_pb2.ModelVersionStatus.State
        return [
            VersionStatus(entry.version, states.Name(entry.state), entry.status.error_message)
            for entry in answer.model_version_status
        ]

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: Callable[..., Any], request: Any, timeout_s: float) -> Any:
        try:
            return method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            code, details = error.code().name, error.details() or ""
            if code == "RESOURCE_EXHAUSTED" and _TOO_LARGE in details:
                code = "INVALID_ARGUMENT"  # another attempt would be as large
            if any(message in details for message in _NO_HTTP2):
                code, details = "UNIMPLEMENTED", PORT_NOT_OF_GRPC
            raise RequestError(code, details) from error
        except ValueError as error:
            raise RequestError("CANCELLED", "the client is closed") from error


def _spec(model: ModelName, signature: str = "") -> Any:
    spec = model_pb2.ModelSpec(name=model.name, signature_name=signature)
    if model.version is not None:
        spec.version.value = model.version
    elif model.label is not None:
        spec.version_label = model.label
    return spec


def _decode(values: Any) -> Any:
    """Returns nested lists with their text as str."""
    if isinstance(values, list):
        return [_decode(value) for value in values]
    return values.decode("utf-8", "replace") if isinstance(values, bytes) else values
