"""Sequence-to-sequence models for Keras: the Transformer (Vaswani et al. 2017) and others.

The public names are in `__init__.pyi`. Each is imported when it is first used: reading a
configuration does not load TensorFlow.
"""

import lazy_loader

from keras_transformer.registration import register_with_keras
from keras_transformer.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

register_with_keras()
