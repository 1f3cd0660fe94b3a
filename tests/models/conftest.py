"""Modules that tests import from here and from other folders."""

import pathlib
import sys

_TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.extend(
    str(_TESTS / folder) for folder in ("client", "models", "oracles", "serving", "training")
)
