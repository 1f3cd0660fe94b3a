"""Measures training: ours as `scripts/train.py` does it, PyTorch's, and our batches alone.

All get the same batches: "128x16" are so many rows of so many random tokens, without padding, and
"multi30k:2048" is the corpus in batches of at most 2,048 tokens a side.
"""

import collections
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.engines import Channel, Engine, Row, take_turns
from keras_transformer.commands import common
from keras_transformer.config import EOS_ID, PAD_ID, ModelConfig, TrainingConfig
from keras_transformer.data import Batch, TokenizedCorpus, training_batches
from keras_transformer.errors import InputError

# The file that an engine runs and its environment. OpenMP's threads spin while they wait, which is
# right where they have the cores to themselves; beside other programs PyTorch was twice as fast
# with threads that sleep.
ENGINES: dict[str, tuple[str, dict[str, str]]] = {
    "ours": ("training", {}),
    "pytorch": ("pytorch", {}),
    "pytorch_kept": ("pytorch", {}),  # memory is kept, as in ours
    "pytorch_kept_sleep": ("pytorch", {"OMP_WAIT_POLICY": "PASSIVE"}),
    "input_pipeline": ("training", {}),
}
_IN_PYTORCH = ("transformer", "recurrent")  # architectures
_WARM_UP_STEPS = 3
_SEED = 1

Job = dict[str, Any]  # engine, preset, precision, batch, vocabulary_size, corpus, threads


def jobs(
    precisions: Sequence[str],
    input_pipeline: bool,
    vocabulary_size: int,
    threads: int,
    preset: str,
    batch: str,
    corpus: str | None,
) -> list[Job]:
    """Returns what is to be run in turns with one model and batch."""
    config = ModelConfig.preset(preset, vocabulary_size=vocabulary_size)
    has_torch = config.architecture in _IN_PYTORCH and importlib.util.find_spec("torch") is not None
    engines = [
        (engine, precision)
        for precision in precisions
        for engine, (module, _) in ENGINES.items()
        if engine != "input_pipeline" and (module != "pytorch" or has_torch)
    ]
    if is_real(batch) and input_pipeline:
        engines.append(("input_pipeline", "-"))
    same: Job = {"preset": preset, "batch": batch, "corpus": corpus}
    same |= {"vocabulary_size": vocabulary_size, "threads": threads}
    return [{"engine": engine, "precision": precision, **same} for engine, precision in engines]


def parse_batch(text: str) -> tuple[int, int]:
    """Returns the rows and length of a fixed batch, or 0 and the most tokens of real ones."""
    fixed = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    real = re.fullmatch(r"multi30k(?::([1-9]\d*))?", text)
    if fixed:
        return int(fixed[1]), int(fixed[2])
    if real:
        return 0, int(real[1] or 2048)
    raise InputError(
        f"a batch must be rows x length, such as 128x16, or multi30k, or multi30k:8192 for "
        f"other batch_tokens, got {text!r}"
    )


def batch_name(text: str) -> str:
    """Returns a batch's text in full: "multi30k:2048" for "multi30k"."""
    rows, length = parse_batch(text)
    return f"{rows}x{length}" if rows else f"multi30k:{length}"


def is_real(batch: str) -> bool:
    return parse_batch(batch)[0] == 0


def batches(job: Job) -> Iterator[Batch]:
    """Yields the batches of a job without end."""
    rows, length = parse_batch(job["batch"])
    if not rows:
        with np.load(job["corpus"]) as arrays:
            corpus = TokenizedCorpus(**arrays)
        return training_batches(corpus, batch_tokens=length, seed=_SEED)
    random = np.random.default_rng(_SEED)
    source, target, labels = (
        random.integers(EOS_ID + 1, job["vocabulary_size"], (rows, length), np.int32)
        for _ in range(3)
    )
    return itertools.repeat(({"source": source, "target": target}, labels))


def real_tokens(batch: Batch) -> int:
    """Counts the target tokens that are not padding."""
    return int(np.count_nonzero(np.asarray(batch[1]) != PAD_ID))


