"""A training run small enough for a test: reading strings of letters backwards.

As a script it resumes such a run, and kills its own process after so many batches of the run:

    python tiny_run.py RUN_DIRECTORY BATCHES
"""

import os
import pathlib
import random
import shutil
import signal
import sys
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load_file

from keras_transformer.config import DataConfig, TrainingConfig, TransformerConfig
from keras_transformer.data.corpus import ParallelText, TokenizedCorpus
from keras_transformer.text import Vocabulary, learn_vocabulary
from keras_transformer.training import trainer
from keras_transformer.training.prepare import tokenize
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs
from keras_transformer.training.trainer import Stopped

LETTERS = "abcdef"
DATA = DataConfig(train_source="forwards.txt", train_target="backwards.txt")


def text(count: int, seed: int, longest: int = 5) -> ParallelText:
    """Gives strings of 2 to 5 letters, and the same read backwards."""
    generator = random.Random(seed)
    lengths = [generator.randint(2, longest) for _ in range(count)]
    words = ["".join(generator.choices(LETTERS, k=length)) for length in lengths]
    return ParallelText(words, [word[::-1] for word in words])


def make_vocabulary(letters: str = LETTERS) -> Vocabulary:
    return learn_vocabulary([letters], size=100, kind="char")


def corpus(count: int = 48, seed: int = 0, longest: int = 5) -> TokenizedCorpus:
    vocabulary = make_vocabulary()
    return tokenize(text(count, seed, longest), (vocabulary, vocabulary))


def model_config(**changes: Any) -> TransformerConfig:
    values = {"num_layers": 1, "model_dim": 16, "feed_forward_dim": 32, "num_heads": 2}
    values |= {"vocabulary_size": make_vocabulary().size, "dropout": 0.2}
    return TransformerConfig(**values | changes)


def training_config(**changes: Any) -> TrainingConfig:
    """Gives 12 steps in three intervals; an epoch of `corpus()` has 5 to 7 batches."""
    values = {"train_steps": 12, "checkpoint_steps": 4, "average_last": 2, "log_steps": 3}
    values |= {"batch_tokens": 64, "warmup_steps": 6, "learning_rate": 0.02}
    return TrainingConfig(**values | changes)


def create(path: pathlib.Path, *, dropout: float = 0.2, **changes: Any) -> RunDirectory:
    """Creates a run whose training configuration has some changes."""
    run, vocabulary = RunDirectory(path), make_vocabulary()
    configs = RunConfigs(model_config(dropout=dropout), DATA, training_config(**changes))
    run.write(configs, vocabulary, vocabulary)
    return run


def copy_of(run: RunDirectory, path: pathlib.Path, *, until_step: int) -> RunDirectory:
    """Copies a run as it was just after it had written a checkpoint."""
    copy = RunDirectory(shutil.copytree(run.path, path))
    for file in (path / "checkpoints").iterdir():
        step = file.stem.removeprefix("step-")
        if step == "average" or (step.isdecimal() and int(step) > until_step):
            file.unlink()
    return copy


def contents(run: RunDirectory, checkpoint: str) -> dict[str, np.ndarray]:
    """Gives all that a checkpoint holds, by name."""
    return load_file(run.checkpoints().path(checkpoint))


def assert_same_checkpoint(first: RunDirectory, second: RunDirectory, name: str) -> None:
    expected, found = contents(first, name), contents(second, name)
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=f"{name}: {key}")


def train_until_killed(
    path: str, batches: int, name: str = "SIGKILL", show: bool = False
) -> Stopped | None:
    """Trains and sends this process a signal after some batches; gives how training ended then."""

    class Killer(trainer.Trainer):
        killed = False

        def _after_update(self, *arguments: Any) -> None:
            super()._after_update(*arguments)
            if self.step == batches and not self.killed:
                self.killed = True
                os.kill(os.getpid(), signal.Signals[name])

    with mock.patch.object(trainer, "Trainer", Killer):
        try:
            trainer.train(RunDirectory(path), corpus(), text(16, seed=1), show=show)
        except Stopped as stopped:
            return stopped
    return None


if __name__ == "__main__":
    train_until_killed(sys.argv[1], int(sys.argv[2]))
