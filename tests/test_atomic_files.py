"""Files are whole or not there, and what could not be written leaves nothing behind."""

import multiprocessing
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from keras_transformer.files import write_atomically


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
        "import sys; from keras_transformer.files import write_atomically;"
        "write_atomically(sys.argv[1], 'x')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "/dev/stdout"], capture_output=True, check=True
    )
    assert result.stdout == b"x"


def test_a_process_killed_while_it_writes_leaves_one_of_the_contents_whole(tmp_path):
    path = tmp_path / "file"
    program = (
        "import itertools, sys; from keras_transformer.files import write_atomically\n"
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


# Names, links, modes, several writers


def test_a_file_or_link_planted_under_a_guessed_name_is_never_written_to(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in (".file.writing", ".file.writing-", ".file.writing-0", "file.tmp"):
        (folder / name).symlink_to(victim)
    os.mkfifo(folder / ".file.writing-1")  # opening it would wait for a reader
    write_atomically(folder / "file", "new")
    assert victim.read_text() == "precious"
    assert (folder / "file").read_text() == "new"


def test_the_temporary_files_name_is_never_the_same(tmp_path, monkeypatch):
    names = []
    replace = pathlib.Path.replace
    monkeypatch.setattr(
        pathlib.Path, "replace", lambda *paths: names.append(paths[0].name) or replace(*paths)
    )
    for _ in range(3):
        write_atomically(tmp_path / "file", "text")
    assert len(set(names)) == 3
    assert all(len(name.removeprefix(".file.writing-")) == 32 for name in names)
    write_atomically(tmp_path / ("x" * 255), "text")  # the longest name that there may be


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_the_mode_of_the_file_is_kept_and_a_new_one_has_the_usual_one(tmp_path, mode):
    path = tmp_path / "file"
    mask = os.umask(0o027)
    try:
        write_atomically(path, "old")
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o7777 == 0o640
    path.chmod(mode)
    write_atomically(path, "new")
    assert path.stat().st_mode & 0o7777 == mode


def test_what_a_link_points_to_is_replaced_whole(tmp_path, monkeypatch):
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


def test_standard_output_in_a_file_keeps_what_was_printed_before(tmp_path):
    program = (
        "from keras_transformer.files import write_atomically; print('a', flush=True);"
        "write_atomically('/dev/stdout', 'b'); print('c')"
    )
    with (tmp_path / "output").open("ab") as output:
        subprocess.run([sys.executable, "-c", program], stdout=output, check=True)
    assert (tmp_path / "output").read_text() == "a\nbc\n"
    assert names_in(tmp_path) == ["output"]


@pytest.mark.parametrize("kind", [threading.Thread, multiprocessing.get_context("spawn").Process])
def test_writers_at_the_same_time_leave_the_whole_content_of_one(tmp_path, kind):
    path = tmp_path / "file"
    writers = [kind(target=write_often, args=(path, digit)) for digit in "0123"]
    for writer in writers:
        writer.start()
    contents = set()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            contents.add(path.read_text())
    for writer in writers:
        writer.join()
    contents.add(path.read_text())
    assert contents <= {digit * 100_000 for digit in "0123"}
    assert names_in(tmp_path) == ["file"]
    if kind is not threading.Thread:
        assert [writer.exitcode for writer in writers] == [0] * 4


def write_often(path, digit):
    for _ in range(30):
        write_atomically(path, digit * 100_000)
