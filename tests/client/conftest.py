"""The model server that stands in for a real one, and the model that it serves."""

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parent))

from fake_server import upper_case_model


@pytest.fixture
def model():
    return upper_case_model()
