"""Reading parallel text from files."""

import gzip
import itertools
import os
import tracemalloc

import pytest

from keras_transformer.data.corpus import (
    FilePair,
    ParallelText,
    TsvFile,
    iterate_lines,
    read_lines,
    read_parallel,
)
from keras_transformer.errors import InputError


def test_plain_and_gzip_files_give_the_same_lines(tmp_path):
    content = "Ein Haus.\n\nZwei Häuser.\n".encode()
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(content))
    (tmp_path / "packed_without_suffix").write_bytes(gzip.compress(content))
    for name in ("plain", "packed.gz", "packed_without_suffix"):
        assert read_lines(tmp_path / name) == ["Ein Haus.", "", "Zwei Häuser."]


def test_lines_end_at_newlines_only(tmp_path):
    (tmp_path / "text").write_bytes("a\u2028b\u0085c\x0cd\re\r\n\ufeffg\r\r\nlast".encode())
    assert read_lines(tmp_path / "text") == ["a\u2028b\u0085c\x0cd\re", "\ufeffg\r", "last"]


def test_a_blank_last_line_counts(tmp_path):
    (tmp_path / "text").write_bytes(b"\none\n\n")
    assert read_lines(tmp_path / "text") == ["", "one", ""]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    assert read_lines(tmp_path / "text") == ["one", "two"]


@pytest.mark.parametrize(("name", "open_"), [("text", open), ("text.gz", gzip.open)])
def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path, name, open_):
    line, count = b"0123456789" * 1000 + b"\n", 2000  # 20 MB
    with open_(tmp_path / name, "wb") as file:
        file.writelines(itertools.repeat(line, count))
    tracemalloc.start()
    try:
        assert sum(1 for _ in iterate_lines(tmp_path / name)) == count
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent", None, r"absent does not exist; expected"),
        ("empty", b"", r"empty is empty; expected"),
        ("only_a_mark", b"\xef\xbb\xbf", r"only_a_mark is empty; expected"),
        ("empty.gz", gzip.compress(b"", mtime=0), r"empty\.gz is empty"),
        ("latin1", "gut\nH\u00e4user\n".encode("latin-1"), r"latin1, line 2: not UTF-8"),
        (
            "cut.gz",
            gzip.compress(b"one\n" * 99, mtime=0)[:-12],
            r"cut\.gz is not a whole gzip file",
        ),
        ("fake.gz", b"plain text\n", r"fake\.gz is not a whole gzip file"),
        (
            "bad.gz",
            gzip.compress(bytes(range(100)), mtime=0)[:-9] + bytes(9),
            r"bad\.gz is not a whole gzip",
        ),
    ],
)
def test_an_unusable_file_is_named_with_its_fault(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_lines(tmp_path / name)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder; expected a text file"):
        read_lines(tmp_path)


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
    assert ParallelText.read(pairs) == (["one", "", "three"], ["eins", "zwei", ""])


@pytest.mark.parametrize(("line", "tabs"), [("two zwei", 0), ("two\tzwei\tdeux", 2), ("", 0)])
def test_a_line_without_exactly_one_tab_is_named(tmp_path, line, tabs):
    (tmp_path / "text.tsv").write_text(f"one\teins\n{line}\n")
    with pytest.raises(InputError, match=rf"text\.tsv, line 2: expected .* got {tabs} tabs; mend"):
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
