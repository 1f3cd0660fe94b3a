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

    def encode(self, texts):
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


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(token_cache, "_CHUNK_PAIRS", 2)


@pytest.fixture
def tsv(tmp_path):
    return write_tsv(tmp_path / "text.tsv", ["ab c", "d efg", "hi jk"])


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def open_corpus(cache, *sources, vocabulary=None, **options):
    vocabulary = vocabulary or Letters()
    return cached_corpus(cache, sources, (vocabulary, vocabulary), **options)


def made(cache):
    return sorted(path.name for path in cache.iterdir())


def test_text_becomes_flat_arrays_that_are_mapped_read_only(cache, tsv):
    corpus = open_corpus(cache, tsv)
    assert sentences(corpus, "source") == ["ab.", "d.", "hi."]
    assert sentences(corpus, "target") == ["c.", "efg.", "jk."]
    for array in (corpus.source_ids, corpus.target_ids, corpus.target_offsets):
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable


def test_corpora_follow_each_other_and_may_repeat(tmp_path, cache, tsv):
    (tmp_path / "source").write_text("x\n\n")
    (tmp_path / "target").write_text("y\nz\n")
    pair = FilePair(tmp_path / "source", tmp_path / "target")
    corpus = open_corpus(cache, pair, tsv, pair)
    assert sentences(corpus, "source") == ["x.", "ab.", "d.", "hi.", "x."]
    assert corpus.dropped["empty"] == 2


@pytest.mark.parametrize(("size", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_ids_take_two_bytes_where_the_vocabulary_permits(cache, tsv, size, dtype):
    last = Letters(size=size, shift=size - FIRST_LETTER - 26)
    corpus = open_corpus(cache, tsv, vocabulary=last)
    assert corpus.target_ids.dtype == corpus.source_ids.dtype == dtype
    assert corpus.target_ids[0] == size - 24


CHANGES = {
    "nothing": ({}, None, 0),
    "text": ({}, ["ab c", "d efgh"], 6),
    "order": ({"order": -1}, None, 8),
    "vocabulary": ({"vocabulary": Letters("others")}, None, 8),
    "length": ({"max_length": 99}, None, 8),
}


@pytest.mark.parametrize(("changes", "new_text", "encoded"), CHANGES.values(), ids=CHANGES)
def test_text_is_tokenized_once_for_the_same_inputs(
    tmp_path, cache, tsv, changes, new_text, encoded
):
    other = write_tsv(tmp_path / "other.tsv", ["x y"])
    open_corpus(cache, tsv, other)
    before = made(cache)
    elsewhere = write_tsv(tmp_path / "copy.tsv", new_text or ["ab c", "d efg", "hi jk"])
    vocabulary = dataclasses.replace(changes.get("vocabulary", Letters()), encoded=0)
    sources = [elsewhere, other][:: changes.get("order", 1)]
    limits = {name: value for name, value in changes.items() if name.startswith("max")}
    open_corpus(cache, *sources, vocabulary=vocabulary, **limits)
    assert vocabulary.encoded == encoded
    assert len(made(cache)) == 1 + (encoded > 0)
    assert (made(cache) == before) == (encoded == 0)


DAMAGES = {
    "short": ("target_ids", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    "long": ("target_ids", lambda path: path.write_bytes(path.read_bytes() + b"xx")),
    "overwritten": ("target_ids", lambda path: path.write_bytes(bytes(path.stat().st_size))),
    "gone": ("source_offsets", os.unlink),
    "manifest": ("manifest.json", lambda path: path.write_text("[1]")),
    "no manifest": ("manifest.json", os.unlink),
}


@pytest.mark.parametrize(("file", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_corpus_is_made_again(cache, tsv, file, damage):
    open_corpus(cache, tsv)
    (folder,) = cache.iterdir()
    damage(folder / file)
    vocabulary = Letters()
    assert sentences(open_corpus(cache, tsv, vocabulary=vocabulary), "target")[1] == "efg."
    assert vocabulary.encoded == 6
    assert made(cache) == [folder.name]


def test_unusable_text_is_named_and_leaves_nothing(tmp_path, cache, tsv):
    long = write_tsv(tmp_path / "long.tsv", ["abcd abcd", " a"])
    with pytest.raises(InputError, match=r"left of 2 in .*long\.tsv: empty 1, too long 1"):
        open_corpus(cache, tsv, long, max_length=3)
    with pytest.raises(InputError, match=r"broken\.tsv, line 2"):
        open_corpus(cache, write_tsv(tmp_path / "broken.tsv", ["a b", "notab"]))
    assert made(cache) == []


@pytest.mark.parametrize("is_second", [False, True])
def test_tokens_of_text_that_changes_meanwhile_are_not_kept(tmp_path, cache, tsv, is_second):
    text = tsv.path.read_text()

    class Meddler(TsvFile):
        def __iter__(self):
            write_tsv(tsv.path, ["x y"] * 3)
            return super().__iter__()

    first = write_tsv(tmp_path / "first.tsv", ["a b"] * 3) if is_second else tsv
    sources = [Meddler(first.path), tsv][: 1 + is_second]
    with pytest.raises(InputError, match=r"text\.tsv changed while it was read; start again"):
        open_corpus(cache, *sources)
    tsv.path.write_text(text)
    corpus = open_corpus(cache, *[TsvFile(source.path) for source in sources])
    assert sentences(corpus, "source")[-3:] == ["ab.", "d.", "hi."]


def test_folder_that_cannot_be_written_is_named_and_empty(tmp_path, cache, tsv, full_disk):
    long = write_tsv(tmp_path / "long.tsv", ["abcdefgh abcdefgh"] * 10_000)
    with full_disk(), pytest.raises(InputError, match=r"cannot write .*cache \(.+\)"):
        open_corpus(cache, long)
    assert made(cache) == []
    cache.rmdir()
    cache.write_text("a file")
    with pytest.raises(InputError, match=r"cannot write the tokenized text to .*cache"):
        open_corpus(cache, tsv)


def test_corpus_of_a_faster_process_is_used(cache, tsv):
    class Overtaken(Letters):
        def encode(self, texts):
            open_corpus(cache, tsv)  # all of it, while this one is under way
            return super().encode(texts)

    corpus = open_corpus(cache, tsv, vocabulary=Overtaken())
    assert sentences(corpus, "source") == ["ab.", "d.", "hi."]
    assert len(made(cache)) == 1
