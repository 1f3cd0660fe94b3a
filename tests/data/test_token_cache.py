"""Tokenized text on disk: made once, never half, never for other inputs."""

import dataclasses
import itertools
import os

import numpy as np
import pytest

from keras_transformer.config import EOS_ID
from keras_transformer.data import token_cache
from keras_transformer.data.corpus import FilePair, TsvFile
from keras_transformer.data.token_cache import cached_corpus
from keras_transformer.errors import InputError

FIRST_LETTER = 10


@dataclasses.dataclass
class Letters:
    """Stands in for a vocabulary: a letter is a token."""

    fingerprint: str = "letters"
    size: int = 300
    shift: int = 0
    encoded: int = 0

    def encode(self, texts, num_threads=-1):
        self.encoded += len(texts)
        first = FIRST_LETTER + self.shift - ord("a")
        return [[first + ord(letter) for letter in text] for text in texts]


def write_tsv(path, text):
    path.write_text("".join(f"{pair.replace(' ', chr(9))}\n" for pair in text))
    return TsvFile(path)


def sentences(corpus, side):
    ids, offsets = getattr(corpus, f"{side}_ids"), getattr(corpus, f"{side}_offsets")
    rows = [ids[start:end].tolist() for start, end in itertools.pairwise(offsets)]
    letters = {EOS_ID: "."} | {FIRST_LETTER + n: chr(ord("a") + n) for n in range(26)}
    return ["".join(map(letters.get, row)) for row in rows]


@pytest.fixture
def tsv(tmp_path):
    return write_tsv(tmp_path / "text.tsv", ["ab c", "d efg", "hi jk"])


def open_corpus(tmp_path, *sources, vocabulary=None, **limits):
    vocabulary = vocabulary or Letters()
    return cached_corpus(tmp_path / "cache", sources, (vocabulary, vocabulary), **limits)


