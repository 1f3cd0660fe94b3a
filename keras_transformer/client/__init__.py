"""Clients of model servers, over REST or gRPC; REST needs neither TensorFlow nor gRPC."""

from keras_transformer.client.client import AsyncClient, Client
from keras_transformer.client.transport import FailedRowsError, ServingError, VersionStatus
from keras_transformer.results import DetailedTranslation, Score, Translation

__all__ = [
    "AsyncClient",
    "Client",
    "DetailedTranslation",
    "FailedRowsError",
    "Score",
    "ServingError",
    "Translation",
    "VersionStatus",
]
