"""A run directory: all that later commands need of a training run.

config.json         the model, data and training configurations
source.model        the source's SentencePiece vocabulary; the target's too where shared
target.model        the target's own vocabulary, where there is one
checkpoints/        see `checkpoints.py`
lock                held by the process that trains the run
tokens/             the tokenized text, see `data/cache.py`
metrics.jsonl       one JSON object every `log_steps` updates and at each checkpoint
tensorboard/        on request
"""

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras

from keras_transformer.atomic_files import write_atomically
from keras_transformer.config import DataConfig, ModelConfig, TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer
from keras_transformer.text import Vocabulary
from keras_transformer.training.checkpoints import Checkpoints

# What a later run of the same command may change: it does not alter what an update does.
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
    "test_source",
    "test_target",
}
# What may be changed besides as long as there is no checkpoint.
_NOT_OF_THE_VOCABULARY = {"max_length", "max_length_ratio", "mix_weights", "subword_sampling"}


class RunConfigs(NamedTuple):
    """What a run was asked for."""

    model: ModelConfig
    data: DataConfig
    training: TrainingConfig


class RunDirectory:
    """Opens or creates the directory of one training run.

    Args:
        path: the directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path):
            raise InputError("the path of the run directory is empty; give that of a folder")
        self.path = pathlib.Path(path)

    @property
    def exists(self) -> bool:
        """Whether a run has been created here; `InputError` where a file is in its place."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(
                f"cannot write run directory {self.path}: it is a file; give the path of a folder"
            )
        return self._config_path.is_file()

    def create(
        self,
        model: ModelConfig,
        data: DataConfig,
        training: TrainingConfig,
        source: Vocabulary,
        target: Vocabulary,
    ) -> None:
        """Writes the vocabularies and, last, the configuration.

        Raises:
            InputError: the directory holds a run already, or it cannot be written.
        """
        if self.exists:
            raise InputError(
                f"{self.path} holds a run already; go on with it, or give another path"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._target_path.unlink(missing_ok=True)  # of an attempt that was interrupted here
        except OSError as error:
            raise self._cannot_write(error) from error
        source.save(self._source_path)
        if target.fingerprint != source.fingerprint:
            target.save(self._target_path)
        self._write_config(model, data, training)

    def configs(self) -> RunConfigs:
        """Returns the configurations of the run.

        Raises:
            InputError: there is no run here, or its configuration is damaged.
        """
        if not self.exists:
            raise InputError(
                f"no training run in {self.path}: it has no config.json; "
                "give the --run_dir of an earlier keras-transformer train"
            )
        try:
            values = json.loads(self._config_path.read_text(encoding="utf-8"))
            return RunConfigs(
                ModelConfig.from_dict(values["model"]),
                DataConfig.from_dict(values["data"]),
                TrainingConfig.from_dict(values["training"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self._config_path} is damaged ({type(error).__name__}: {error}); "
                "restore it from a copy, or start another run"
            ) from error

    def continue_with(self, model: ModelConfig, data: DataConfig, training: TrainingConfig) -> None:
        """Checks that a command asks for the run that is here, and notes a new length of it.

        As long as the run has no checkpoint, all about training may change: nothing is lost then
        where the memory did not suffice.

        Raises:
            InputError: the configuration differs, and the message names each difference; another
                process trains the run; or the directory cannot be written.
        """
        may_change = set(_MAY_CHANGE)
        if not self.checkpoints().steps():
            may_change |= training.to_dict().keys()
            may_change |= _NOT_OF_THE_VOCABULARY
        differences = []
        configs = self.configs()
        for here, asked in zip(configs, (model, data, training), strict=True):
            for name, value in asked.to_dict().items():
                before = here.to_dict()[name]
                if value != before and name not in may_change:
                    differences.append(f"{name} is {before!r} there and {value!r} here")
        if differences:
            raise InputError(
                f"run directory {self.path} holds another run: {'; '.join(differences)}; "
                "leave these flags out to go on with it, or give another --run_dir"
            )
        with self.reserved():
            if _what_is_averaged(configs.training) != _what_is_averaged(training):
                checkpoints = self.checkpoints()
                if checkpoints.to_average(*_what_is_averaged(training)):
                    checkpoints.drop_average()  # made anew when the run comes to its end
            self._write_config(model, data, training)

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """Keeps other processes from training the run meanwhile.

        Raises:
            InputError: another one does so already, there is no run, or it cannot be written to.
        """
        self.configs()  # tells where there is none
        try:
            lock = open(self.path / "lock", "ab")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise self._cannot_write(error) from error
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
        """Returns the vocabularies of source and target; one object where they share it."""
        source = Vocabulary.load(self._source_path)
        own_target = self._target_path.exists()
        return source, Vocabulary.load(self._target_path) if own_target else source

    def checkpoints(self) -> Checkpoints:
        """Returns the run's checkpoints."""
        folder = self.path / "checkpoints"
        if not self.exists:
            return Checkpoints(folder)
        training = self.configs().training
        return Checkpoints(
            folder,
            keep=training.keep_checkpoints,
            keep_best=training.keep_best,
            every=training.checkpoint_steps,
            end=training.train_steps,
        )

    def load_model(self, checkpoint: str = "auto") -> Transformer:
        """Returns the model with the weights of a checkpoint, in float32.

        Args:
            checkpoint: see `Checkpoints.find`.

        Raises:
            InputError: there is no such run or checkpoint, or it is damaged.
        """
        checkpoints, model_config = self.checkpoints(), self.configs().model
        name = checkpoints.find(checkpoint)
        model = Transformer(model_config, dtype=keras.DTypePolicy("float32"))
        checkpoints.restore(model, name)
        return model

    @property
    def metrics_path(self) -> pathlib.Path:
        """The file with a line for each stretch of training; see `metric_logger.py`."""
        return self.path / "metrics.jsonl"

    @property
    def _config_path(self) -> pathlib.Path:
        return self.path / "config.json"

    @property
    def _source_path(self) -> pathlib.Path:
        return self.path / "source.model"

    @property
    def _target_path(self) -> pathlib.Path:
        return self.path / "target.model"

    def _cannot_write(self, error: OSError) -> InputError:
        return InputError(
            f"cannot write run directory {self.path} ({error.strerror}); "
            "give a path that can be written to, on a disk with some space"
        )

    def _write_config(self, *configs: Any) -> None:
        model, data, training = (config.to_dict() for config in configs)
        text = json.dumps({"model": model, "data": data, "training": training}, indent=2)
        try:
            write_atomically(self._config_path, text + "\n")
        except OSError as error:
            raise self._cannot_write(error) from error


def _what_is_averaged(training: TrainingConfig) -> tuple[int, int | None]:
    return training.average_last, training.average_best
