"""A run directory: all that later commands need of a training run.

config.json         the configurations and the task; fingerprints of the vocabularies; once it is
                    trained, what else its batches follow from, see `RunDirectory.batch_inputs`
source.model        the source's SentencePiece vocabulary; the target's too if it is shared
target.model        the target's vocabulary, if it has its own
checkpoints/        see `checkpoints.py`
lock                held by the process that creates, changes or trains the run
tokens/             the tokenized text, see `data/token_cache.py`
metrics.jsonl       one JSON object every `log_steps` updates and at each checkpoint
tensorboard/        on request

`prepare_run` creates a run from text, or takes changed settings, and returns its tokenized text;
the head of `trainer.py` says what follows. A model that comes with the package is a run too.
"""

import contextlib
import json
import operator
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import filelock
import tensorflow as tf
from typing_extensions import Self

from keras_transformer.data.corpus import ParallelText, TokenizedCorpus
from keras_transformer.errors import InputError, NotRegisteredError, writing
from keras_transformer.files import Path, local_path, write_atomically
from keras_transformer.models import Seq2SeqModel, build_model
from keras_transformer.text import Vocabulary
from keras_transformer.training.checkpoints import AVERAGE, START, Checkpoints
from keras_transformer.training.distribution import auto_precision, wait_for_workers, worker_index
from keras_transformer.training.optimizer import freeze
from keras_transformer.training.prepare import (
    Say,
    check_symbols,
    make_vocabularies,
    read_dev_text,
    training_corpus,
    with_room_for_targets,
)
from keras_transformer.training.settings import (
    RunConfigs,
    changed_configs,
    fine_tuning_configs,
    new_configs,
)

# Files of source and of target sentences, or one file with both sides.
TextFiles = Path | Sequence[Path]
PRETRAINED = pathlib.Path(__file__).parents[1] / "pretrained"  # the models of the package


