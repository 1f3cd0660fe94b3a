"""Folders are whole or not there."""

import pytest

from keras_transformer.publishing import publish


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_has_its_name_once_it_is_whole_and_nothing_else_is_left(tmp_path):
    with publish(tmp_path / "new" / "folder") as aside:
        (aside / "file").write_text("text")
        assert not (tmp_path / "new" / "folder").exists()
    assert names_in(tmp_path / "new") == ["folder"]
    assert names_in(tmp_path / "new" / "folder") == ["file"]


def test_what_fails_leaves_nothing_behind_not_even_the_folders_above(tmp_path):
    with pytest.raises(KeyError), publish(tmp_path / "a" / "b" / "folder") as aside:
        (aside / "file").write_text("text")
        raise KeyError
    assert names_in(tmp_path) == []


def test_a_folder_that_came_meanwhile_is_never_replaced_unless_told_to(tmp_path):
    path = tmp_path / "folder"

    def write_twice(**options):
        with publish(path, **options) as aside:
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
