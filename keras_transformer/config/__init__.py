"""Hyperparameters of model, data, training and search: frozen dataclasses that check themselves.

One place lists every hyperparameter; layers take plain numbers and never see these classes.
`ModelConfig.preset("base")` gives the paper's settings, `to_json` and `from_json` a round trip. The
names are in `__init__.pyi`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
