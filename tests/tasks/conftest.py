"""Tests of tasks use the servers and the table model of other folders' tests."""

import pathlib
import sys

_TESTS = pathlib.Path(__file__).parents[1]
sys.path.extend(str(folder) for folder in (_TESTS, _TESTS / "client", _TESTS / "serving"))

from search.conftest import table_model  # noqa: E402, F401 (a fixture)
