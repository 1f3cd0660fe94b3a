"""Folders are whole or not there."""

import pathlib

import pytest

from keras_transformer.files import atomic_folder


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_has_its_name_once_it_is_whole_and_nothing_else_is_left(tmp_path):
    with atomic_folder(tmp_path / "new" / "folder") as aside:
        (aside / "file").write_text("text")
        assert not (tmp_path / "new" / "folder").exists()
    assert names_in(tmp_path / "new") == ["folder"]
    assert names_in(tmp_path / "new" / "folder") == ["file"]


def test_what_fails_leaves_nothing_behind_not_even_the_folders_above(tmp_path):
    with pytest.raises(KeyError), atomic_folder(tmp_path / "a" / "b" / "folder") as aside:
        (aside / "file").write_text("text")
        raise KeyError
    assert names_in(tmp_path) == []


def test_a_folder_that_came_meanwhile_is_never_replaced_unless_told_to(tmp_path):
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


def test_what_processes_that_died_have_left_is_removed_and_what_others_write_is_not(tmp_path):
    for name in (".writing-locked-once", ".writing-before-its-lock"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text")
    (tmp_path / ".writing-locked-once" / "lock").touch()
    with atomic_folder(tmp_path / "one") as first, atomic_folder(tmp_path / "two") as second:
        assert names_in(tmp_path) == sorted([first.name, second.name])
    assert names_in(tmp_path) == ["one", "two"]


def test_a_folder_that_is_removed_before_it_has_its_lock_is_made_anew(tmp_path, monkeypatch):
    make, removed = pathlib.Path.mkdir, []

    def make_and_remove(path, *arguments, **options):
        make(path, *arguments, **options)
        if path.name.startswith(".writing-") and not removed:
            removed.append(path)
            path.rmdir()

    monkeypatch.setattr(pathlib.Path, "mkdir", make_and_remove)
    with atomic_folder(tmp_path / "folder") as aside:
        (aside / "file").write_text("text")
    assert removed != [aside]
    assert names_in(tmp_path / "folder") == ["file"]


def test_links_that_look_like_abandoned_folders_lead_nowhere(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("text")
    parent = tmp_path / "parent"
    (parent / ".writing-folder").mkdir(parents=True)
    (parent / ".writing-link").symlink_to(precious)
    (parent / ".writing-folder" / "lock").symlink_to(precious / "made")
    with atomic_folder(parent / "folder"):
        pass
    assert names_in(precious) == ["file"]


def test_a_folder_that_replaces_another_keeps_its_mode(tmp_path):
    (tmp_path / "folder").mkdir(mode=0o700)
    with atomic_folder(tmp_path / "folder", is_whole=lambda path: (path / "new").exists()) as aside:
        (aside / "new").write_text("text")
    assert names_in(tmp_path / "folder") == ["new"]
    assert (tmp_path / "folder").stat().st_mode & 0o7777 == 0o700
