"""A large corpus takes hardly more memory than a small one."""

import pathlib

import pytest

from keras_transformer.files import read_lines
from keras_transformer.text import learn_vocabulary

SCRIPT = pathlib.Path(__file__).with_name("corpus_memory.py")
# 400 lines each of German, French and English.
NEWS = pathlib.Path(__file__).parents[1] / "data" / "text" / "newstest2014.gz"
# A corpus of Canadian laws, 509,797 pairs of 24 words a side, may take 300 MB more than Multi30k's
# 29,000 pairs of 12. The corpora here have such pairs, the large one 31,000 more than the small
# one, and that share of the 300 MB.
PAIRS = 60_000
ALLOWED_MEGABYTES = 300 * (PAIRS - 29_000) / (509_797 - 29_000)


@pytest.fixture
def measure(tmp_path, run_python):
    """Gives the pairs of a corpus, and the MB that it takes in the first and second epoch."""

    def measure(folder, *files):
        output = run_python(SCRIPT, folder, tmp_path / "vocabulary", *files)
        (pairs, first), (_, second) = (map(float, line.split()) for line in output.splitlines())
        return int(pairs), first, second

    return measure


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
def test_memory_does_not_grow_with_corpus_or_epochs(tmp_path, measure):
    small = write_corpus(tmp_path, 29_000, num_words=6)
    large = write_corpus(tmp_path, PAIRS, num_words=13)
    sample = [sentence for path in large for sentence in read_lines(path)[::30]]
    learn_vocabulary(sample, size=4000).save(tmp_path / "vocabulary")

    few, few_first, _ = measure(tmp_path / "few", *small)
    many, many_first, many_second = measure(tmp_path / "many", *large)
    assert few > 28_000
    assert many > PAIRS * 0.99
    assert many_first - few_first < ALLOWED_MEGABYTES
    assert many_second - many_first < 5
