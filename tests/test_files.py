"""Files and folders that are whole or not there, and lines of text files."""

import bz2
import gzip
import io
import itertools
import lzma
import os
import subprocess
import sys
import tarfile
import threading
import tracemalloc

import pytest
from helpers import names_in

from keras_transformer.errors import InputError
from keras_transformer.files import (
    atomic_folder,
    iterate_lines,
    local_path,
    local_paths,
    read_lines,
    write_atomically,
)


def test_home_folder_stands_for_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_path("~/runs/mine") == tmp_path / "runs/mine"
    assert local_paths("~/a, ./b,/c") == f"{tmp_path}/a,./b,/c"
    write_atomically("~/file", "text\n")
    assert read_lines("~/file") == ["text"]
    for use in (local_path, read_lines):
        with pytest.raises(InputError, match="gs://bucket/run is not on this machine"):
            use("gs://bucket/run")


# Files


def test_full_disk_keeps_old_content_and_names_the_file(tmp_path, full_disk):
    path = tmp_path / "file"
    write_atomically(path, "old")
    with full_disk(), pytest.raises(OSError, match="File too large") as caught:
        write_atomically(path, "new" * 100)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["file"]


def test_mode_and_link_of_a_file_are_kept(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / ("x" * 255)
    (tmp_path / "link").symlink_to(target)
    write_atomically(tmp_path / "link", b"old\xff")  # which points to nothing so far
    target.chmod(0o750)
    reader = target.open("rb")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert reader.read() == b"old\xff"  # the file that is open was not written to
    assert (target.read_text(), target.stat().st_mode & 0o7777) == ("new", 0o750)
    assert names_in(target.parent) == [target.name]


def test_standard_output_is_appended_to(tmp_path):
    program = (
        "from keras_transformer.files import write_atomically; print('a', flush=True);"
        "write_atomically('/dev/stdout', 'b'); print('c')"
    )
    with (tmp_path / "output").open("ab") as output:
        subprocess.run([sys.executable, "-c", program], stdout=output, check=True)
    assert (tmp_path / "output").read_text() == "a\nbc\n"


def test_folder_appears_at_the_end_or_not_at_all(tmp_path):
    with pytest.raises(KeyError), atomic_folder(tmp_path / "a" / "folder") as aside:
        (aside / "file").write_text("text")
        raise KeyError
    assert names_in(tmp_path / "a") == []
    with atomic_folder(tmp_path / "a" / "one") as one, atomic_folder(tmp_path / "a" / "two"):
        (one / "file").write_text("text")
        assert not (tmp_path / "a" / "one").exists()
    assert (names_in(tmp_path / "a"), names_in(tmp_path / "a" / "one")) == (
        ["one", "two"],
        ["file"],
    )
    with pytest.raises(OSError, match="not empty"), atomic_folder(tmp_path / "a" / "one"):
        pass  # of another process, perhaps
    assert names_in(tmp_path / "a") == ["one", "two"]


# Lines


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("Ein Haus.\n\nZwei Häuser.\n", ["Ein Haus.", "", "Zwei Häuser."]),
        (
            "a\u2028b\u0085c\x0cd\re\r\n\ufeffg\r\r\nlast",
            ["a\u2028b\u0085c\x0cd\re", "\ufeffg\r", "last"],
        ),
        ("BZh9 is how bzip2 begins\n", ["BZh9 is how bzip2 begins"]),
        ("\ufeff\none\n\n", ["", "one", ""]),  # blank lines count, a byte order mark does not
    ],
)
@pytest.mark.parametrize(
    "compress",
    [bytes, gzip.compress, bz2.compress, lzma.compress],
    ids=lambda each: each.__module__,
)
def test_lines_end_at_newlines_only_in_files_and_pipes(tmp_path, content, lines, compress):
    (tmp_path / "text").write_bytes(compress(content.encode()))
    assert read_lines(tmp_path / "text") == lines
    os.mkfifo(tmp_path / "fifo")
    write = (tmp_path / "fifo").write_bytes
    threading.Thread(target=write, args=[compress(content.encode())]).start()
    assert read_lines(tmp_path / "fifo") == lines


def test_large_file_is_streamed(tmp_path):
    with gzip.open(tmp_path / "text.gz", "wb") as file:
        file.writelines(itertools.repeat(b"0123456789" * 1000 + b"\n", 2000))  # 20 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in iterate_lines(tmp_path / "text.gz")) == 2000
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def _tar():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("text"), io.BytesIO(b""))
    return content.getvalue()


UNUSABLE = [
    ("absent", None, "cannot be read .No such file"),
    (".", None, "cannot be read .Is a directory"),
    ("only_a_mark", b"\xef\xbb\xbf", "only_a_mark is empty"),
    ("empty.gz", gzip.compress(b""), r"empty\.gz is empty"),
    ("latin1", "gut\nH\u00e4user\n".encode("latin-1"), "latin1, line 2: not UTF-8"),
    ("utf16", b"one\n" + "two\n".encode("utf-16-le"), "utf16, line 2: a NUL byte"),
    ("cut.gz", gzip.compress(b"one\n" * 99)[:-12], "cannot be read"),
    ("bad.gz", gzip.compress(b"text")[:-9] + bytes(9), "cannot be read"),
    ("cut.xz", lzma.compress(b"one\n" * 99)[:-20], "cannot be read"),
    ("cut.bz2", bz2.compress(b"one\n" * 99)[:-5], "cannot be read"),
    ("zstd", b"\x28\xb5\x2f\xfd...", "compressed by zstd"),
    ("zip", b"PK\x03\x04...", "a zip archive"),
    ("parquet", b"PAR1...", "a Parquet table"),
    ("xml", b"\n<?xml version='1.0'?>", "XML"),
    ("tar", _tar(), "a tar archive"),
    ("text.tgz", gzip.compress(_tar()), "a tar archive"),
    ("text.tar.bz2", bz2.compress(_tar()), "a tar archive"),
    ("text.tar.xz", lzma.compress(_tar()), "a tar archive"),
    *((name, b"text\n", "convert it") for name in ("a.CSV", "a.jsonl.gz", "a.tmx")),
]


@pytest.mark.parametrize(("name", "content", "message"), UNUSABLE, ids=[row[0] for row in UNUSABLE])
def test_unusable_file_is_named_with_its_fault(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_lines(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
