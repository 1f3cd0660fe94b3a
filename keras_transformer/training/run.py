"""A run directory: all that later commands need of a training run.

`prepare_run` creates a run from text (`create_run`) or takes changed settings (`reopen_run`), and
returns its tokenized text; the head of `trainer.py` says what follows. Neither touches weights,
but a run that starts from another one gets the checkpoint `step-0`, and changing the averaging
settings deletes the old average.

config.json         the configurations and the task; fingerprints of the vocabularies; once it is
                    trained, what else its batches follow from, see `RunDirectory.trained_with`
source.model        the source's SentencePiece vocabulary; the target's too if it is shared
target.model        the target's vocabulary, if it has its own
checkpoints/        see `checkpoints.py`
lock                held by the process that creates, changes or trains the run
tokens/             the tokenized text, see `data/token_cache.py`
metrics.jsonl       one JSON object every `log_steps` updates and at each checkpoint
tensorboard/        on request
"""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from typing_extensions import Self

from keras_transformer.config import TrainingConfig
from keras_transformer.data import ParallelText, TokenizedCorpus
from keras_transformer.errors import InputError, NotRegisteredError, writing
from keras_transformer.files import Path, local_path, write_atomically
from keras_transformer.models import Seq2SeqModel, build_model
from keras_transformer.text import Vocabulary
from keras_transformer.training.checkpoints import AVERAGE, START, Checkpoints
from keras_transformer.training.distribution import (
    all_or_none,
    auto_precision,
    wait_for_files,
    worker_of,
)
from keras_transformer.training.optimizer import freeze
from keras_transformer.training.prepare import (
    check_symbols,
    make_vocabularies,
    read_validation_texts,
    training_corpus,
    with_room_for_targets,
)
from keras_transformer.training.settings import (
    RunConfigs,
    changed_configs,
    fine_tuning_configs,
    new_configs,
)

Say = Callable[[str], None]  # called with lines about the progress
# Files of source and of target sentences, or one file with both sides.
TextFiles = Path | Sequence[Path]
_SHOWN_DIFFERENCES = 4  # in the error of a run with other settings


