"""Reference alignments of a corpus: read from files, learned, kept, and in batches."""

import dataclasses
import itertools

import numpy as np
import pytest

from keras_transformer.config import EOS_ID, DataConfig
from keras_transformer.data import TokenizedCorpus, alignments, token_cache, training_batches
from keras_transformer.data.alignments import learn_alignment, read_alignment
from keras_transformer.data.corpus import LengthFilter, ParallelText, TsvFile
from keras_transformer.errors import InputError
from keras_transformer.text import learn_vocabulary
from keras_transformer.training.prepare import training_corpus

SOURCE = ["ab c", "a", "c b a"]
TARGET = ["x yz", "x x", "y y"]
LINKS = ["0-1 1-0", "0-0", "2-1 1-1"]


@pytest.fixture
def vocabularies():
    """Characters; each word begins with a token for its space."""
    vocabulary = learn_vocabulary([*SOURCE, *TARGET], kind="char")
    return vocabulary, vocabulary


def read(tmp_path, vocabularies, links=LINKS, **limits):
    files = [tmp_path / "first", tmp_path / "second"]
    for path, lines in zip(files, (links[:1], links[1:]), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    sources = [list(zip(SOURCE[:2], TARGET[:2], strict=True)), [(SOURCE[2], TARGET[2])]]
    return read_alignment(files, sources, vocabularies, LengthFilter(**limits)).tolist()


def test_tokens_get_first_token_of_their_source_word(tmp_path, vocabularies):
    # The first source has the tokens ▁ a b ▁ c, the first target ▁ x ▁ y z: x has the fourth.
    first, second, third = [4, 4, 1, 1, 1], [1, 1, 0, 0], [0, 0, 5, 5]
    assert read(tmp_path, vocabularies) == [*first, *second, *third]
    assert read(tmp_path, vocabularies, max_length=4) == second  # drops the other pairs


def test_unicode_that_makes_two_words_keeps_numbering(tmp_path, vocabularies):
    source = [("a´b c", "x y")]  # NFKC puts a space into the first word
    (tmp_path / "links").write_text("0-0 1-1\n")
    found = read_alignment([tmp_path / "links"], [source], vocabularies, LengthFilter())
    (ids,) = vocabularies[0].encode(["a´b c"])
    last = len(ids) - 1  # ▁ of the last word
    assert found.tolist() == [1, 1, last, last]


def test_words_that_are_joined_get_no_links(tmp_path):
    vocabulary = learn_vocabulary(["a"], kind="word")
    (tmp_path / "links").write_text("0-0 1-1 2-2\n")
    source = [("q r a", "a a a")]  # one unknown token for the first two
    found = read_alignment([tmp_path / "links"], [source], (vocabulary,) * 2, LengthFilter())
    assert found.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "links, message",
    [
        (LINKS[:2], "first, .*second has 2 lines for 3 pairs"),
        ([*LINKS, ""], "has 4 lines for 3 pairs"),
        (["0-0", "0-0 0", "0-0"], "second, line 1: expected links such as 0-0 1-2 .*got '0'"),
        (["0-0", "0-0", "3-0"], "second, line 2: link 3-0 is out of range: this pair has 3 source"),
        (["0-2", "", ""], "first, line 1: link 0-2 is out of range.*and 2 target words"),
    ],
)
def test_wrong_lines_are_named(tmp_path, vocabularies, links, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, vocabularies, links)


def made_up_corpus(pairs=200):
    """Source tokens 10 to 29 that become 40 to 59, every second pair of them in another order."""
    random = np.random.default_rng(0)
    sources = [random.permutation(20)[: random.integers(2, 8)] + 10 for _ in range(pairs)]
    orders = [random.permutation(len(row)) for row in sources]
    targets = [row[order] + 30 for row, order in zip(sources, orders, strict=True)]
    links = np.concatenate(orders) + 1
    return TokenizedCorpus.from_ids(sources, targets), links