def made(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").iterdir())


# What is in it


def test_text_becomes_flat_arrays_that_are_mapped_read_only(tmp_path, tsv):
    corpus = open_corpus(tmp_path, tsv)
    assert sentences(corpus, "source") == ["ab.", "d.", "hi."]
    assert sentences(corpus, "target") == ["c.", "efg.", "jk."]
    assert [side.tolist() for side in corpus.lengths()] == [[3, 2, 3], [2, 4, 3]]
    for array in (corpus.source_ids, corpus.target_ids, corpus.target_offsets):
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable


def test_several_corpora_become_one_in_their_order(tmp_path, tsv, monkeypatch):
    monkeypatch.setattr(token_cache, "_CHUNK_PAIRS", 2)
    (tmp_path / "source").write_text("x\n\n")
    (tmp_path / "target").write_text("y\nz\n")
    pair, told = FilePair(tmp_path / "source", tmp_path / "target"), []
    corpus = open_corpus(tmp_path, pair, tsv, progress=told.append)
    assert sentences(corpus, "source") == ["x.", "ab.", "d.", "hi."]
    assert corpus.dropped["empty"] == 1
    assert told == [2, 4, 5]


@pytest.mark.parametrize(("size", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_ids_take_two_bytes_where_the_vocabulary_permits(tmp_path, tsv, size, dtype):
    last = Letters(size=size, shift=size - FIRST_LETTER - 26)
    corpus = open_corpus(tmp_path, tsv, vocabulary=last)
    assert corpus.target_ids.dtype == corpus.source_ids.dtype == dtype
    assert corpus.target_ids[0] == size - 24


# When it is made


def test_text_is_tokenized_once(tmp_path, tsv):
    vocabulary = Letters()
    first = open_corpus(tmp_path, tsv, vocabulary=vocabulary, max_length=2)
    assert vocabulary.encoded == 6
    again = open_corpus(tmp_path, tsv, vocabulary=vocabulary, max_length=2)
    assert vocabulary.encoded == 6
    assert sentences(again, "target") == sentences(first, "target")
    assert again.dropped == first.dropped == {"empty": 0, "too long": 1, "length ratio": 0}


@pytest.mark.parametrize(
    ("changes", "new_text", "is_reversed", "encoded"),
    [
        ({}, ["ab c", "d efgh"], False, 6),
        ({}, None, True, 8),
        ({"vocabulary": "others"}, None, False, 8),
        ({"max_length": 99}, None, False, 8),
        ({"max_length_ratio": 9.0}, None, False, 8),
    ],
    ids=["text", "order", "vocabulary", "length", "ratio"],
)
def test_changed_input_replaces_the_corpus(tmp_path, tsv, changes, new_text, is_reversed, encoded):
    sources = [tsv, write_tsv(tmp_path / "other.tsv", ["x y"])]
    open_corpus(tmp_path, *sources)
    old = made(tmp_path)
    if new_text:
        write_tsv(tsv.path, new_text)
    vocabulary = Letters(changes.get("vocabulary", "letters"))
    sources = sources[::-1] if is_reversed else sources
    open_corpus(tmp_path, *sources, keep_others=False, **changes | {"vocabulary": vocabulary})
    assert vocabulary.encoded == encoded
    assert len(made(tmp_path)) == 1
    assert made(tmp_path) != old


def test_same_text_elsewhere_is_found_and_others_are_kept(tmp_path, tsv):
    open_corpus(tmp_path, tsv)
    elsewhere = write_tsv(tmp_path / "another_machine.tsv", ["ab c", "d efg", "hi jk"])
    vocabulary = Letters()
    open_corpus(tmp_path, elsewhere, vocabulary=vocabulary)
    assert vocabulary.encoded == 0
    open_corpus(tmp_path, elsewhere, max_length=99)
    assert len(made(tmp_path)) == 2


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("target_ids", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("target_ids", lambda path: path.write_bytes(path.read_bytes() + b"xx")),
        ("target_ids", lambda path: path.write_bytes(path.read_bytes()[:-4] + b"xx\3\0")),
        ("target_ids", os.unlink),
        ("manifest.json", lambda path: path.write_text("[1]")),
        ("manifest.json", os.unlink),
    ],
    ids=["short", "long", "overwritten", "gone", "manifest", "no_manifest"],
)
def test_damaged_corpus_is_made_again(tmp_path, tsv, file, damage):
    open_corpus(tmp_path, tsv)
    (folder,) = (tmp_path / "cache").iterdir()
    damage(folder / file)
    vocabulary = Letters()
    assert sentences(open_corpus(tmp_path, tsv, vocabulary=vocabulary), "target")[1] == "efg."
    assert vocabulary.encoded == 6
    assert made(tmp_path) == [folder.name]


# What can go wrong


def test_error_in_the_text_leaves_nothing_behind(tmp_path):
    broken = TsvFile(tmp_path / "broken.tsv")
    broken.path.write_text("a\tb\nno tab\n")
    with pytest.raises(InputError, match=r"broken\.tsv, line 2"):
        open_corpus(tmp_path, broken)
    assert list((tmp_path / "cache").iterdir()) == []


def test_empty_corpus_is_named(tmp_path, tsv):
    long = write_tsv(tmp_path / "long.tsv", ["abcd abcd", " a"])
    with pytest.raises(InputError, match=r"left of 2 in .*long\.tsv: empty 1, too long 1"):
        open_corpus(tmp_path, tsv, long, max_length=3)


def test_text_changed_during_reading_is_an_error(tmp_path, tsv):
    class Meddler(Letters):
        def encode(self, texts, num_threads=-1):
            write_tsv(tsv.path, ["ab c"])
            return super().encode(texts, num_threads)

    with pytest.raises(InputError, match=r"text\.tsv changed while it was read; start again"):
        open_corpus(tmp_path, tsv, vocabulary=Meddler())


@pytest.mark.parametrize("is_second", [False, True])
def test_tokens_of_changed_text_are_not_kept(tmp_path, tsv, monkeypatch, is_second):
    monkeypatch.setattr(token_cache, "_CHUNK_PAIRS", 2)
    text = tsv.path.read_text()

    class Meddler(TsvFile):
        def __iter__(self):
            write_tsv(tsv.path, ["x y"] * 3)
            return super().__iter__()

    first = write_tsv(tmp_path / "first.tsv", ["a b"] * 3) if is_second else tsv
    sources = [Meddler(first.path), tsv][: 1 + is_second]
    with pytest.raises(InputError, match=r"text\.tsv changed while it was read; start again"):
        open_corpus(tmp_path, *sources)
    tsv.path.write_text(text)
    corpus = open_corpus(tmp_path, *[TsvFile(source.path) for source in sources])
    assert sentences(corpus, "source")[-3:] == ["ab.", "d.", "hi."]


def test_full_disk_is_an_error_and_leaves_nothing(tmp_path, full_disk):
    tsv = write_tsv(tmp_path / "long.tsv", ["abcdefgh abcdefgh"] * 10_000)
    message = r"cannot write .*cache \(.+\); free some space"
    with full_disk(), pytest.raises(InputError, match=message):
        open_corpus(tmp_path, tsv)
    assert list((tmp_path / "cache").iterdir()) == []


def test_unwritable_folder_is_named(tmp_path, tsv):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InputError, match=r"cannot write the tokenized text to .*cache"):
        open_corpus(tmp_path, tsv)


def test_corpus_of_a_faster_process_is_used(tmp_path, tsv):
    class Overtaken(Letters):
        def encode(self, texts, num_threads=-1):
            open_corpus(tmp_path, tsv)  # all of it, while this one is under way
            return super().encode(texts, num_threads)

    corpus = open_corpus(tmp_path, tsv, vocabulary=Overtaken())
    assert sentences(corpus, "source") == ["ab.", "d.", "hi."]
    assert len(made(tmp_path)) == 1
