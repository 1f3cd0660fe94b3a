"""Search for the best translations over a step function; knows nothing else of the model.

The names are in `__init__.pyi`.
"""

import lazy_loader

from keras_transformer.errors import check_backend

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

check_backend()
