"""Errors that the user can fix."""

from keras_transformer.errors import InputError


def test_message_is_one_line_with_any_file_name():
    assert str(InputError("no file 木\n\x1b[31mé")) == "no file 木\\n\\x1b[31mé"
