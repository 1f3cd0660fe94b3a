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
import os
import pathlib
from collections.abc import Iterator

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError, writing
from keras_transformer.models import Seq2SeqModel, build_model
from keras_transformer.text import Vocabulary
from keras_transformer.training.checkpoint_files import AVERAGE, START
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.run_config import (
    RunConfigFile,
    RunConfigs,
    VocabularyRecord,
    differences,
)
from keras_transformer.training.strategies import computes_in_bfloat16


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
