"""The client of a model server; over REST it needs neither TensorFlow nor gRPC.

`inputs`, `outputs` and `alignment` are shared with translators that run in this process.
"""

from keras_transformer.client.client import Client
from keras_transformer.client.transport import ServingError, VersionStatus
from keras_transformer.results import Score, Translation

__all__ = ["Client", "Score", "ServingError", "Translation", "VersionStatus"]
