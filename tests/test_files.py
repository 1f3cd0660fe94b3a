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


_WRITE_FOREVER = """
import itertools, pathlib, shutil, sys
from keras_transformer.files import atomic_folder, write_atomically
path, digit = pathlib.Path(sys.argv[1]), sys.argv[2]
for number in itertools.count():
    write_atomically(path / "file", digit * 500_000)
    with atomic_folder(path / f"folder-{digit}-{number}") as folder:
        for name in "ab":
            (folder / name).write_text(digit * 500_000)
"""


def test_killed_writers_leave_whole_files_and_folders(tmp_path):
    command = [sys.executable, "-c", _WRITE_FOREVER, str(tmp_path)]
    writers = [subprocess.Popen([*command, digit]) for digit in "012"]
    while len(list(tmp_path.glob("folder-*"))) < 10:
        if (tmp_path / "file").exists():
            assert len((tmp_path / "file").read_text()) == 500_000
    for writer in writers:
        writer.kill()
        writer.wait()
    for path in tmp_path.glob("folder-*"):
        contents = {(path / name).read_text() for name in "ab"}
        assert contents == {path.name[len("folder-")] * 500_000}


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
def test_lines_end_at_newlines_only(tmp_path, content, lines, compress):
    (tmp_path / "text").write_bytes(compress(content.encode()))
    assert read_lines(tmp_path / "text") == lines


@pytest.mark.parametrize(("name", "open_"), [("text", open), ("text.gz", gzip.open)])
def test_large_file_is_streamed(tmp_path, name, open_):
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


def _tar():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("text"), io.BytesIO(b""))
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent", None, "absent cannot be read .No such file"),
        (".", None, "cannot be read .Is a directory"),
        ("empty", b"", "empty is empty; expected"),
        ("only_a_mark", b"\xef\xbb\xbf", "only_a_mark is empty; expected"),
        ("empty.gz", gzip.compress(b""), r"empty\.gz is empty"),
        ("latin1", "gut\nH\u00e4user\n".encode("latin-1"), "latin1, line 2: not UTF-8"),
        ("cut.gz", gzip.compress(b"one\n" * 99)[:-12], r"cut\.gz cannot be read"),
        ("bad.gz", gzip.compress(b"text")[:-9] + bytes(9), r"bad\.gz cannot be read"),
        ("cut.xz", lzma.compress(b"one\n" * 99)[:-20], r"cut\.xz cannot be read"),
        ("cut.bz2", bz2.compress(b"one\n" * 99)[:-5], r"cut\.bz2 cannot be read"),
        ("text", b"\x28\xb5\x2f\xfd...", "text is compressed by zstd"),
        ("text", b"PK\x03\x04...", "text is a zip archive"),
        ("text", b"PAR1...", "text is a Parquet table"),
        ("text", _tar(), "text is a tar archive"),
        *(
            (f"text{suffix}", compress(_tar()), f"text{suffix} is a tar archive")
            for suffix, compress in (
                (".tgz", gzip.compress), (".tar.bz2", bz2.compress), (".tar.xz", lzma.compress)
            )
        ),
        ("text", b"one\n" + "two\n".encode("utf-16-le"), "text, line 2: a NUL byte"),
        ("text", b"\n<?xml version='1.0'?>", "text is XML"),
        *((name, b"text\n", "convert it") for name in ("a.CSV", "a.jsonl.gz", "a.tmx")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # the same in all processes
)  # fmt: skip
def test_unusable_file_is_named_with_its_fault(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_lines(tmp_path / name)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_fifo_is_read(tmp_path, compress):
    os.mkfifo(tmp_path / "fifo")
    content = compress(b"one\ntwo\n")
    writer = threading.Thread(target=(tmp_path / "fifo").write_bytes, args=[content])
    writer.start()
    assert read_lines(tmp_path / "fifo") == ["one", "two"]
    writer.join()
