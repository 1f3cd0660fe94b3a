"""Parallel text from files, its filter by length, and its token ids in flat arrays."""

import os

import numpy as np
import pytest

from keras_transformer.config import EOS_ID
from keras_transformer.data.corpus import (
    FilePair,
    ParallelText,
    TokenizedCorpus,
    TsvFile,
    pad_ids,
)
from keras_transformer.errors import InputError


def test_parallel_files_keep_blank_lines_in_step(tmp_path):
    (tmp_path / "en").write_text("one\n\nthree\n")
    (tmp_path / "de").write_text("eins\nzwei\n\n")
    text = ParallelText.from_pairs(FilePair(tmp_path / "en", tmp_path / "de"))
    assert text.source == ["one", "", "three"]
    assert text.target == ["eins", "zwei", ""]


@pytest.mark.parametrize("lines", [(2, 3), (7, 2)])
def test_files_of_different_length_are_an_error_with_the_shorter_one(tmp_path, lines):
    for name, count in zip(("en", "de"), lines, strict=True):
        (tmp_path / name).write_text("line\n" * count)
    with pytest.raises(InputError, match=f"{'de' if lines[0] > 2 else 'en'} has only 2"):
        ParallelText.from_pairs(FilePair(tmp_path / "en", tmp_path / "de"))


def test_tsv_file_has_both_sides_on_each_line_and_can_be_read_again(tmp_path):
    (tmp_path / "text.tsv").write_bytes(b"one\teins\r\n\tzwei\nthree\t\n")
    pairs = TsvFile(tmp_path / "text.tsv")
    assert list(pairs) == list(pairs) == [("one", "eins"), ("", "zwei"), ("three", "")]


@pytest.mark.parametrize(("line", "tabs"), [("two zwei", 0), ("two\tzwei\tdeux", 2), ("", 0)])
def test_line_without_exactly_one_tab_is_an_error(tmp_path, line, tabs):
    (tmp_path / "text.tsv").write_text(f"one\teins\n{line}\n")
    message = rf"text\.tsv, line 2: expected .* got {tabs} tabs; .*: cut -f1,2"
    with pytest.raises(InputError, match=message):
        list(TsvFile(tmp_path / "text.tsv"))


def test_identity_depends_on_content_only(tmp_path, monkeypatch):
    for name, text in (("en", "one\n"), ("de", "eins\n"), ("copy", "one\n")):
        (tmp_path / name).write_text(text)
    pair = FilePair(tmp_path / "en", tmp_path / "de")
    before = pair.identity
    os.utime(tmp_path / "en", ns=(5, 6))
    assert FilePair(tmp_path / "copy", tmp_path / "de").identity == pair.identity == before
    assert FilePair(tmp_path / "de", tmp_path / "en").identity != before
    monkeypatch.chdir(tmp_path)
    assert FilePair("en", "de").identity == before
    (tmp_path / "de").write_text("zwei\n")  # of the same size
    assert pair.identity != before


def test_pipe_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # without a writer, so that reading it would wait
    with pytest.raises(InputError, match="pipe is not a file on disk"):
        TsvFile(tmp_path / "pipe").identity  # noqa: B018


@pytest.mark.parametrize(
    ("limits", "kept", "dropped"),
    [
        ({}, [1, 2, 3, 4], (2, 0)),
        ({"max_length": 6}, [1, 2, 3, 4], (2, 0)),  # inclusive
        ({"max_length": 5}, [1, 3, 4], (2, 1)),
        ({"max_length": 4}, [1], (2, 3)),
    ],
)
def test_pairs_are_dropped_by_length(limits, kept, dropped):
    source, target = (
        [[9] * n for n in lengths] for lengths in ([0, 4, 6, 2, 5, 0], [3, 4, 1, 5, 5, 0])
    )
    corpus = TokenizedCorpus.from_ids(source, target, **limits)
    assert corpus.lengths()[0].tolist() == [len(source[n]) + 1 for n in kept]
    assert corpus.dropped == dict(zip(("empty", "too long"), dropped, strict=True))
    with pytest.raises(InputError, match=r"left of 2 in x: empty 1, too long 1$"):
        TokenizedCorpus.from_ids([[], [5, 5]], [[5], [5]], max_length=1, name="x")


def test_both_sides_end_in_eos():
    corpus = TokenizedCorpus.from_ids([[5, 6], [], [7]], [[8], [5], [9, 10, 11]])
    assert corpus.source_ids.tolist() == [5, 6, EOS_ID, 7, EOS_ID]
    assert corpus.source_offsets.tolist() == [0, 3, 5]
    assert corpus.target_ids.tolist() == [8, EOS_ID, 9, 10, 11, EOS_ID]
    assert corpus.target_offsets.tolist() == [0, 2, 6]
    assert corpus.source_ids.dtype == corpus.target_ids.dtype == np.int32
    assert [side.tolist() for side in corpus.lengths(np.array([1, 0]))] == [[2, 3], [4, 2]]
    assert len(corpus) == 2
    with pytest.raises(InputError, match="got 1 and 2 sentences"):
        TokenizedCorpus.from_ids([[5]], [[5], [6]])


def test_pad_ids_pads_on_the_right():
    assert pad_ids([[4], [], [5, 6]]).tolist() == [[4, 0], [0, 0], [5, 6]]
    assert pad_ids([]).shape == (0, 0)
