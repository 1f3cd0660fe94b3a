"""The client of a model server, over REST or gRPC; REST needs neither TensorFlow nor gRPC."""

from keras_transformer.client.client import Client
from keras_transformer.client.transport import ServingError, VersionStatus
from keras_transformer.results import DetailedTranslation, Score, Translation

__all__ = ["Client", "DetailedTranslation", "Score", "ServingError", "Translation", "VersionStatus"]
