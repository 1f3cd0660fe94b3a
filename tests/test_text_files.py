"""Reading lines of text files."""

import gzip
import itertools
import os
import threading
import time
import tracemalloc

import pytest

from keras_transformer import files
from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines, read_lines


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


# FIFOs


def open_for_writing(fifo, content, seconds):
    def write():
        time.sleep(seconds)
        with open(fifo, "wb") as file:
            time.sleep(seconds)
            file.write(content)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_fifo_is_read_as_soon_as_its_writer_writes(tmp_path, compress, capsys):
    os.mkfifo(tmp_path / "fifo")
    writer = open_for_writing(tmp_path / "fifo", compress(b"one\ntwo\n"), seconds=0.0)
    assert read_lines(tmp_path / "fifo") == ["one", "two"]
    writer.join()
    assert capsys.readouterr().err == ""


def test_a_fifo_whose_writer_comes_late_is_waited_for_with_a_message(tmp_path, monkeypatch, capsys):
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(files, "_FIFO_MESSAGE_S", 0.01)
    writer = open_for_writing(tmp_path / "fifo", b"one\n", seconds=0.2)
    assert read_lines(tmp_path / "fifo") == ["one"]
    writer.join()
    assert capsys.readouterr().err == (
        f"Waiting for a process to write to the FIFO {tmp_path / 'fifo'} ...\n"
    )


def test_a_fifo_without_a_writer_is_refused_and_leaves_no_thread(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(files, "_FIFO_MESSAGE_S", 0.01)
    monkeypatch.setattr(files, "_FIFO_LIMIT_S", 0.5)
    threads = threading.active_count()
    with pytest.raises(InputError, match=r"fifo is a FIFO, and no process has opened it for wri"):
        read_lines(tmp_path / "fifo")
    while threading.active_count() > threads:
        time.sleep(0.01)
