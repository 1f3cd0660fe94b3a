"""Errors that the person at the keyboard can mend.

Anything raised as `InputError` carries one line that says what was expected, what came and
how to mend it. The scripts print that line and exit with status 1; every other exception is
a defect of the program and keeps its traceback.
"""


class InputError(ValueError):
    """Input that cannot be used: a file, a flag, a configuration or a checkpoint."""
