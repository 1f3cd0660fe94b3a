"""config.json of a run directory: what the run was asked for, and which vocabularies it has."""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from typing_extensions import Self

from keras_transformer.atomic_files import write_atomically
from keras_transformer.config import DataConfig, ModelConfig, SearchConfig, TrainingConfig
from keras_transformer.config.model import UnknownArchitectureError
from keras_transformer.config.search import NO_USE
from keras_transformer.errors import InputError
from keras_transformer.tasks import Task, TranslationTask, get_task
from keras_transformer.text import Vocabulary

# What a later run of the same command may change: none of it affects an update.
_MAY_CHANGE = {
    "train_steps",
    "accumulation_steps",
    "keep_checkpoints",
    "keep_best",
    "average_last",
    "average_best",
    "stop_metric",
    "stop_patience",
    "max_bad_steps",
    "log_steps",
    "sustained_tflops",
    "test_source",
    "test_target",
    "test_file",
}
# What else may change before the first checkpoint, beside all of TrainingConfig.
_NOT_OF_THE_VOCABULARY = {"max_length", "max_length_ratio", "mix_weights", "subword_sampling"}


class RunConfigs(NamedTuple):
    """What a run was asked for.

    Attributes:
        model, task: the hyperparameters, and what the model is for.
        data, training: how it is trained; no data where it was imported.
        search: fields of `SearchConfig` with other defaults than the task's.
        origin: where weights that were not trained here came from, for people to read; in a run
            that started from another, "start_from" is the path to that run or checkpoint.
    """

    model: ModelConfig
    data: DataConfig | None
    training: TrainingConfig
    task: Task = TranslationTask()
    search: Mapping[str, Any] = {}
    origin: Mapping[str, Any] = {}

    @property
    def corpora(self) -> DataConfig:
        """The data; `InputError` where there is none."""
        if self.data is None:
            raise InputError(
                "this run was imported and has no data: name the files to use, as in "
                "evaluate --source and --target; to train it further, give train another "
                "--run_dir, and --start_from with this one"
            )
        return self.data

    def search_config(self, changes: Mapping[str, Any] | None = None) -> SearchConfig:
        """Returns how the run searches, with some fields changed.

        The run's options that the requested search method does not use are left out.
        """
        changes = changes or {}
        no_use = NO_USE.get(changes.get("method", ""), ())
        kept = {name: value for name, value in self.search.items() if name not in no_use}
        return self.task.search_config({**kept, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Returns them as config.json holds them."""
        values: dict[str, Any] = {
            "model": self.model.to_dict(),
            "data": None if self.data is None else self.data.to_dict(),
            "training": None if self.data is None else self.training.to_dict(),
            "task": {"name": self.task.name} | self.task.to_dict(),
        }
        others = {"search": self.search, "origin": self.origin}
        return values | {name: dict(value) for name, value in others.items() if value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfigs":
        """Returns the configurations that `to_dict` wrote."""
        options = dict(values["task"])
        return cls(
            ModelConfig.from_dict(values["model"]),
            None if values["data"] is None else DataConfig.from_dict(values["data"]),
            TrainingConfig.from_dict(values["training"] or {}),
            get_task(options.pop("name")).from_dict(options),
            dict(values.get("search", {})),
            dict(values.get("origin", {})),
        )

    def flat(self) -> dict[str, Any]:
        """Returns all values by the names of their flags, the name of the task as "task"."""
        values: dict[str, Any] = {"task": self.task.name}
        for config in (self.model, self.corpora, self.training, self.task):
            values |= config.to_dict()
        return values


def differences(run: RunConfigs, asked: RunConfigs, *, has_checkpoint: bool) -> list[str]:
    """Describes each setting that a command asks to change but the run can no longer change.

    Before the first checkpoint everything about training may change: nothing is lost then.
    """
    may_change = set(_MAY_CHANGE)
    if not has_checkpoint:
        may_change |= asked.training.to_dict().keys() | _NOT_OF_THE_VOCABULARY
    before = run.flat()  # another architecture or task has other fields
    return [
        f"{name} is {before.get(name)!r} there and {value!r} here"
        for name, value in asked.flat().items()
        if value != before.get(name) and name not in may_change
    ]


class VocabularyRecord(NamedTuple):
    """Size and hash of a vocabulary's file, which tell it from a truncated or another one."""

    num_bytes: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Returns the record of a file's content."""
        return cls(len(content), hashlib.sha256(content).hexdigest())

    def load(self, path: pathlib.Path) -> Vocabulary:
        """Reads the vocabulary; `InputError` where the file is missing or not the recorded one."""
        if path.is_file() and (found := self.of(path.read_bytes())) != self:
            what = "the same size but another content"
            if found.num_bytes != self.num_bytes:
                what = f"{found.num_bytes:,} bytes in place of {self.num_bytes:,}"
            raise InputError(
                f"{path} is not the vocabulary that the run was created with: it has {what}; "
                "restore it from a copy"
            )
        return Vocabulary.load(path)


class RunConfigFile:
    """Reads and writes config.json of a run directory.

    Args:
        path: the file.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def configs(self) -> RunConfigs:
        """Returns the configurations; `InputError` where there are none, or they are damaged."""
        with self._values() as values:
            return RunConfigs.from_dict(values)

    def vocabularies(self) -> dict[str, VocabularyRecord]:
        """Returns the records of the vocabularies by file name; errors as in `configs`."""
        with self._values() as values:
            return {
                name: VocabularyRecord(**record)
                for name, record in ({"source.model": None} | values["vocabularies"]).items()
            }

    def write(self, configs: RunConfigs, vocabularies: Mapping[str, VocabularyRecord]) -> None:
        """Writes all of it, atomically; raises `OSError`."""
        records = {name: record._asdict() for name, record in vocabularies.items()}
        values = configs.to_dict() | {"vocabularies": records}
        write_atomically(self.path, json.dumps(values, indent=2) + "\n")

    @contextlib.contextmanager
    def _values(self) -> Iterator[Any]:
        """Yields the content; `InputError` where there is none or the block cannot use it."""
        if not self.path.is_file():
            raise InputError(
                f"no training run in {self.path.parent}: it has no {self.path.name}; "
                "give the --run_dir of an earlier keras-transformer train"
            )
        try:
            yield json.loads(self.path.read_text(encoding="utf-8"))
        except UnknownArchitectureError as error:
            raise InputError(f"{self.path}: {error}") from error
        except OSError as error:
            raise InputError(
                f"cannot read {self.path} ({error.strerror}); make it readable"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self.path} is damaged ({type(error).__name__}: {error}); "
                "restore it from a copy, or start another run"
            ) from error
