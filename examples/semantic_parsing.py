"""A task in one file: commands to actions (SCAN), sentences to logical forms (COGS).

    python scripts/train.py --run_dir=runs/scan --user_module=examples/semantic_parsing.py \
        --task=semantic_parsing --train_file=tasks_train_simple.txt \
        --test_file=tasks_test_simple.txt --label_smoothing=0
    python scripts/evaluate.py --run_dir=runs/scan --user_module=examples/semantic_parsing.py

Lake and Baroni 2018; Kim and Linzen 2020. Both sides are words between spaces, and an answer is
right if it equals its reference. `evaluate.py --categories_of=gen.tsv` also reports the share of
right answers by the category that a file of COGS has in its third column.
"""

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_transformer import Metric, Task, register_task
from keras_transformer.config import option
from keras_transformer.errors import InputError
from keras_transformer.files import PairFile, Path, iterate_lines


@register_task
@dataclasses.dataclass(frozen=True, kw_only=True)
class SemanticParsing(Task):
    """Sequences of words to logical forms or actions, measured by exact match."""

    categories_of: str | None = option(
        None,
        "File in the format of COGS: also report exact match by the category in its third column.",
        is_path=True,
    )

    name = "semantic_parsing"
    metric = Metric("exact_match", "exact match")
    # Greedy, as in the papers. COGS has logical forms with 419 words more than their sentences.
    default_search = {"beam_size": 1, "max_extra_length": 450}  # noqa: RUF012
    dev_search = {"max_extra_length": 150}  # noqa: RUF012
    default_data = {"vocabulary_kind": "word", "vocabulary_normalization": "identity"}  # noqa: RUF012

    def read_file(self, path: Path) -> "SemanticParsingFile":
        return SemanticParsingFile(path)

    def evaluate(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the share of right answers, of all and in each category."""
        known = {}
        if self.categories_of is not None:
            known = {source: name for source, _, name in read_columns(self.categories_of)}
        is_right = collections.defaultdict(list)  # by category; "" for all
        for output, reference, source in zip(outputs, references, sources, strict=True):
            for name in {"", known.get(source, "")}:
                is_right[name].append(output == reference)
        shares = {name: sum(some) / len(some) for name, some in sorted(is_right.items())}
        return {"exact_match": shares.pop(""), "categories": shares}

    def report(self, results: Mapping[str, Any]) -> dict[str, str]:
        shares = {"exact match": results["exact_match"], **results["categories"]}
        return {name: f"{100 * share:.2f} %" for name, share in shares.items()}


class SemanticParsingFile(PairFile):
    """The pairs of a file of SCAN or COGS."""

    kind = "semantic parsing"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for source, target, _ in read_columns(self.path):
            yield source, target


def read_columns(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yields source, target and category of each line; SCAN has no categories.

    The lines are those of SCAN, "IN: jump twice OUT: I_JUMP I_JUMP", or those of COGS: sentence,
    tab, logical form, tab, category.
    """
    for number, line in enumerate(iterate_lines(path), start=1):
        if not line.strip():
            continue
        if found := re.fullmatch(r"IN: (.+?) OUT: (.+)", line.strip()):
            yield found[1], found[2], ""
        elif line.count("\t") == 2 and all(columns := line.split("\t")):
            source, target, category = columns
            yield source, target, category
        else:
            raise InputError(
                f'{path}, line {number}: expected "IN: ... OUT: ...", or sentence, tab, logical '
                f"form, tab and category, got {line[:60]!r}"
            )
