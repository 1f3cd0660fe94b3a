"""Errors that the user can fix."""

from keras_transformer.errors import InputError


def test_a_message_is_one_line_whatever_the_names_in_it_hold():
    assert str(InputError("no file 木\n\x1b[31mé")) == "no file 木\\n\\x1b[31mé"
