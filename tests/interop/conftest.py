"""A vocabulary for models of random weights, and copies of samples."""

import pathlib
import random
import shutil

import pytest
import samples

from keras_transformer.text import learn_vocabulary


@pytest.fixture(scope="session")
def vocabulary():
    """30 tokens, all but the reserved ones single characters."""
    generator = random.Random(1)
    texts = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz ", k=30)) for _ in range(300)]
    return learn_vocabulary(texts, size=30, kind="char")


@pytest.fixture
def copy(sample_model, tmp_path):
    """Gives a copy of a sample that a test may change."""

    def copy(name):
        if name in samples.NEEDS_TORCH:
            pytest.importorskip("torch", reason="needs the package torch")
        return pathlib.Path(shutil.copytree(sample_model(name), tmp_path / name))

    return copy
