"""A large corpus takes hardly more memory than a small one."""

import itertools
import os
import pathlib
import subprocess
import sys

import pytest

import keras_transformer
from keras_transformer.data import FilePair
from keras_transformer.text import learn_vocabulary

SCRIPT = pathlib.Path(__file__).with_name("corpus_memory.py")
ROOT = pathlib.Path(keras_transformer.__file__).parents[1]
# The whole of canlaws_enfr, 509,797 pairs, may take 300 MB more than Multi30k (29,000 pairs). This
# part of it is larger than Multi30k by 31,000 pairs, and may take that share of the 300 MB.
PAIRS = 60_000
ALLOWED_MEGABYTES = 300 * (PAIRS - 29_000) / (509_797 - 29_000)


@pytest.fixture
def measure(tmp_path):
    """Gives the pairs of a corpus, and the MB that it takes in the first and second epoch."""

    def measure(folder, *files):
        command = [sys.executable, SCRIPT, folder, tmp_path / "vocabulary", *files]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        output = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        (pairs, first), (_, second) = (
            map(float, line.split()) for line in output.stdout.splitlines()
        )
        return int(pairs), first, second

    return measure


@pytest.mark.slow
def test_memory_does_not_grow_with_corpus_or_epochs(shared_data, tmp_path, measure):
    small, large = shared_data("multi30k"), shared_data("canlaws_enfr")
    part = FilePair(tmp_path / "part.en", tmp_path / "part.fr")
    pairs = list(itertools.islice(FilePair(large / "train.en.gz", large / "train.fr.gz"), PAIRS))
    for path, sentences in zip((part.source, part.target), zip(*pairs, strict=True), strict=True):
        pathlib.Path(path).write_text("".join(f"{sentence}\n" for sentence in sentences))
    sample = itertools.chain.from_iterable(pairs[:: PAIRS // 2000])
    learn_vocabulary(sample, size=4000).save(tmp_path / "vocabulary")

    few, few_first, _ = measure(tmp_path / "few", small / "train.en", small / "train.de")
    many, many_first, many_second = measure(tmp_path / "many", part.source, part.target)
    assert few > 28_000
    assert many > PAIRS * 0.99
    assert many_first - few_first < ALLOWED_MEGABYTES
    assert many_second - many_first < 5