@pytest.mark.parametrize("entries", [1, 500, 1_000_000])
def test_learned_links_are_those_of_a_made_up_corpus(monkeypatch, entries):
    monkeypatch.setattr(alignments, "_CHUNK_ENTRIES", entries)
    corpus, links = made_up_corpus()
    np.testing.assert_array_equal(learn_alignment(corpus, 60), links)


def test_equal_tokens_are_aligned_near_the_diagonal():
    corpus = TokenizedCorpus.from_ids([[5, 6, 5], [5], [6]], [[7, 8, 7], [7], [8]])
    assert learn_alignment(corpus, 9).tolist() == [1, 2, 3, 1, 1]


def test_token_without_counterpart_has_no_link():
    corpus = TokenizedCorpus.from_ids([[5], [6], [4]], [[7, 9], [8, 9], [9, 9]])
    found = learn_alignment(corpus, 10)
    assert found[[0, 2]].tolist() == [1, 1]
    assert found[[1, 3]].tolist() == [0, 0]


def test_batches_have_the_links_of_their_labels():
    corpus, links = made_up_corpus()
    batches = list(training_batches(corpus, batch_tokens=64, epochs=1))
    assert all("alignment" not in inputs for inputs, _ in batches)
    aligned = dataclasses.replace(corpus, alignment=links)
    arguments = dict(batch_tokens=64, epochs=1, replicas=2)
    whole = list(training_batches(aligned, **arguments))
    for inputs, labels in whole:
        row, time = np.nonzero(inputs["alignment"])
        place = inputs["alignment"][row, time] - 1
        np.testing.assert_array_equal(inputs["source"][row, place] + 30, labels[row, time])
        np.testing.assert_array_equal(inputs["alignment"] > 0, labels > EOS_ID)
    shards = [list(training_batches(aligned, **arguments, shard=(n, 2))) for n in (0, 1)]
    later = list(training_batches(aligned, **arguments, first_step=3))
    for number, (inputs, _) in enumerate(whole):
        halves = [shard[number][0]["alignment"] for shard in shards]
        np.testing.assert_array_equal(np.concatenate(halves), inputs["alignment"])
        if number >= 3:
            np.testing.assert_array_equal(later[number - 3][0]["alignment"], inputs["alignment"])


def test_alignment_is_kept_with_the_tokens(tmp_path, vocabularies, monkeypatch):
    text = ParallelText(SOURCE * 5, TARGET * 5)
    for name, lines in (("source", text.source), ("target", text.target), ("links", LINKS * 5)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files = {f"train_{side}": str(tmp_path / side) for side in ("source", "target")}
    plain = DataConfig(**files)
    from_file = plain.replace(guided_alignment=str(tmp_path / "links"))
    learned = plain.replace(guided_alignment="ibm1")

    def aligned(data):
        return training_corpus(data, vocabularies, tmp_path / "tokens").alignment

    assert aligned(plain) is None
    first = aligned(from_file).tolist()
    assert first == read(tmp_path, vocabularies) * 5
    assert len(aligned(learned)) == len(first)
    for name in ("read_alignment", "learn_alignment"):
        monkeypatch.delattr(token_cache, name)
    assert aligned(from_file).tolist() == first
    assert len(aligned(learned)) == len(first)
    (tmp_path / "links").write_text("\n" * 15)
    with pytest.raises(NameError):  # is made again
        aligned(from_file)


def test_sampled_subwords_cannot_be_aligned():
    with pytest.raises(InputError, match="cannot be combined with subword_sampling"):
        DataConfig(train_file="text.tsv", guided_alignment="ibm1", subword_sampling=0.1)


def test_tsv_sources_are_aligned_too(tmp_path, vocabularies):
    pairs = itertools.starmap("{}\t{}\n".format, zip(SOURCE, TARGET, strict=True))
    (tmp_path / "text.tsv").write_text("".join(pairs))
    (tmp_path / "links").write_text("\n".join(LINKS) + "\n")
    arguments = [tmp_path / "links"], [TsvFile(tmp_path / "text.tsv")], vocabularies
    assert read_alignment(*arguments, LengthFilter()).tolist() == read(tmp_path, vocabularies)
