"""Tests of tasks use the table model of the search tests."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))

from search.conftest import table_model  # noqa: F401 (a fixture)
