"""The model server that stands in for a real one, and the model that it serves."""

import pytest
from fake_server import upper_case_model


@pytest.fixture
def model():
    return upper_case_model()