class RunDirectory:
    """Opens or creates the directory of one training run.

    Args:
        path: the directory.

    Attributes:
        path: the directory.
        metrics_path: the file with a line for each stretch of training; see `metrics.py`.
    """

    def __init__(self, path: Path) -> None:
        if not os.fspath(path):
            raise InputError("the path of the run directory is empty; give that of a folder")
        self.path = local_path(path)
        self.metrics_path = self.path / "metrics.jsonl"
        self._config_path = self.path / "config.json"
        self._source_path = self.path / "source.model"
        self._target_path = self.path / "target.model"

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        train: TextFiles | None = None,
        dev: TextFiles | None = None,
        test: TextFiles | None = None,
        start_from: Path | None = None,
        **options: Any,
    ) -> Self:
        """Creates a run from text: learns vocabularies, tokenizes, and writes its configuration.

        For long text it starts processes, so a script must call this under
        `if __name__ == "__main__":`.

        Args:
            path: the directory, which holds no run yet.
            train, dev, test: files of source and target sentences, or a file with both sides.
                Without any, and without the option "dataset", the task's built-in data is used.
            start_from: a run, or a checkpoint of one, whose weights, vocabularies and model the
                new run begins with.
            **options: "preset", by default "tiny", "architecture", "task", and any field of the
                configurations, for example `num_layers=2, train_steps=10_000`.

        Raises:
            InputError: there is a run already, an option is wrong, or the text cannot be used.

        Example:
            >>> files = dict(train=("train.en", "train.de"), dev=("dev.en", "dev.de"))
            >>> run = RunDirectory.create("runs/mine", preset="tiny", **files)
            >>> model = train(run)
            >>> Translator(model, *run.vocabularies()).translate("Hello")
        """
        run = cls(path)
        for split, files in (("train", train), ("dev", dev), ("test", test)):
            if isinstance(files, (str, os.PathLike)):
                options[f"{split}_file"] = str(files)
            elif files is not None:
                if len(files) != 2:
                    raise InputError(
                        f"{split} must be a file with both sides, or one of source and one of "
                        f"target sentences, got {len(files)} files; join the paths of a side with "
                        "commas"
                    )
                options[f"{split}_source"], options[f"{split}_target"] = map(str, files)
        create_run(run, run.make_configs(options, start_from))
        return run

    @classmethod
    def of_checkpoint(cls, path: Path) -> tuple[Self, str]:
        """Returns the run and checkpoint that a path names: "auto" for the path of a run."""
        where = local_path(path)
        *_, folder, name = ("", "", *where.parts)
        if folder == "checkpoints" and not (where / "config.json").is_file():
            return cls(where.parents[1]), name.removesuffix(".index")
        return cls(path), "auto"

    @classmethod
    def make_configs(cls, options: Mapping[str, Any], start_from: Path | None = None) -> RunConfigs:
        """Returns the configurations of a new run, see `create`."""
        if start_from is None:
            return new_configs(options)
        origin, _ = cls.of_checkpoint(start_from)
        path = str(local_path(start_from).resolve())
        return fine_tuning_configs(origin.configs(), path, options)

    @property
    def exists(self) -> bool:
        """Whether a run has been created here; `InputError` if the path is that of a file."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(
                f"cannot write run directory {self.path}: it is a file; give the path of a folder"
            )
        return self._config_path.is_file()

    def check_is_new(self) -> None:
        """Raises `InputError` if a run is here, or what is left of one without its config.json;
        or if the path has a comma, which separates runs in the flags of later commands, or a
        bracket or backslash, with which TensorFlow does not find the checkpoints that it writes.
        """
        if "," in str(self.path):
            raise InputError(f"{self.path} has a comma, which separates runs; give another path")
        # Its reader takes a path for a pattern. A run that starts from this one reads it by its
        # resolved path.
        for path in (self.path.absolute(), self.path.resolve()):
            if bracket := re.search(r"[\[\\]", str(path)):
                raise InputError(
                    f"{path} has {bracket[0]}, and TensorFlow cannot read checkpoints from such a "
                    "path; give another path"
                )
        if self.exists:
            raise InputError(f"{self.path} holds a run already; resume it, or give another path")
        checkpoints = self.checkpoints()
        left = [f"checkpoint step-{step}" for step in checkpoints.steps() if step][-1:]
        left += ["the average"] * checkpoints.has_average()
        left += [self.metrics_path.name] * self.metrics_path.exists()
        if left:
            raise InputError(
                f"{self.path} has {', '.join(left)} of a run, but no {self._config_path.name}; "
                "restore it from a copy, or give another --run_dir"
            )

    def write(
        self,
        configs: RunConfigs,
        source: Vocabulary,
        target: Vocabulary,
        start: Seq2SeqModel | None = None,
    ) -> None:
        """Writes the files of a new run; the configuration, its precision `resolved`, comes last.

        Args:
            configs: the configurations.
            source, target: the vocabularies.
            start: has the weights to begin with, checkpoint `step-0`; None means random ones.

        Raises:
            InputError: the directory holds a run already, or it cannot be written.
        """
        self.check_is_new()
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            self._target_path.unlink(missing_ok=True)  # of an attempt that was interrupted here
            self.checkpoints().drop(START)
        source.save(self._source_path)
        fingerprints = {self._source_path.name: source.fingerprint}
        if target.fingerprint != source.fingerprint:
            target.save(self._target_path)
            fingerprints[self._target_path.name] = target.fingerprint
        if start is not None:
            self.checkpoints().save_weights(start, START)
        configs = configs._replace(training=self.resolved(configs.training))
        self._write_config(configs.to_dict() | {"vocabularies": fingerprints})

    def resolved(self, training: TrainingConfig) -> TrainingConfig:
        """Returns a configuration with the precision that "auto" means for this run.

        That is the precision it has, whatever machine it resumes on; see `auto_precision`.
        """
        if training.precision != "auto":
            return training
        if self.exists:
            return training.replace(precision=self.configs().training.precision)
        return training.replace(precision=auto_precision())

    def configs(self) -> RunConfigs:
        """Returns the configurations of the run.

        Raises:
            InputError: there is no run here, or its configuration is damaged.
        """
        with self._config() as values:
            return RunConfigs.from_dict(values)

    def continue_with(self, changed: RunConfigs) -> None:
        """Checks that configurations fit this run, and saves the settings that changed.

        As long as the run has no checkpoint, everything about training may change; afterwards what
        `option(may_change="always")` says.

        Raises:
            InputError: the configurations differ, and the message names each difference; another
                process trains the run; or the directory cannot be written.
        """
        configs = self.configs()
        changed = changed._replace(training=self.resolved(changed.training))
        has_checkpoint = any(self.checkpoints().steps())  # not only step-0, a start
        if differences := configs.differences(changed, has_checkpoint=has_checkpoint):
            advice = (
                "remove these options to resume it, or give another --run_dir, with --start_from "
                "to begin with its weights"
            )
            if changed.training.batch_tokens < configs.training.batch_tokens:
                advice += "; --accumulation_steps needs less memory and may change"
            if len(differences) > _SHOWN_DIFFERENCES:
                more = len(differences) - _SHOWN_DIFFERENCES
                differences = [*differences[:_SHOWN_DIFFERENCES], f"and {more} more"]
            raise InputError(
                f"run directory {self.path} holds another run: {'; '.join(differences)}; {advice}"
            )
        last, train_steps = max(self.checkpoints().steps(), default=0), changed.training.train_steps
        if train_steps != configs.training.train_steps and train_steps < last:
            raise InputError(
                f"train_steps is {train_steps:,}, and the run in {self.path} is at step {last:,} "
                "already; give more, or remove it"
            )
        with self.lock():
            before, after = (
                (values.training.average_last, values.training.average_best)
                for values in (configs, changed)
            )
            checkpoints = self.checkpoints()
            if before != after and checkpoints.to_average(*after):
                checkpoints.drop(AVERAGE)  # made again when the run comes to its end
            self._update_config(**changed.to_dict())

    def change(self, **options: Any) -> None:
        """Changes settings of the run by name; raises as `continue_with` does.

        Example:
            >>> run.change(train_steps=40_000)  # `train` then goes on to that step
        """
        self.continue_with(changed_configs(self.configs(), options))

    @property
    def trained_with(self) -> dict[str, Any]:
        """Extra state that determines the batches; empty before training.

        "max_shapes" is how many shapes they may have, "text" the digest of the text in files.
        """
        with self._config() as values:
            return dict(values.get("trained_with", {}))

    def keep_trained_with(self, **values: Any) -> None:
        """Stores what `trained_with` returns from now on."""
        if values != self.trained_with:
            self._update_config(trained_with=values)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from training the run meanwhile.

        Raises:
            InputError: another one does so already, there is no run, or it cannot be written to.
        """
        self.configs()  # raises if there is none
        with self._locked():
            yield

    @contextlib.contextmanager
    def creation(self) -> Iterator[None]:
        """Keeps other processes from creating the run while the block creates it.

        Raises:
            InputError: another one does so already, the run is not new, or cannot be written.
        """
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
        with self._locked():
            try:
                self.check_is_new()
                yield
            finally:
                if not self.exists:
                    (self.path / "lock").unlink(missing_ok=True)
                    with contextlib.suppress(OSError):  # not empty: tokens are kept, for example
                        self.path.rmdir()

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Returns the vocabularies of source and target; one object if they share it.

        Raises:
            InputError: there is no run here, or a file is not the one that the run was created
                with: truncated, or copied from another run.
        """
        fingerprints = self._fingerprints()
        paths = [self._source_path, self._target_path][: len(fingerprints)]
        vocabularies = [Vocabulary.load(path) for path in paths]
        for path, vocabulary in zip(paths, vocabularies, strict=True):
            if vocabulary.fingerprint != fingerprints[path.name]:
                raise InputError(
                    f"{path} is not the vocabulary that the run was created with; restore it from "
                    "a copy"
                )
        if len(paths) == 1 and self._target_path.exists():
            raise InputError(
                f"{self._target_path} does not belong to this run, whose source and target share a "
                "vocabulary; remove it"
            )
        return vocabularies[0], vocabularies[-1]

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

    def load_model(self, checkpoint: str = "auto", *, dtype: str = "float32") -> Seq2SeqModel:
        """Returns the model with the weights of a checkpoint.

        Args:
            checkpoint: see `Checkpoints.find`.
            dtype: name of the model's dtype policy, such as "bfloat16".

        Raises:
            InputError: there is no such run or checkpoint, or it is damaged.
        """
        checkpoints, configs = self.checkpoints(), self.configs()
        name = checkpoints.find(checkpoint)
        model = build_model(configs.model, dtype="float32")
        checkpoints.restore(model, name)
        if dtype == "float32":
            return model
        converted = build_model(configs.model, dtype=dtype)
        converted.set_weights(model.get_weights())
        return converted

    def is_stalled(self, step: int) -> bool:
        """Whether `stop_metric`, if the run has one, ends it at a step."""
        configs = self.configs()
        training = configs.training
        if training.stop_metric is None:
            return False
        metric = configs.task.find_metric(training.stop_metric)
        return self.checkpoints().is_stalled(step, metric, training.stop_patience)

    def is_finished(self) -> bool:
        """Whether training has come to its end, by the number of steps or by `stop_metric`."""
        checkpoints = self.checkpoints()
        step = max(checkpoints.steps(), default=0)
        is_at_end = step >= self.configs().training.train_steps or self.is_stalled(step)
        return is_at_end and checkpoints.has_average()

    def corpus(
        self,
        configs: RunConfigs | None = None,
        vocabularies: tuple[Vocabulary, Vocabulary] | None = None,
        *,
        cache_dir: Path | None = None,
        say: Say = lambda line: None,
    ) -> TokenizedCorpus:
        """Returns the text that the run trains on, from its token cache or tokenized now.

        Args:
            configs, vocabularies: of a run that is being created; None means those of this one.
            cache_dir: folder for the tokenized text, which runs may share; None means one in the
                run directory.
            say: receives lines about the progress.
        """
        configs = configs or self.configs()
        corpus = training_corpus(
            configs.corpora,
            vocabularies or self.vocabularies(),
            self.path / "tokens" if cache_dir is None else local_path(cache_dir),
            lambda pairs: say(f"Tokenizing: {pairs:,} pairs ..."),
            keep_others=cache_dir is not None,
            task=configs.task,
        )
        for reason, count in corpus.dropped.items():
            if count:
                say(f"Dropped {count:,} pairs: {reason}.")
        return corpus

    def dev_sets(self) -> list[ParallelText]:
        """Returns the run's dev sets, of which the first decides; none if none is named."""
        configs = self.configs()
        return read_validation_texts(configs.corpora, configs.task)

    def _fingerprints(self) -> dict[str, str]:
        """Returns the fingerprints of the vocabularies by the names of their files."""
        with self._config() as values:
            stored = dict(values["vocabularies"])
            names = [self._source_path.name, self._target_path.name]
            return {name: stored[name] for name in names[: max(1, len(stored))]}

    def _update_config(self, **values: Any) -> None:
        with self._config() as before:
            after = before | values
        self._write_config(after)

    def _write_config(self, values: Mapping[str, Any]) -> None:
        with self._writing():
            write_atomically(self._config_path, json.dumps(values, indent=2) + "\n")

    @contextlib.contextmanager
    def _config(self) -> Iterator[Any]:
        """Yields the content of config.json; `InputError` if the block cannot use it."""
        path = self._config_path
        if not path.is_file():
            raise InputError(
                f"no training run in {self.path}: it has no {path.name}; give the --run_dir of an "
                "earlier keras-transformer train"
            )
        try:
            yield json.loads(path.read_text(encoding="utf-8"))
        except NotRegisteredError as error:
            raise InputError(f"{path}: {error}") from error
        except OSError as error:
            raise InputError(f"cannot read {path} ({error.strerror}); make it readable") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if any(self.path.glob("*.safetensors")) or any(self.path.glob("*.bin")):
                raise InputError(
                    f"{self.path} is no run but a model of another toolkit; make a run of it with "
                    "keras-transformer import_model"
                ) from error
            raise InputError(
                f"{path} is damaged ({type(error).__name__}: {error}); restore it from a copy, or "
                "start another run"
            ) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._writing():
            lock = open(self.path / "lock", "ab")  # noqa: SIM115 (closed below)
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"another process creates or trains the run in {self.path} now; wait for its "
                    "end, stop it, or give another --run_dir"
                ) from error
            except OSError:  # a file system without locks
                pass
            yield

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return writing(f"run directory {self.path}")