def measure(jobs: Sequence[Job], *, rounds: int, round_seconds: float) -> Iterator[Row]:
    """Has the engines of some jobs take turns, and yields the row of each.

    Those that train make as many steps in a turn as each other, so that they see the same batches.
    """
    engines: list[Engine] = []
    try:
        for job in jobs:
            module, environment = ENGINES[job["engine"]]
            engines.append(Engine(module, job, environment))
        for engine in engines:
            engine.run(_WARM_UP_STEPS)
        times = [engine.run(_WARM_UP_STEPS)["latencies"][0] for engine in engines]
        trains = [job["engine"] != "input_pipeline" for job in jobs]
        slowest = max(itertools.compress(times, trains))
        steps = [
            max(1, round(round_seconds / (slowest if training else own)))
            for own, training in zip(times, trains, strict=True)
        ]
        tasks = [
            functools.partial(lambda engine, count, _: engine.run(count), engine, count)
            for engine, count in zip(engines, steps, strict=True)
        ]
        results = take_turns(tasks, rounds)
    finally:
        for engine in engines:
            engine.close()
    for job, engine, count, turns in zip(jobs, engines, steps, results, strict=True):
        names = ("engine", "preset", "precision", "batch", "threads")
        seconds = float(np.median([turn["latencies"][0] for turn in turns]))
        yield Row.of(
            "tokens",
            {name: job[name] for name in names},
            turns,
            seconds_per_step=seconds,
            steps=count,
            version=engine.greetings[0]["version"],
        )


def report_steps(channel: Channel, steps: int, tokens: int) -> None:
    """Answers that so many steps have been made since the request."""
    usage = channel.stop()
    latencies = [usage["seconds"] / steps]
    channel.answer(units=tokens, count=steps, latencies=latencies, **usage)


def main(job: Job) -> None:
    """Runs our training, or our input pipeline alone, in this process."""
    common.load_tensorflow()
    import keras
    import tensorflow as tf

    from keras_transformer.data import to_dataset

    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    version = f"keras {keras.__version__}, tensorflow {tf.__version__}"
    if job["engine"] == "ours":
        _train(job, version)
        return
    stream = iter(to_dataset(lambda: batches(job)))
    channel = Channel(version)
    while steps := channel.request():
        report_steps(channel, steps, sum(real_tokens(next(stream)) for _ in range(steps)))


def _train(job: Job, version: str) -> None:
    import keras

    from keras_transformer.data import to_dataset
    from keras_transformer.models import build_model
    from keras_transformer.training import compile_for_training

    training = TrainingConfig.preset(job["preset"], precision=job["precision"])
    config = ModelConfig.preset(job["preset"], vocabulary_size=job["vocabulary_size"])
    keras.utils.set_random_seed(training.seed)
    model = build_model(config, dtype=training.precision)
    compile_for_training(model, training)
    tokens: collections.deque[int] = collections.deque()  # of batches that are prefetched

    def counted() -> Iterator[Batch]:
        for batch in batches(job):
            tokens.append(real_tokens(batch))
            yield batch

    class Turns(keras.callbacks.Callback):
        """Stops the clock, and `fit` with it, after as many steps as were asked for."""

        channel = Channel(version)

        def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
            self._wait()

        def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
            self.tokens.append(tokens.popleft())
            if len(self.tokens) == self.steps:
                report_steps(self.channel, self.steps, sum(self.tokens))
                self._wait()

        def _wait(self) -> None:
            self.steps, self.tokens = self.channel.request(), list[int]()
            self.model.stop_training = not self.steps

    model.fit(
        to_dataset(counted),
        steps_per_epoch=10**9,
        callbacks=[Turns()],
        shuffle=False,
        verbose=0,
    )


def prepare_corpus(folder: str, data_dir: str | None, vocabulary_size: int) -> str | None:
    """Tokenizes Multi30k with a vocabulary of its own, and says so where it is absent."""
    paths = [pathlib.Path(data_dir or "", name) for name in ("train.en", "train.de")]
    missing = [f"{path} does not exist." for path in paths if not path.exists()]
    if data_dir is None or missing:
        reason = "--data_dir names no corpus." if data_dir is None else missing[0]
        print(f"Real batches are left out: {reason}", file=sys.stderr)
        return None
    common.load_tensorflow()
    from keras_transformer.data import read_lines
    from keras_transformer.text import learn_vocabulary

    text = [read_lines(path) for path in paths]
    vocabulary = learn_vocabulary(itertools.chain(*text), size=vocabulary_size)
    corpus = vars(TokenizedCorpus.from_ids(*map(vocabulary.encode, text)))
    path = os.path.join(folder, "corpus.npz")
    np.savez(
        path, **{name: value for name, value in corpus.items() if name.endswith(("ids", "offsets"))}
    )
    return path


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
