"""Lets the tests of tasks import what searches are compared with, in tests/oracles."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "oracles"))
