"""The contract between a task and the rest of the package, and the registry of tasks."""

import abc
import dataclasses
import hashlib
import math
import pathlib
import sys
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from keras_transformer.config import DataConfig, JsonConfig, SearchConfig, split_list
from keras_transformer.config.registry import add_class, find_class
from keras_transformer.errors import InputError, check_choice
from keras_transformer.files import Path, read_lines, replace_control_characters
from keras_transformer.version import __version__

if TYPE_CHECKING:  # tasks load without TensorFlow
    from keras_transformer.data.corpus import PairSource
    from keras_transformer.text import Vocabulary

# What metrics.jsonl and the logs of `fit` hold of training itself.
TRAINING_VALUES = {
    "step", "seconds", "loss", "perplexity", "accuracy", "padding", "learning_rate",
    "tokens_per_second", "target_tokens", "skipped_steps",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number that compares models.

    Attributes:
        name: in metrics.jsonl, in manifest.json of the checkpoints and after --stop_metric.
        label: on the terminal and in plots; the name by default.
        higher_is_better: its direction.
    """

    name: str
    label: str = ""
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)

    def rank(self, value: float) -> float:
        """Returns a number that is higher for better values."""
        return value if self.higher_is_better else -value

    @property
    def worst(self) -> float:
        """Stands for a value that is undefined."""
        return 0.0 if self.higher_is_better else math.inf


# Computed on the dev set without a search, whatever the task.
VALIDATION_METRICS = (
    Metric("val_loss", higher_is_better=False),
    Metric("val_perplexity", higher_is_better=False),
    Metric("val_accuracy"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(JsonConfig, abc.ABC):
    """What a sequence-to-sequence model is trained for.

    A subclass is a frozen dataclass too. Its fields are the options of the task: they become
    flags, with the help texts of `config.option`, and are kept in a run's config.json. Only
    `name`, `metric` and `evaluate` are required.

    Attributes:
        name: after --task and in config.json.
        metric: chooses the best checkpoints and, on request, when training stops.
        default_search: fields of `SearchConfig` whose defaults differ.
        dev_search: fields that differ again in searches of the dev set during training, for which
            there is less time.
        default_data: fields of `DataConfig` whose defaults differ.
        default_model, default_training: fields of `ModelConfig` and `TrainingConfig` that differ
            from the default preset, unless a preset is named.

    Example:
        A module with this class works with `train --user_module=reversal.py --task=reversal`,
        and with all other commands; `loud` is the flag `--loud`.

        >>> @register_task
        ... @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class Reversal(Task):
        ...     '''Words of a sentence in reverse order.'''
        ...
        ...     loud: bool = option(False, "Answer in capitals.")
        ...     name = "reversal"
        ...     metric = Metric("exact_match", "exact match")
        ...
        ...     def postprocess(self, outputs, sources):
        ...         return [text.upper() if self.loud else text for text in outputs]
        ...
        ...     def evaluate(self, outputs, references, sources):
        ...         return {"exact_match": share_equal(outputs, references)}
    """

    name: ClassVar[str]
    metric: ClassVar[Metric]
    default_search: ClassVar[Mapping[str, Any]] = {}
    dev_search: ClassVar[Mapping[str, Any]] = {}
    default_data: ClassVar[Mapping[str, Any]] = {}
    default_model: ClassVar[Mapping[str, Any]] = {}
    default_training: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def pick(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options that the task has; `InputError` for one of another task."""
        task_options = super().pick(options)
        for other in map(get_task, registered_tasks()):
            for name in other.fields_with():
                if name in options and name not in task_options:
                    raise InputError(
                        f"--{name} is an option of task {other.name}, but the task is {cls.name}; "
                        "remove it, or change --task"
                    )
        return task_options

    # Reading

    def check_data(self, data: DataConfig) -> None:
        """Raises `InputError` if the task cannot use a field; called before a run is created."""

    def pair_sources(self, data: DataConfig, split: str) -> "list[PairSource]":
        """Returns the sources of a split's pairs of source and target text, as streams.

        By default these are parallel files, files of both sides and data sets, in this order; for
        validation and test the files, or else the first data set.

        Args:
            data: names files and data sets.
            split: "train", "validation", "test", or another split of the data sets.

        Returns:
            Streams, none if the configuration names nothing for this split. A source text with
            several references occurs once with each.
        """
        from keras_transformer.data.corpus import FilePair
        from keras_transformer.data.datasets import DatasetSplit

        names = split_list(data.dataset)
        sets = [DatasetSplit(name=name, split=split, reverse=data.reverse) for name in names]
        if split == "train":
            files = zip(split_list(data.train_source), split_list(data.train_target), strict=True)
            both_sides = map(self.read_file, split_list(data.train_file))
            return [*(FilePair(*pair) for pair in files), *both_sides, *sets]
        is_dev = split == "validation"
        prefix = "dev" if is_dev else "test"
        source, target, both = (
            getattr(data, f"{prefix}_{name}") for name in ("source", "target", "file")
        )
        if source is not None or both is not None:
            check_choice("split", split, ("train", "validation", "test"))
        if source is not None:
            pairs = zip(split_list(source), split_list(target), strict=True)
            return [FilePair(*pair) for pair in pairs]
        if both is not None:
            return [self.read_file(path) for path in split_list(both)]
        return [dataset for dataset in sets[:1] if not is_dev or dataset.has_split()]

    def train_sources(self, data: DataConfig) -> "list[PairSource]":
        """Returns the sources of the training pairs, their targets as `target_text` writes them.

        Args:
            data: names files and data sets.
        """
        sources = self.pair_sources(data, "train")
        if type(self).target_text is Task.target_text and not _own_code(type(self)):
            return sources
        return [_LearnedPairs(pairs, self) for pairs in sources]

    def read_file(self, path: Path) -> "PairSource":
        """Returns the pairs of a file with both sides; by default source, tab, target."""
        from keras_transformer.data.corpus import TsvFile

        return TsvFile(path)

    def read_answers(self, path: Path) -> list[str]:
        """Returns the answers of a file to be evaluated; by default one a line."""
        return read_lines(path)

    def target_text(self, reference: str) -> str:
        """Returns the target text that a model learns to generate for a reference."""
        return reference

    def symbols(self, sources: "Sequence[PairSource]") -> list[str]:
        """Returns words of the training text that a shared vocabulary must have as one token.

        Args:
            sources: of the split "train".
        """
        return []

    # Searching

    def search_config(self, changes: Mapping[str, Any] | None = None) -> SearchConfig:
        """Returns the task's default search with some fields changed."""
        return SearchConfig.from_dict({**self.default_search, **(changes or {})})

    def constraints(
        self, source: Any, vocabularies: "tuple[Vocabulary, Vocabulary]"
    ) -> Sequence[Any]:
        """Returns constraints for every search in addition to `SearchConfig`'s, see `Constraint`.

        Args:
            source: ids [B, S]; this method is called while the graph of a search is traced.
            vocabularies: of source and target.
        """
        return ()

    def read_text(self, sources: Any) -> Any:
        """Returns the texts that the model reads, made of those of a user, string [B].

        Like `finish` this runs in the exported graph. `pair_sources` gives texts for training,
        which this must not change.
        """
        return sources

    def finish(self, outputs: Any, sources: Any) -> Any:
        """Returns the answers of a model, made of the texts that the search found.

        This runs in the exported graph, so it consists of TensorFlow's operations on strings; what
        needs Python belongs in `postprocess`.

        Args:
            outputs: string [B, N], detokenized.
            sources: string [B], from which they were generated, as `read_text` returns them.

        Returns:
            string [B, N]
        """
        return outputs

    @property
    def keeps_words(self) -> bool:
        """Whether answers have the words that a model writes, as attention and alignments do."""
        return type(self).finish is Task.finish

    def postprocess(self, outputs: Sequence[str], sources: Sequence[str]) -> list[str]:
        """Returns the answers for a user, where Python must complete the model's.

        Commands, the explorer and callbacks do this. A server and `Translator` return what `finish`
        does, as clients in other languages get it.

        Args:
            outputs: as `finish` returns them, one for each source.
            sources: the texts from which they were generated.
        """
        return list(outputs)

    # Measuring

    @abc.abstractmethod
    def evaluate(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        """Compares answers with their references.

        Args:
            outputs: as `postprocess` returns them.
            references: the target text of each, as `pair_sources` reads it.
            sources: the source text of each; one with several references occurs several times.

        Returns:
            The metric under its name, other numbers, and text such as signatures. A metric that is
            undefined for these answers is None.
        """

    def compare(
        self,
        systems: Mapping[str, Sequence[str]],
        references: Sequence[str],
        sources: Sequence[str],
    ) -> dict[str, dict[str, Any]]:
        """Compares the outputs of several systems with the same references.

        Args:
            systems: outputs by the name of the system; the first is the baseline.
            references, sources: as `evaluate` takes them.

        Returns:
            What `evaluate` returns of each, and what a task measures of pairs of systems.
        """
        return {
            name: self.evaluate(outputs, references, sources) for name, outputs in systems.items()
        }

    def report(self, results: Mapping[str, Any]) -> dict[str, str]:
        """Returns the results of `evaluate` as text for people, by label."""
        return {
            name: f"{value:.4f}" if isinstance(value, float) else str(value)
            for name, value in results.items()
        }

    def intervals(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, dict[str, float]]:
        """Returns "low" and "high" of the 95 % interval of each metric that has one."""
        return {}

    def check_references(self, references: Sequence[str], vocabulary: "Vocabulary") -> None:
        """Warns once of references that no output of a model with this vocabulary can equal."""
        count = sum(vocabulary.normalize(text).split() != text.split() for text in references)
        if count:
            warnings.warn(
                f"the vocabulary changes characters of {count:,} of {len(references):,} "
                "references, which no output can equal; scores are lower for it",
                stacklevel=2,
            )

    def measure(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> float:
        """Returns the metric of a model's outputs; its worst value if it is undefined.

        Warns if it is undefined even where the outputs are the references.
        """

        def evaluated(answers: Sequence[str]) -> dict[str, Any]:
            return self.evaluate(self.postprocess(answers, sources), references, sources)

        metric = self.metric
        value = evaluated(outputs)[metric.name]
        if value is not None:
            return float(value)
        at_best = evaluated(references)
        if at_best[metric.name] is None:
            name, text = next(iter(self.report(at_best).items()))
            message = f"{name} of these references counts as {metric.worst:g}: {text}"
            warnings.warn(message, stacklevel=2)
        return metric.worst

    def find_metric(self, name: str) -> Metric:
        """Returns a metric of the dev set by its name.

        Raises:
            InputError: there is none with that name.
        """
        known = {metric.name: metric for metric in (self.metric, *VALIDATION_METRICS)}
        check_choice("stop_metric", name, tuple(known))
        return known[name]


def written(text: str) -> str:
    """Returns a text as a vocabulary could write it, in which exact matches are counted.

    It has Unicode's form C, and one space for any white space or control characters, which are
    dropped at the ends: models do not generate them.
    """
    return " ".join(replace_control_characters(unicodedata.normalize("NFC", text)).split())


def share_equal(outputs: Sequence[str], references: Sequence[str]) -> float:
    """Returns the share of outputs that equal their references, as `written`, in 0..1."""
    pairs = zip(map(written, outputs), map(written, references), strict=True)
    return sum(output == reference for output, reference in pairs) / len(outputs)


@dataclasses.dataclass(frozen=True)
class _LearnedPairs:
    """Pairs of a source text and the text that a model learns to generate for it.

    They follow from code: their identity has the options of the task, the version of this package,
    and a digest of the file that defines a task outside of it.
    """

    pairs: "PairSource"
    task: Task

    def __str__(self) -> str:
        return str(self.pairs)

    @property
    def identity(self) -> dict[str, Any]:
        task = {"name": self.task.name, "version": __version__, "code": _own_code(type(self.task))}
        return self.pairs.identity | {"task": task | self.task.to_dict()}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for source, reference in self.pairs:
            yield source, self.task.target_text(reference)


def _own_code(task: type[Task]) -> str:
    """Returns a digest of the file that defines a task; empty for tasks of this package."""
    if task.__module__.startswith(f"{__package__.partition('.')[0]}."):
        return ""
    path = getattr(sys.modules.get(task.__module__), "__file__", None)
    content = pathlib.Path(path).read_bytes() if path else task.__qualname__.encode()
    return hashlib.sha256(content).hexdigest()[:16]


AnyTask = TypeVar("AnyTask", bound=type[Task])

_TASKS: dict[str, type[Task]] = {}


def register_task(task: AnyTask) -> AnyTask:
    """Makes a task known by its name; a decorator.

    Raises:
        InputError: another task has that name, or the metric has the name of a training value.
    """
    if task.metric.name in TRAINING_VALUES or task.metric.name.startswith(("val_", "train_")):
        raise InputError(
            f"the metric of task {task.name!r} must not be named {task.metric.name!r}, like a "
            "value of training or validation; choose another name"
        )
    add_class(_TASKS, task.name, task, f"task {task.name!r}")
    return task


def get_task(name: str) -> type[Task]:
    """Returns a task by its name.

    Raises:
        InputError: no task has that name.
    """
    return find_class(_TASKS, name, "task")


def registered_tasks() -> tuple[str, ...]:
    """Returns the names of all tasks."""
    return tuple(_TASKS)
