"""Files and folders that are whole or not there, and lines of text files."""

import bz2
import fcntl
import gzip
import itertools
import lzma
import os
import pathlib
import platform
import subprocess
import sys
import threading
import time
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

ASIDE = f".writing-{platform.node()}-"


# Paths


def test_home_folder_stands_for_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert local_path("~/runs/mine") == tmp_path / "runs/mine"
    assert local_path(pathlib.Path("~")) == tmp_path
    assert local_paths("~/a, ./b,/c") == f"{tmp_path}/a,./b,/c"
    write_atomically("~/file", "text\n")
    assert read_lines("~/file") == ["text"]
    assert names_in(tmp_path) == ["file"]  # and no folder called "~"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gs://bucket/run", "^gs://bucket/run is not on this machine; give a local or mounted pa"),
        (pathlib.Path("s3://bucket/run"), "^s3:/bucket/run is not on this machine"),
        ("~nobody.here/run", "^there is no user 'nobody.here' for .*; a file of that name is ./~n"),
    ],
)
def test_paths_that_are_not_on_this_machine_are_rejected(path, message):
    for use in (local_path, read_lines, lambda path: write_atomically(path, "text")):
        with pytest.raises(InputError, match=message):
            use(path)


# Files


def test_full_disk_keeps_old_content_and_names_the_file(tmp_path, full_disk):
    path = tmp_path / "file"
    write_atomically(path, "old")
    with full_disk(), pytest.raises(OSError, match="File too large") as caught:
        write_atomically(path, "new" * 100)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["file"]


def test_longest_name_is_written(tmp_path):
    write_atomically(str(tmp_path / ("x" * 255)), b"\xff\n")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"\xff\n"


def test_content_is_synced_before_renaming(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, pathlib.Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: calls.append("sync") or fsync(file))
    monkeypatch.setattr(
        pathlib.Path, "replace", lambda *paths: calls.append("name") or replace(*paths)
    )
    write_atomically(tmp_path / "file", "text")
    assert calls == ["sync", "name", "sync"]  # the last one is the folder's


def test_file_mode_is_kept(tmp_path):
    path = tmp_path / "file"
    mask = os.umask(0o027)
    try:
        write_atomically(path, "old")
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o7777 == 0o640
    path.chmod(0o755)
    write_atomically(path, "new")
    assert path.stat().st_mode & 0o7777 == 0o755


def test_link_target_is_replaced_whole(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "target"
    (tmp_path / "link").symlink_to("elsewhere/target")
    write_atomically(tmp_path / "link", "old")  # which points to nothing so far
    reader = target.open()
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert reader.read() == "old"  # the file that is open was not written to
    assert target.read_text() == "new"
    assert names_in(tmp_path / "elsewhere") == ["target"]


def test_standard_output_is_appended_to(tmp_path):
    program = (
        "from keras_transformer.files import write_atomically; print('a', flush=True);"
        "write_atomically('/dev/stdout', 'b'); print('c')"
    )
    command = [sys.executable, "-c", program]
    with (tmp_path / "output").open("ab") as output:
        subprocess.run(command, stdout=output, check=True)
    assert (tmp_path / "output").read_text() == "a\nbc\n"
    assert names_in(tmp_path) == ["output"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"a\nbc\n"


WRITE_FOREVER = """
import itertools, sys
from keras_transformer.files import write_atomically
for number in itertools.count():
    write_atomically(sys.argv[1], sys.argv[2] * 500_000)
"""


def test_concurrent_and_killed_writers_leave_whole_content(tmp_path):
    path = tmp_path / "file"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE_FOREVER, str(path), digit]) for digit in "012"
    ]
    contents = set()
    while len(contents) < 2:
        if path.exists():
            contents.add(path.read_text())
    for writer in writers:
        contents.add(path.read_text())
        writer.kill()
        writer.wait()
    contents.add(path.read_text())
    assert contents <= {digit * 500_000 for digit in "012"}
    write_atomically(path, "grün\n")  # which takes away what the killed ones left
    assert path.read_bytes() == "grün\n".encode()
    assert names_in(tmp_path) == ["file"]


def test_folder_whose_lock_was_replaced_meanwhile_stays(tmp_path, monkeypatch):
    """Its owner made a new lock between a second writer's opening of the old one and locking it."""
    folder = tmp_path / f"{ASIDE}0"
    folder.mkdir()
    (folder / "lock").touch()
    lock_file = fcntl.flock

    def replace_lock_first(*arguments):
        (tmp_path / "new").touch()
        (tmp_path / "new").replace(folder / "lock")
        return lock_file(*arguments)

    monkeypatch.setattr(fcntl, "flock", replace_lock_first)
    write_atomically(tmp_path / "file", "text")
    assert names_in(tmp_path) == [folder.name, "file"]
    monkeypatch.undo()
    write_atomically(tmp_path / "file", "text")
    assert names_in(tmp_path) == ["file"]


# Folders


def test_failed_folder_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyError), atomic_folder(tmp_path / "a" / "b" / "folder") as aside:
        (aside / "file").write_text("text")
        raise KeyError
    assert names_in(tmp_path) == []


def test_folder_of_another_process_is_kept(tmp_path):
    path = tmp_path / "folder"

    def write_twice(**options):
        with atomic_folder(path, **options) as aside:
            (aside / "new").write_text("text")
            path.mkdir()
            (path / "old").write_text("text")

    with pytest.raises(OSError, match="not empty"):
        write_twice()
    assert (names_in(tmp_path), names_in(path)) == (["folder"], ["old"])
    (path / "old").unlink()
    path.rmdir()
    write_twice(is_whole=lambda folder: (folder / "new").exists())
    assert (names_in(tmp_path), names_in(path)) == (["folder"], ["new"])


