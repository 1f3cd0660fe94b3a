"""Files are whole or not there, and what could not be written leaves nothing behind."""

import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest

from keras_transformer.atomic_files import write_atomically


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_text_is_utf_8_and_bytes_are_themselves(tmp_path):
    write_atomically(tmp_path / "text", "grün\n")
    write_atomically(str(tmp_path / "bytes"), b"\xff\n")
    assert (tmp_path / "text").read_bytes() == "grün\n".encode()
    assert (tmp_path / "bytes").read_bytes() == b"\xff\n"
    assert names_in(tmp_path) == ["bytes", "text"]


def test_what_does_not_fit_leaves_the_old_content_and_names_the_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # bytes a file may have
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_atomically(path, "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["file"]


@pytest.mark.parametrize("place", ["absent/file", "folder", "in_the_way/file"])
def test_a_path_that_can_hold_no_file_is_an_error(tmp_path, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "in_the_way").touch()
    with pytest.raises(OSError):
        write_atomically(tmp_path / place, "text")
    assert names_in(tmp_path) == ["folder", "in_the_way"]


def test_the_content_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, pathlib.Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: calls.append("sync") or fsync(file))
    monkeypatch.setattr(
        pathlib.Path, "replace", lambda *paths: calls.append("name") or replace(*paths)
    )
    write_atomically(tmp_path / "file", "text")
    assert calls == ["sync", "name", "sync"]  # the last one is the folder's


def test_links_and_pipes_are_written_through(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    program = (
        "import sys; from keras_transformer.atomic_files import write_atomically;"
        "write_atomically(sys.argv[1], 'x')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "/dev/stdout"], capture_output=True, check=True
    )
    assert result.stdout == b"x"


def test_a_process_killed_while_it_writes_leaves_one_of_the_contents_whole(tmp_path):
    path = tmp_path / "file"
    program = (
        "import itertools, sys; from keras_transformer.atomic_files import write_atomically\n"
        "for number in itertools.count(): write_atomically(sys.argv[1], f'{number % 10}' * 500_000)"
    )
    for _ in range(5):
        path.unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-c", program, str(path)])
        while not path.exists():
            time.sleep(0.001)
        time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        content = path.read_text()
        assert len(content) == 500_000
        assert set(content) == {content[0]}
    write_atomically(path, "new")  # which takes away what the killed one left
    assert names_in(tmp_path) == ["file"]
