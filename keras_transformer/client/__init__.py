"""The client of a model server; over REST it needs neither TensorFlow nor gRPC.

`inputs`, `outputs` and `alignment` are shared with translators that run in this process.
"""

from keras_transformer.client.client import Client
from keras_transformer.client.failures import ServingError
from keras_transformer.client.outputs import Score, Translation
from keras_transformer.client.transport import VersionStatus

__all__ = ["Client", "Score", "ServingError", "Translation", "VersionStatus"]
