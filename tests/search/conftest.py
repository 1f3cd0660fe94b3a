"""Lets the tests of this folder import what they are compared with, in tests/oracles."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "oracles"))
