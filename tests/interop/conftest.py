"""Lets tests import the modules beside them; a vocabulary for models of random weights."""

import pathlib
import random
import sys

import pytest

from keras_transformer.text import learn_vocabulary

sys.path.append(str(pathlib.Path(__file__).parent))


@pytest.fixture(scope="session")
def vocabulary():
    """30 tokens, all but the reserved ones single characters."""
    generator = random.Random(1)
    texts = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz ", k=30)) for _ in range(300)]
    return learn_vocabulary(texts, size=30, kind="char")
