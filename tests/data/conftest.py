"""Counts the work of preparing data instead of timing it."""

import sys

import pytest


@pytest.fixture
def count_lines():
    """Counts the lines of Python that a call executes, each pass of a loop again.

    The arithmetic over arrays inside a line counts nothing: what the number shows is whether
    anything goes through pairs one by one.
    """

    def count(action, *arguments, **options):
        lines = 0

        def trace(frame, event, _):
            nonlocal lines
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            action(*arguments, **options)
        finally:
            sys.settrace(before)
        return lines

    return count
