"""Tests of tasks use the server of other folders' tests."""

import pathlib
import sys

_TESTS = pathlib.Path(__file__).parents[1]
sys.path.extend(str(_TESTS / folder) for folder in ("client", "serving"))
