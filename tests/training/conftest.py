"""Lets the tests of this folder import `tiny_run`, which they share, and `toy_architecture`."""

import pathlib
import sys

_HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "models")]
