"""Counts the work of preparing data instead of timing it."""

import sys

import numpy as np
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


@pytest.fixture
def lengths_of():
    """Gives lengths like those of sentences, of source and target."""

    def lengths(pairs):
        random = np.random.default_rng(1)
        return np.exp(random.normal(3, 0.6, (2, pairs))).astype(int).clip(1, 150)

    return lengths
