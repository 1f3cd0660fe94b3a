"""Tasks whose answers are right or wrong: exact match, also by category of the input."""

import abc
import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.tasks.task import Metric, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactMatchTask(Task):
    """A task that is measured by the share of answers that equal their reference."""

    metric = Metric("exact_match", "exact match")

    @abc.abstractmethod
    def categories(self, sources: Sequence[str]) -> list[str]:
        """Returns the category of each source text; none for an evaluation without categories."""

    def evaluate(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        """Returns "exact_match" in 0..100, and that of each category; see `Task.evaluate`."""
        is_right = [a == b for a, b in zip(outputs, references, strict=True)]
        by_category: dict[str, list[bool]] = collections.defaultdict(list)
        for name, each in zip(self.categories(sources), is_right, strict=False):
            by_category[name].append(each)
        return {
            "exact_match": _percent(is_right),
            "categories": {
                name: {"exact_match": _percent(some), "count": len(some)}
                for name, some in sorted(by_category.items())
            },
        }

    def evaluate_n_best(
        self, n_best: Sequence[Sequence[str]], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        """Returns how many lists contain the reference, in 0..100."""
        pairs = zip(n_best, references, strict=True)
        return {"exact_match": _percent([reference in answers for answers, reference in pairs])}

    def report(self, results: Mapping[str, Any]) -> dict[str, str]:
        """Returns the share of all, and of each category with its size, by label."""
        return {"exact match": f"{results['exact_match']:.2f} %"} | {
            f"  {name}": f"{part['exact_match']:.2f} % of {part['count']:,}"
            for name, part in results["categories"].items()
        }


def _percent(is_right: Sequence[bool]) -> float:
    return 100 * sum(is_right) / len(is_right)
