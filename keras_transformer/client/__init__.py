"""The client of a model server, over REST or gRPC; it needs no TensorFlow."""

from keras_transformer.client.client import Client as Client
from keras_transformer.client.transport import ServingError as ServingError
