"""Training: preparing a run, its optimizer, checkpoints and validation, and the loop over batches.

The names are in `__init__.pyi`. Each is imported when it is first used: checking the settings of a
run needs no TensorFlow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
