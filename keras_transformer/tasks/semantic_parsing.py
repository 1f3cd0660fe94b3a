"""Compositional generalization: commands to actions (SCAN), sentences to logical forms (COGS).

Lake and Baroni 2018; Kim and Linzen 2020. Both sides are words between spaces, and an answer is
right if it equals its reference.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from keras_transformer.config import option
from keras_transformer.errors import InputError
from keras_transformer.files import PairFile, Path, iterate_lines
from keras_transformer.tasks.task import ExactMatchTask, register_task

if TYPE_CHECKING:  # tasks load without TensorFlow
    from keras_transformer.data import PairSource

_SCAN = re.compile(r"IN: (.+?) OUT: (.+)")


@register_task
@dataclasses.dataclass(frozen=True, kw_only=True)
class SemanticParsingTask(ExactMatchTask):
    """Sequences of words to logical forms or actions, measured by exact match."""

    categories_of: str | None = option(
        None,
        "File in the format of COGS: also report exact match by the category in its third column.",
    )

    name = "semantic_parsing"
    # Greedy, as in the papers. COGS has logical forms with 419 words more than their sentences.
    default_search = {"beam_size": 1, "max_extra_length": 450}  # noqa: RUF012
    dev_search = {"max_extra_length": 150}  # noqa: RUF012
    default_data = {"vocabulary_kind": "word", "vocabulary_normalization": "identity"}  # noqa: RUF012

    def read_file(self, path: Path) -> "PairSource":
        """Returns the pairs of a file of SCAN or COGS."""
        return SemanticParsingFile(path)

    def categories(self, sources: Sequence[str]) -> list[str]:
        """Returns the categories of `categories_of`, in which all sources must occur."""
        if self.categories_of is None:
            return []
        known = {line.source: line.category for line in read_lines(self.categories_of)}
        if missing := [source for source in sources if source not in known]:
            raise InputError(f"{self.categories_of} has no category of {missing[0]!r}")
        return [known[source] for source in sources]


class SemanticParsingFile(PairFile):
    """Pairs of a file of SCAN or COGS, see `read_lines`."""

    kind = "semantic parsing"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for line in read_lines(self.path):
            yield line.source, line.target


class Line(NamedTuple):
    """A line of a file of SCAN or COGS."""

    source: str
    target: str
    category: str  # of COGS; empty in SCAN


def read_lines(path: Path) -> Iterator[Line]:
    """Yields the lines of SCAN ("IN: jump twice OUT: I_JUMP I_JUMP") or COGS, plain or .gz.

    COGS has a sentence, a tab, its logical form, a tab and a category on each line.

    Raises:
        InputError: the file cannot be read, or a line has neither format.
    """
    for number, line in enumerate(iterate_lines(path), start=1):
        if not line.strip():
            continue
        if found := _SCAN.fullmatch(line.strip()):
            yield Line(found[1], found[2], "")
        elif line.count("\t") == 2 and all(parts := line.split("\t")):
            yield Line(*parts)
        else:
            raise InputError(
                f'{path}, line {number}: expected "IN: ... OUT: ...", or sentence, tab, logical '
                f"form, tab and category, got {line[:60]!r}"
            )
