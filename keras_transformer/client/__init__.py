"""The client of a model server, over REST or gRPC; it needs no TensorFlow."""

from keras_transformer.client.client import Client
from keras_transformer.client.transport import ServingError
from keras_transformer.outputs import Score, Translation

__all__ = ["Client", "Score", "ServingError", "Translation"]