class RunDirectory:
    """Opens or creates the directory of one training run.

    Args:
        path: the directory.

    Attributes:
        path, metrics_path: the directory, and its file with a line for each stretch of training.
    """

    def __init__(self, path: Path) -> None:
        if not os.fspath(path):
            raise InputError("the path of the run directory is empty; give that of a folder")
        self.path = local_path(path)
        self.metrics_path = self.path / "metrics.jsonl"
        self._config_path = self.path / "config.json"
        self._vocabulary_paths = self.path / "source.model", self.path / "target.model"

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

        Args:
            path: the directory, which holds no run yet.
            train, dev, test: files of source and target sentences, or a file with both sides.
            start_from: a run, a checkpoint of one, or a model of the package such as "en-de",
                whose weights, vocabularies and model the new run begins with.
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
                options[f"{split}_source"], options[f"{split}_target"] = map(str, files)
        create_run(run, run.make_configs(options, start_from))
        return run

    @classmethod
    def of_checkpoint(cls, path: Path) -> tuple[Self, str]:
        """Returns the run and checkpoint that a path names: "auto" for the path of a run.

        The name of a model of the package stands for that model; "./en-de" is a folder.
        """
        if is_packaged(path):
            return cls(PRETRAINED / path), "auto"
        where = local_path(path)
        if where.parent.name == "checkpoints" and not (where / "config.json").is_file():
            return cls(where.parents[1]), where.name.removesuffix(".safetensors")
        return cls(path), "auto"

    @classmethod
    def make_configs(cls, options: Mapping[str, Any], start_from: Path | None = None) -> RunConfigs:
        """Returns the configurations of a new run, see `create`."""
        if start_from is None:
            return new_configs(options)
        origin, _ = cls.of_checkpoint(start_from)
        return fine_tuning_configs(origin.configs(), start_path(start_from), options)

    @property
    def exists(self) -> bool:
        """Whether a run has been created here."""
        return self._config_path.is_file()

    def check_is_new(self) -> None:
        """Raises `InputError` if a run, or the rest of one, is here."""
        if self.exists:
            raise InputError(f"{self.path} holds a run already; resume it, or give another path")
        if any(self.checkpoints().steps()) or self.metrics_path.exists():
            raise InputError(
                f"{self.path} has checkpoints or metrics of a run, but no config.json; restore it, "
                "or give another --run_dir"
            )

    def write(
        self,
        configs: RunConfigs,
        source: Vocabulary,
        target: Vocabulary,
        start: Seq2SeqModel | None = None,
    ) -> None:
        """Writes the files of a new run; the configuration comes last.

        Args:
            configs: the configurations; precision "auto" becomes the one that suits this machine.
            source, target: the vocabularies.
            start: has the weights to begin with, checkpoint `step-0`; None means random ones.

        Raises:
            InputError: the directory holds a run already, or it cannot be written.
        """
        self.check_is_new()
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            self.checkpoints().drop(START)  # of an attempt that was interrupted here
        fingerprints: dict[str, str] = {}
        for path, vocabulary in zip(self._vocabulary_paths, (source, target), strict=True):
            if vocabulary.fingerprint not in fingerprints.values():
                vocabulary.save(path)
                fingerprints[path.name] = vocabulary.fingerprint
        if start is not None:
            self.checkpoints().save_weights(start, START)
        if configs.training.precision == "auto":
            training = configs.training.replace(precision=auto_precision())
            configs = configs._replace(training=training)
        self._write_config(configs.to_dict() | {"vocabularies": fingerprints})

    def configs(self) -> RunConfigs:
        """Returns the configurations of the run.

        Raises:
            InputError: there is no run here, or its configuration is damaged.
        """
        with self._config() as values:
            return RunConfigs.from_dict(values)

    def continue_with(self, changed: RunConfigs) -> None:
        """Saves what `changed_configs` returned; `InputError` while another process trains."""
        with self.lock():
            before = self.configs()
            newest = max(self.checkpoints().steps(), default=0)
            if changed.training.train_steps < newest:
                raise InputError(
                    f"train_steps must be at least {newest}, the run's newest checkpoint, got "
                    f"{changed.training.train_steps}"
                )
            fields = operator.attrgetter("average_last", "average_best")
            if fields(before.training) != fields(changed.training):
                self.checkpoints().drop(AVERAGE)  # made again when the run comes to its end
            self._update_config(**changed.to_dict())

    def change(self, **options: Any) -> None:
        """Changes settings of the run by name.

        Raises:
            InputError: a setting is unknown or one that a run cannot change, and the message names
                it; another process trains the run; or the directory cannot be written.

        Example:
            >>> run.change(train_steps=40_000)  # `train` then goes on to that step
        """
        self.continue_with(changed_configs(self.configs(), options))

    @property
    def batch_inputs(self) -> dict[str, Any]:
        """What its batches follow from besides its configurations; empty before training.

        "max_shapes" is how many shapes batches may have, "text" and "dev" are digests of the text
        to train on and of the dev set.
        """
        with self._config() as values:
            return dict(values.get("batch_inputs", {}))

    def write_batch_inputs(self, values: Mapping[str, Any]) -> None:
        """Stores what `batch_inputs` returns from now on."""
        if values != self.batch_inputs:
            self._update_config(batch_inputs=values)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from creating, changing or training the run meanwhile.

        Raises:
            InputError: another one does so already, or the directory cannot be written to.
        """
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.path / "lock", timeout=0)
            try:
                lock.acquire()
            except filelock.Timeout as error:
                raise InputError(
                    f"another process creates or trains the run in {self.path} now; wait for its "
                    "end, stop it, or give another --run_dir"
                ) from error
        for unfinished in self.path.glob("*/.writing-*"):  # by a killed process
            shutil.rmtree(unfinished, ignore_errors=True)
        try:
            yield
        finally:
            lock.release()
            if not self.exists:  # its creation failed: leave no folder, unless tokens are in it
                (self.path / "lock").unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    self.path.rmdir()

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Returns the vocabularies of source and target; one object if they share it.

        Raises:
            InputError: there is no run here, or a file is not the one that the run was created
                with: truncated, or copied from another run.
        """
        with self._config() as values:
            fingerprints = dict(values["vocabularies"])
        source, target = self._vocabulary_paths
        has_two = target.name in fingerprints
        vocabularies = []
        for path in (source, target) if has_two else (source,):
            vocabularies.append(Vocabulary.load(path))
            fingerprint = vocabularies[-1].fingerprint
            if fingerprint != fingerprints.get(path.name, fingerprint):
                raise InputError(f"{path} is not the vocabulary that the run was created with")
        return vocabularies[0], vocabularies[-1]

    def checkpoints(self) -> Checkpoints:
        """Returns the run's checkpoints."""
        folder = self.path / "checkpoints"
        if not self.exists:
            return Checkpoints(folder)
        configs = self.configs()
        return Checkpoints(folder, configs.training, configs.task)

    def load_model(self, checkpoint: str = "auto", *, dtype: str = "float32") -> Seq2SeqModel:
        """Returns the model with the weights of a checkpoint.

        Args:
            checkpoint: see `Checkpoints.find`.
            dtype: name of the model's dtype policy, such as "bfloat16".

        Raises:
            InputError: there is no such run or checkpoint, or it is damaged.
        """
        model = build_model(self.configs().model, dtype=dtype)
        self.checkpoints().restore(model, checkpoint)
        return model

    def is_finished(self) -> bool:
        """Whether training has come to its end, by the number of steps or by `stop_metric`."""
        checkpoints = self.checkpoints()
        step = max(checkpoints.steps(), default=0)
        return checkpoints.is_at_end(step) and checkpoints.has_average()

    def corpus(self, say: Say = lambda line: None) -> TokenizedCorpus:
        """Returns the text that the run trains on, from its token cache or tokenized now."""
        configs, folder = self.configs(), self.path / "tokens"
        data, task = configs.required_data, configs.task
        return training_corpus(data, self.vocabularies(), folder, task=task, say=say)

    def dev_set(self) -> ParallelText | None:
        """Returns the run's dev set; None if it has none."""
        configs = self.configs()
        return read_dev_text(configs.required_data, configs.task)

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
            raise InputError(f"no training run in {self.path}: it has no {path.name}")
        try:
            yield json.loads(path.read_text(encoding="utf-8"))
        except NotRegisteredError as error:
            raise InputError(f"{path}: {error}") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is damaged or of no run ({type(error).__name__}: {error})"
            ) from error

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return writing(f"run directory {self.path}")


