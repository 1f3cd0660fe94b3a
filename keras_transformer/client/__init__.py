"""A client of model servers, over REST or gRPC; REST needs neither TensorFlow nor gRPC."""

from keras_transformer.client.client import Client
from keras_transformer.client.transport import ServingError, VersionStatus
from keras_transformer.results import Score, Translation

__all__ = ["Client", "Score", "ServingError", "Translation", "VersionStatus"]
