"""Prints how much memory, in MB, it takes to tokenize a corpus and to go through its batches.

python corpus_memory.py FOLDER VOCABULARY SOURCE TARGET
"""

import pathlib
import sys

from keras_transformer.config import DataConfig
from keras_transformer.data import training_batches
from keras_transformer.training import prepare


def peak_megabytes() -> float:
    """Returns the largest resident memory of this process up to now (Linux)."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("the system does not tell the peak of the memory")


def main(folder: str, vocabulary: str, source: str, target: str) -> None:
    before = peak_megabytes()
    data = DataConfig(train_source=source, train_target=target, vocabulary=vocabulary)
    corpus = prepare.training_corpus(data, prepare.make_vocabularies(data), folder)
    steps = 0
    for epoch in (0, 1):
        batches = training_batches(corpus, batch_tokens=2048, first_step=steps, epochs=epoch + 1)
        steps += sum(1 for _ in batches)
        print(len(corpus), peak_megabytes() - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
