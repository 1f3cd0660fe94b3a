"""Text to ids and back: a learned subword vocabulary, outside the graph and inside it.

The names are in `__init__.pyi`. Each is imported when it is first used: processes that tokenize
outside the graph start in a fraction of the time that TensorFlow takes to load.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