def test_only_abandoned_folders_are_removed(tmp_path):
    for name in ("locked_once", "before_its_lock"):
        (tmp_path / f"{ASIDE}{name}").mkdir()
        (tmp_path / f"{ASIDE}{name}" / "file").write_text("text")
    (tmp_path / f"{ASIDE}locked_once" / "lock").touch()
    with atomic_folder(tmp_path / "one") as first, atomic_folder(tmp_path / "two") as second:
        assert names_in(tmp_path) == sorted([first.name, second.name])
    assert names_in(tmp_path) == ["one", "two"]


@pytest.mark.parametrize("host", ["another.machine", f"{platform.node()}-2"])
def test_folder_of_another_machine_is_removed_after_a_day_without_changes(tmp_path, host):
    """Where locks are local to a machine, its lock seems to be free."""
    other = tmp_path / f".writing-{host}-0"
    (other / "inner").mkdir(parents=True)
    for path in (other / "lock", other / "inner" / "file"):
        path.touch()
    write_atomically(tmp_path / "file", "text")
    two_days_ago = time.time() - 2 * 24 * 3600
    for path in (*other.rglob("*"), other):
        assert path.exists()
        os.utime(path, (two_days_ago, two_days_ago))
    os.utime(other / "inner" / "file")  # it is still being written
    write_atomically(tmp_path / "file", "text")
    assert (other / "inner" / "file").exists()
    os.utime(other / "inner" / "file", (two_days_ago, two_days_ago))
    write_atomically(tmp_path / "file", "text")
    assert names_in(tmp_path) == ["file"]


def test_folder_removed_before_its_lock_is_made_again(tmp_path, monkeypatch):
    make, removed = pathlib.Path.mkdir, []

    def make_and_remove(path, *arguments, **options):
        make(path, *arguments, **options)
        if path.name.startswith(".writing-") and not removed:
            removed.append(path)
            path.rmdir()

    monkeypatch.setattr(pathlib.Path, "mkdir", make_and_remove)
    folder = tmp_path / "new" / "folder"
    with atomic_folder(folder) as aside:
        (aside / "file").write_text("text")
        assert not folder.exists()
    assert removed != [aside]
    assert (names_in(folder.parent), names_in(folder)) == (["folder"], ["file"])


def test_links_like_abandoned_folders_are_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("text")
    parent = tmp_path / "parent"
    (parent / f"{ASIDE}folder").mkdir(parents=True)
    (parent / f"{ASIDE}link").symlink_to(precious)
    (parent / f"{ASIDE}folder" / "lock").symlink_to(precious / "made")
    with atomic_folder(parent / "folder"):
        pass
    assert names_in(precious) == ["file"]


def test_replaced_folder_keeps_its_mode(tmp_path):
    (tmp_path / "folder").mkdir(mode=0o700)
    with atomic_folder(tmp_path / "folder", is_whole=lambda path: (path / "new").exists()) as aside:
        (aside / "new").write_text("text")
    assert names_in(tmp_path / "folder") == ["new"]
    assert (tmp_path / "folder").stat().st_mode & 0o7777 == 0o700


# Lines


@pytest.mark.parametrize(
    ("pack", "suffix"), [(gzip.compress, ".gz"), (bz2.compress, ".bz2"), (lzma.compress, ".xz")]
)
def test_plain_and_packed_files_give_the_same_lines(tmp_path, pack, suffix):
    content = "Ein Haus.\n\nZwei Häuser.\n".encode()
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / f"packed{suffix}").write_bytes(pack(content))
    (tmp_path / "packed_without_suffix").write_bytes(pack(content))
    for name in ("plain", f"packed{suffix}", "packed_without_suffix"):
        assert read_lines(tmp_path / name) == ["Ein Haus.", "", "Zwei Häuser."]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (
            "a\u2028b\u0085c\x0cd\re\r\n\ufeffg\r\r\nlast",
            ["a\u2028b\u0085c\x0cd\re", "\ufeffg\r", "last"],
        ),
        ("BZh9 is how bzip2 begins\n", ["BZh9 is how bzip2 begins"]),
        ("\ufeff\none\n\n", ["", "one", ""]),  # blank lines count, a byte order mark does not
    ],
)
def test_lines_end_at_newlines_only(tmp_path, content, lines):
    (tmp_path / "text").write_bytes(content.encode())
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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent", None, r"absent does not exist; expected"),
        (".", None, "is a folder; expected a text file"),
        ("empty", b"", r"empty is empty; expected"),
        ("only_a_mark", b"\xef\xbb\xbf", r"only_a_mark is empty; expected"),
        ("empty.gz", gzip.compress(b"", mtime=0), r"empty\.gz is empty"),
        ("empty_packed", bz2.compress(b""), r"empty_packed is empty"),
        ("latin1", "gut\nH\u00e4user\n".encode("latin-1"), r"latin1, line 2: not UTF-8"),
        (
            "cut.gz",
            gzip.compress(b"one\n" * 99, mtime=0)[:-12],
            r"cut\.gz is not a whole gzip file",
        ),
        ("fake.gz", b"plain text\n", r"fake\.gz is not a whole gzip file"),
        ("fake.bz2", b"plain text\n", r"fake\.bz2 is not a whole bzip2 file"),
        ("cut.xz", lzma.compress(b"one\n" * 99)[:-20], r"cut\.xz is not a whole xz file"),
        ("text.zst", b"\x28\xb5\x2f\xfd...", r"text\.zst is packed by zstd; .*: zstd -d "),
        ("bad.gz", gzip.compress(b"text", mtime=0)[:-9] + bytes(9), r"bad\.gz is not a whole gzip"),
    ],
)
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
