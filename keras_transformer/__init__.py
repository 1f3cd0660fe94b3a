"""Sequence-to-sequence models for Keras: the Transformer (Vaswani et al. 2017) and others.

The public names are in `__init__.pyi`. Each is imported when it is first used: reading a
configuration does not load TensorFlow.
"""

import lazy_loader

from keras_transformer.registration import register_with_keras

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

register_with_keras()
