"""A vocabulary for models of random weights."""

import random

import pytest

from keras_transformer.text import learn_vocabulary


@pytest.fixture(scope="session")
def vocabulary():
    """30 tokens, all but the reserved ones single characters."""
    generator = random.Random(1)
    texts = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz ", k=30)) for _ in range(300)]
    return learn_vocabulary(texts, size=30, kind="char")