def start_path(start_from: Path) -> str:
    """Returns the absolute path of a run or checkpoint, or the name of a model of the package."""
    return str(start_from if is_packaged(start_from) else local_path(start_from).resolve())


def packaged_models() -> list[str]:
    """Returns the names of the models in the package."""
    return sorted(path.parent.name for path in PRETRAINED.glob("*/config.json"))


def is_packaged(name: Path) -> bool:
    """Whether this is the name of a model in the package; "./en-de" is a folder."""
    return isinstance(name, str) and name in packaged_models()


def prepare_run(
    run: RunDirectory,
    configs: RunConfigs,
    *,
    strategy: tf.distribute.Strategy,
    say: Say = lambda line: None,
) -> TokenizedCorpus:
    """Creates the run, or saves its changed settings, and returns its tokenized text.

    Of several workers the first one does so, while the others wait. `say` receives lines about the
    progress.

    Raises:
        InputError: the text cannot be used, the run was created with other settings, or the
            directory cannot be written.
    """
    if worker_index(strategy) == 0:
        if run.exists:
            run.continue_with(configs)
            run.corpus(say)
        else:
            create_run(run, configs, say)
    wait_for_workers(strategy)
    return run.corpus()


def create_run(run: RunDirectory, configs: RunConfigs, say: Say = lambda line: None) -> None:
    """Makes the vocabularies of a new run, tokenizes its text, and writes its files."""
    run.check_is_new()
    with run.lock():
        data, start = configs.required_data, None
        if configs.origin.get("start_from"):
            origin, checkpoint = RunDirectory.of_checkpoint(configs.origin["start_from"])
            start, vocabularies = origin.load_model(checkpoint), origin.vocabularies()
            freeze(start, configs.training.freeze)  # raises if there is no such part
            check_symbols(data, configs.task, vocabularies)
        else:
            say("Preparing the vocabulary ...")
            vocabularies = make_vocabularies(data, configs.task, say)
            sizes = {"vocabulary_size": vocabularies[0].size}  # perhaps smaller than asked for
            if not data.shares_vocabulary:
                sizes["target_vocabulary_size"] = vocabularies[1].size
            configs = configs._replace(model=configs.model.replace(**sizes))
        folder = run.path / "tokens"
        corpus = training_corpus(data, vocabularies, folder, task=configs.task, say=say)
        configs = with_room_for_targets(configs, corpus)
        run.write(configs, *vocabularies, start)