def prepare_run(
    run: RunDirectory, configs: RunConfigs, *, strategy: tf.distribute.Strategy, **options: Any
) -> TokenizedCorpus:
    """Creates the run, or checks that it may be resumed, and returns its tokenized text.

    Of several workers the first one does so, however long it takes, while the others wait.

    Args:
        run: exists or not.
        configs: from now on.
        strategy: from `make_strategy`.
        **options: cache_dir and say of `RunDirectory.corpus`.

    Raises:
        InputError: the text cannot be used, the run was created with other settings, or the
            directory cannot be written.
    """
    with all_or_none(strategy):
        if worker_of(strategy).is_chief:
            return (reopen_run if run.exists else create_run)(run, configs, **options)
    wait_for_files(
        run.path, lambda: run.exists and run.configs().training == run.resolved(configs.training)
    )
    return run.corpus(**options)


def create_run(
    run: RunDirectory, configs: RunConfigs, *, say: Say = lambda line: None, **options: Any
) -> TokenizedCorpus:
    """Makes the vocabularies of a new run, tokenizes its text, and writes its files."""
    with run.creation():
        start = None
        if configs.origin.get("start_from"):
            vocabularies, start = _begin_from_another_run(configs)
        else:
            say("Preparing the vocabulary ...")
            vocabularies = make_vocabularies(configs.corpora, configs.task, say)
            configs = configs.with_vocabulary_sizes(
                *(vocabulary.size for vocabulary in vocabularies)
            )
        corpus = run.corpus(configs, vocabularies, say=say, **options)
        configs = with_room_for_targets(configs, corpus, say)
        run.write(configs, *vocabularies, start)
    return corpus


def reopen_run(run: RunDirectory, configs: RunConfigs, **options: Any) -> TokenizedCorpus:
    """Changes the settings of a run, and returns its tokenized text."""
    run.continue_with(configs)
    return run.corpus(**options)


def _begin_from_another_run(
    configs: RunConfigs,
) -> tuple[tuple[Vocabulary, Vocabulary], Seq2SeqModel]:
    """Returns the vocabularies and weights of a run that starts from another one."""
    origin, checkpoint = RunDirectory.of_checkpoint(configs.origin["start_from"])
    start, vocabularies = origin.load_model(checkpoint), origin.vocabularies()
    freeze(start, configs.training.freeze)  # raises if there is no such part
    check_symbols(configs.corpora, configs.task, vocabularies)
    return vocabularies, start
