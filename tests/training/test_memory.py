"""A large corpus takes hardly more memory than a small one."""

import pathlib

import pytest

from keras_transformer.files import read_lines
from keras_transformer.text import learn_vocabulary

# Prints how much memory, in MB, it takes to tokenize a corpus and to go through its batches.
PROGRAM = """
import pathlib, re, sys
from keras_transformer.config import DataConfig
from keras_transformer.data import training_batches
from keras_transformer.training import prepare

def peak_megabytes():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s*(\\d+)", status)[1]) / 1024

if __name__ == "__main__":
    folder, vocabulary, source, target = sys.argv[1:]
    before, steps = peak_megabytes(), 0
    data = DataConfig(train_source=source, train_target=target, vocabulary=vocabulary)
    corpus = prepare.training_corpus(data, prepare.make_vocabularies(data), folder)
    for epoch in (0, 1):
        batches = training_batches(corpus, batch_tokens=2048, first_step=steps, epochs=epoch + 1)
        steps += sum(1 for _ in batches)
        print(len(corpus), peak_megabytes() - before)
"""
# 400 lines each of German, French and English.
NEWS = pathlib.Path(__file__).parents[1] / "data" / "text" / "newstest2014.gz"
# What tokenization and two epochs may take beside TensorFlow, plan and mapped pages included. The
# small corpus took 11 MB and the large one 31 MB; an earlier tokenization took 68 and 66 MB.
PAIRS = 60_000
ALLOWED_MEGABYTES = 45


def write_corpus(folder, num_pairs, num_words):
    """Writes pairs whose sentences begin like one line of news and end like another.

    Each part has at most `num_words` words. Returns the two files.
    """
    lines = [line.split(" ") for line in read_lines(NEWS)]
    paths = []
    for language, side in (("en", lines[800:]), ("de", lines[:400])):
        path = folder / f"{num_pairs}.{language}"
        with path.open("w", encoding="utf-8") as file:
            for number in range(num_pairs):
                begin, end = side[number % 400], side[number // 400]
                print(*begin[:num_words], *end[-num_words:], file=file)
        paths.append(path)
    return paths


@pytest.mark.slow
def test_memory_does_not_grow_with_corpus_or_epochs(tmp_path, run_python):
    small = write_corpus(tmp_path, 29_000, num_words=6)
    large = write_corpus(tmp_path, PAIRS, num_words=13)
    sample = [sentence for path in large for sentence in read_lines(path)[::30]]
    learn_vocabulary(sample, size=4000).save(tmp_path / "vocabulary")

    program = tmp_path / "program.py"  # its processes import it
    program.write_text(PROGRAM)

    def measure(folder, files):
        """Gives the pairs of a corpus, and the MB that it takes in the first and second epoch."""
        output = run_python(program, folder, tmp_path / "vocabulary", *files)
        (pairs, first), (_, second) = (map(float, line.split()) for line in output.splitlines())
        return int(pairs), first, second

    few, _, _ = measure(tmp_path / "few", small)
    many, many_first, many_second = measure(tmp_path / "many", large)
    assert few > 28_000
    assert many > PAIRS * 0.99
    assert many_first < ALLOWED_MEGABYTES
    assert many_second - many_first < 5
