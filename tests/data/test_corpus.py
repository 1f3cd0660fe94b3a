"""Reading parallel text from files."""

import itertools
import os

import pytest

from keras_transformer.data.sources import FilePair, ParallelText, TsvFile, read_parallel
from keras_transformer.data.vocabularies import learn_from_corpus
from keras_transformer.errors import InputError


def test_parallel_files_keep_blank_lines_in_step(tmp_path):
    (tmp_path / "en").write_text("one\n\nthree\n")
    (tmp_path / "de").write_text("eins\nzwei\n\n")
    text = read_parallel(tmp_path / "en", tmp_path / "de")
    assert text.source == ["one", "", "three"]
    assert text.target == ["eins", "zwei", ""]


@pytest.mark.parametrize("lines", list(itertools.permutations((2, 3, 7), 2)))
def test_parallel_files_of_different_length_are_refused_with_both_counts(tmp_path, lines):
    for name, count in zip(("en", "de"), lines, strict=True):
        (tmp_path / name).write_text("line\n" * count)
    with pytest.raises(InputError, match=rf"en has {lines[0]} and .*de has {lines[1]};"):
        read_parallel(tmp_path / "en", tmp_path / "de")


def test_a_tsv_file_has_both_sides_on_each_line(tmp_path):
    (tmp_path / "text.tsv").write_bytes(b"one\teins\r\n\tzwei\nthree\t\n")
    pairs = TsvFile(tmp_path / "text.tsv")
    assert ParallelText.from_pairs(pairs) == (["one", "", "three"], ["eins", "zwei", ""])


@pytest.mark.parametrize(("line", "tabs"), [("two zwei", 0), ("two\tzwei\tdeux", 2), ("", 0)])
def test_a_line_without_exactly_one_tab_is_named(tmp_path, line, tabs):
    (tmp_path / "text.tsv").write_text(f"one\teins\n{line}\n")
    with pytest.raises(InputError, match=rf"text\.tsv, line 2: expected .* got {tabs} tabs; fix"):
        list(TsvFile(tmp_path / "text.tsv"))


def test_a_source_can_be_gone_through_again(tmp_path):
    (tmp_path / "text.tsv").write_text("one\teins\n")
    pairs = TsvFile(tmp_path / "text.tsv")
    assert list(pairs) == list(pairs) == [("one", "eins")]


def test_the_identity_of_files_changes_with_size_and_time_and_place(tmp_path):
    for name in ("en", "de", "copy"):
        (tmp_path / name).write_text("one\n")
        os.utime(tmp_path / name, ns=(5, 5))
    pair = FilePair(tmp_path / "en", tmp_path / "de")
    seen = [pair.identity, FilePair(tmp_path / "de", tmp_path / "en").identity]
    seen.append(FilePair(tmp_path / "en", tmp_path / "copy").identity)
    os.utime(tmp_path / "de", ns=(5, 6))
    seen.append(pair.identity)
    (tmp_path / "de").write_text("drei\n")
    os.utime(tmp_path / "de", ns=(5, 6))
    seen.append(pair.identity)
    assert all(first != second for first, second in itertools.combinations(seen, 2))
    assert pair.identity == seen[-1]


def test_the_identity_does_not_depend_on_the_way_to_a_file(tmp_path, monkeypatch):
    (tmp_path / "text.tsv").write_text("one\teins\n")
    monkeypatch.chdir(tmp_path)
    assert TsvFile("text.tsv").identity == TsvFile(tmp_path / "text.tsv").identity


def test_a_pipe_is_refused_where_text_is_read_more_than_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is read several times; give a file on disk"):
        TsvFile(tmp_path / "pipe").identity  # noqa: B018


def test_a_real_corpus_keeps_its_sides_in_step(shared_data):
    folder = shared_data("tatoeba_ende")
    pairs = FilePair(folder / "train.en.gz", folder / "train.de.gz")
    assert sum(1 for _ in pairs) == 166_412


def test_a_pipe_is_refused_before_a_vocabulary_is_learned_from_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # without a writer, so that reading it would wait
    (tmp_path / "file").write_text("one\n")
    with pytest.raises(InputError, match="pipe is read several times; give a file on disk"):
        learn_from_corpus([FilePair(tmp_path / "file", tmp_path / "pipe")], size=9)
