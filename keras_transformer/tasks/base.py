"""What a task tells the rest of the package; commands, training and search name no task."""

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from keras_transformer.config import DataConfig, JsonConfig, SearchConfig, split_list
from keras_transformer.errors import check_choice

if TYPE_CHECKING:  # the tasks are listed before TensorFlow is loaded
    from keras_transformer.data import PairSource
    from keras_transformer.text import Vocabulary


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number that models are compared by.

    Attributes:
        name: in metrics.jsonl, in checkpoint_metrics.json and after --stop_metric.
        label: on the terminal and in plots; the name by default.
        higher_is_better: its direction.
    """

    name: str
    label: str = ""
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name)

    def rank(self, value: float) -> float:
        """Returns a number that is the higher the better the value is."""
        return value if self.higher_is_better else -value

    @property
    def worst(self) -> float:
        """What stands for a value that is undefined."""
        return 0.0 if self.higher_is_better else math.inf


# Of the dev set without any search, whatever the task.
VALIDATION_METRICS = (
    Metric("val_loss", higher_is_better=False),
    Metric("val_perplexity", higher_is_better=False),
    Metric("val_accuracy"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(JsonConfig, abc.ABC):
    """What a sequence-to-sequence model is trained for.

    A subclass is a frozen dataclass as well. Its fields are the options of the task: they become
    flags, with the help of the docstring's "Attributes:", and are kept in a run's config.json.

    Attributes:
        name: after --task and in config.json.
        metric: decides: which checkpoints are best, and, where asked, when training stops.
        default_search: fields of `SearchConfig` with other defaults than there.

    Example:
        >>> @register_task
        ... @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class Reversal(Task):
        ...     name = "reversal"
        ...     metric = Metric("exact_match")
        ...
        ...     def evaluate(self, outputs, references, sources):
        ...         right = sum(map(operator.eq, outputs, references))
        ...         return {"exact_match": right / len(references)}
    """

    name: ClassVar[str]
    metric: ClassVar[Metric]
    default_search: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        self._check_types()

    def sources(self, data: DataConfig, split: str) -> "list[PairSource]":
        """Returns where the pairs of source and target text of a split come from, as streams.

        Here they are lines of parallel files, TSV files, and data sets, in this order. For
        validation and test they are those of two files, or else of the first data set.

        Args:
            data: names files and data sets.
            split: "train", "validation", "test", or another split of the data sets.

        Returns:
            Streams, none where the configuration names nothing for this split. A source with
            several references may occur several times, with one at a time.
        """
        from keras_transformer.data import DatasetSplit, FilePair, TsvFile

        names = split_list(data.dataset)
        sets = [DatasetSplit(name=name, split=split, reverse=data.reverse) for name in names]
        if split == "train":
            files = zip(split_list(data.train_source), split_list(data.train_target), strict=True)
            tsv_files = map(TsvFile, split_list(data.train_tsv))
            return [*(FilePair(*pair) for pair in files), *tsv_files, *sets]
        is_dev = split == "validation"
        prefix = "dev" if is_dev else "test"
        source, target = getattr(data, f"{prefix}_source"), getattr(data, f"{prefix}_target")
        if source is not None:
            return [FilePair(source, target)]
        return [each for each in sets[:1] if not is_dev or each.exists()]

    def search_config(self, changes: Mapping[str, Any] | None = None) -> SearchConfig:
        """Returns the task's own search with some fields changed."""
        return SearchConfig(**{**self.default_search, **(changes or {})})

    def constraints(
        self, source: Any, vocabularies: "tuple[Vocabulary, Vocabulary]"
    ) -> Sequence[Any]:
        """Returns constraints of every search beside those of `SearchConfig`, see `Constraint`.

        Args:
            source: ids [B, S]; this is called while the graph of a search is made.
            vocabularies: of source and target.
        """
        return ()

    def postprocess(self, outputs: Sequence[str], sources: Sequence[str]) -> list[str]:
        """Returns the answers that a user gets, one for each output of the model.

        Args:
            outputs: detokenized text, as the search found it.
            sources: the text that each was made from.
        """
        return list(outputs)

    @abc.abstractmethod
    def evaluate(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        """Compares answers with their references.

        Args:
            outputs: as `postprocess` returns them.
            references: the target text of each, as `sources` reads it.
            sources: the source text of each.

        Returns:
            `metric` under its name, other numbers, and text such as signatures. A metric that is
            undefined for these answers is None.
        """

    def report(self, results: Mapping[str, Any]) -> dict[str, str]:
        """Returns what `evaluate` returned as text for people, by label."""
        return {
            name: f"{value:.4f}" if isinstance(value, float) else str(value)
            for name, value in results.items()
        }

    def measure(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> float:
        """Returns the metric of what the model put out; its worst value where it is undefined."""
        answers = self.postprocess(outputs, sources)
        value = self.evaluate(answers, references, sources)[self.metric.name]
        return self.metric.worst if value is None else float(value)

    def find_metric(self, name: str) -> Metric:
        """Returns a metric of the dev set by its name.

        Raises:
            InputError: there is none of that name.
        """
        known = {metric.name: metric for metric in (self.metric, *VALIDATION_METRICS)}
        check_choice("stop_metric", name, tuple(known))
        return known[name]
