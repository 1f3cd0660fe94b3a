"""A run directory: all that later commands need of a training run.

config.json         the configurations and the task; sizes and hashes of the vocabularies
source.model        the source's SentencePiece vocabulary; the target's too where shared
target.model        the target's own vocabulary, where there is one
checkpoints/        see `checkpoints.py`
lock                held by the process that trains the run
tokens/             the tokenized text, see `data/cache.py`
shortlist.npz       see `data/shortlist.py`, where one has been asked for
metrics.jsonl       one JSON object every `log_steps` updates and at each checkpoint
tensorboard/        on request
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from typing_extensions import Self

from keras_transformer.config import DataConfig, ModelConfig, SearchConfig, TrainingConfig
from keras_transformer.config.model import UnknownArchitectureError
from keras_transformer.config.search import UNUSED_OPTIONS
from keras_transformer.errors import InputError, writing
from keras_transformer.files import write_atomically
from keras_transformer.models import Seq2SeqModel, build_model
from keras_transformer.tasks import Task, TranslationTask, get_task
from keras_transformer.text import Vocabulary
from keras_transformer.training.checkpoints import AVERAGE, START, Checkpoints
from keras_transformer.training.distribution import computes_in_bfloat16

# config.json of a run directory: what the run was asked for, and which vocabularies it has.

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
        no_use = UNUSED_OPTIONS.get(changes.get("method", ""), ())
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


class RunDirectory:
    """Opens or creates the directory of one training run.

    Args:
        path: the directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path):
            raise InputError("the path of the run directory is empty; give that of a folder")
        self.path = pathlib.Path(path)
        self._config_file = RunConfigFile(self.path / "config.json")

    @property
    def exists(self) -> bool:
        """Whether a run has been created here; `InputError` where a file is in its place."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(
                f"cannot write run directory {self.path}: it is a file; give the path of a folder"
            )
        return self._config_file.path.is_file()

    def create(
        self,
        configs: RunConfigs,
        source: Vocabulary,
        target: Vocabulary,
        start: Seq2SeqModel | None = None,
    ) -> None:
        """Writes the run's files; the configuration, its precision `resolved`, comes last.

        Args:
            configs: the configurations.
            source, target: the vocabularies.
            start: has the weights to begin with, checkpoint `step-0`; None means random ones.

        Raises:
            InputError: the directory holds a run already, or it cannot be written.
        """
        if self.exists:
            raise InputError(f"{self.path} holds a run already; resume it, or give another path")
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            self._target_path.unlink(missing_ok=True)  # of an attempt that was interrupted here
            self.checkpoints().drop(START)
        source.save(self._source_path)
        vocabularies = {self._source_path.name: VocabularyRecord.of(source.model_bytes)}
        if target.fingerprint != source.fingerprint:
            target.save(self._target_path)
            vocabularies[self._target_path.name] = VocabularyRecord.of(target.model_bytes)
        if start is not None:
            self.checkpoints().save_weights(start, START)
        configs = configs._replace(training=self.resolved(configs.training))
        with self._writing():
            self._config_file.write(configs, vocabularies)

    def resolved(self, training: TrainingConfig) -> TrainingConfig:
        """Returns a configuration with the precision that "auto" means for this run.

        That is the precision it has, whatever machine it resumes on. A new run gets
        mixed_bfloat16 where this machine computes in it, else float32.
        """
        if training.precision != "auto":
            return training
        if self.exists:
            return training.replace(precision=self.configs().training.precision)
        return training.replace(precision="mixed_bfloat16" if computes_in_bfloat16() else "float32")

    def configs(self) -> RunConfigs:
        """Returns the configurations of the run.

        Raises:
            InputError: there is no run here, or its configuration is damaged.
        """
        return self._config_file.configs()

    def continue_with(self, asked: RunConfigs) -> None:
        """Checks that a command's configuration fits this run, and saves the settings that changed.

        As long as the run has no checkpoint, all about training may change: nothing is lost then
        where the memory did not suffice.

        Raises:
            InputError: the configuration differs, and the message names each difference; another
                process trains the run; or the directory cannot be written.
        """
        configs = self.configs()
        asked = asked._replace(training=self.resolved(asked.training))
        if found := differences(configs, asked, has_checkpoint=any(self.checkpoints().steps())):
            raise InputError(
                f"run directory {self.path} holds another run: {'; '.join(found)}; "
                "leave these flags out to resume it, or give another --run_dir"
            )
        with self.lock():
            if _what_is_averaged(configs.training) != _what_is_averaged(asked.training):
                checkpoints = self.checkpoints()
                if checkpoints.to_average(*_what_is_averaged(asked.training)):
                    checkpoints.drop(AVERAGE)  # made again when the run comes to its end
            with self._writing():
                self._config_file.write(asked, self._config_file.vocabularies())

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from training the run meanwhile.

        Raises:
            InputError: another one does so already, there is no run, or it cannot be written to.
        """
        self.configs()  # raises where there is none
        with self._writing():
            lock = open(self.path / "lock", "ab")  # noqa: SIM115 (closed below)
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"another process trains the run in {self.path} now; wait for its end, stop "
                    "it, or give another --run_dir"
                ) from error
            except OSError:  # a file system without locks
                pass
            yield

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Returns the vocabularies of source and target; one object if they share it.

        Raises:
            InputError: there is no run here, or a file is not the one that the run was created
                with: truncated, or copied from another run.
        """
        records = self._config_file.vocabularies()
        source = records[self._source_path.name].load(self._source_path)
        if record := records.get(self._target_path.name):
            return source, record.load(self._target_path)
        if self._target_path.exists():
            raise InputError(
                f"{self._target_path} is no part of this run, whose source and target share a "
                "vocabulary; remove it"
            )
        return source, source

    def checkpoints(self) -> Checkpoints:
        """Returns the run's checkpoints."""
        folder = self.path / "checkpoints"
        if not self.exists:
            return Checkpoints(folder)
        configs = self.configs()
        training = configs.training
        return Checkpoints(
            folder,
            metric=configs.task.metric,
            keep=training.keep_checkpoints,
            keep_best=training.keep_best,
            every=training.checkpoint_steps,
            end=training.train_steps,
        )

    def load_model(self, checkpoint: str = "auto") -> Seq2SeqModel:
        """Returns the model with the weights of a checkpoint, in float32.

        Args:
            checkpoint: see `Checkpoints.find`.

        Raises:
            InputError: there is no such run or checkpoint, or it is damaged.
        """
        checkpoints, model_config = self.checkpoints(), self.configs().model
        name = checkpoints.find(checkpoint)
        model = build_model(model_config, dtype="float32")
        checkpoints.restore(model, name)
        return model

    @property
    def metrics_path(self) -> pathlib.Path:
        """The file with a line for each stretch of training; see `metric_logging.py`."""
        return self.path / "metrics.jsonl"

    @property
    def _source_path(self) -> pathlib.Path:
        return self.path / "source.model"

    @property
    def _target_path(self) -> pathlib.Path:
        return self.path / "target.model"

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return writing(f"run directory {self.path}")


def _what_is_averaged(training: TrainingConfig) -> tuple[int, int | None]:
    return training.average_last, training.average_best
