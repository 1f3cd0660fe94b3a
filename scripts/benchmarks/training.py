"""Measures training: whole steps of ours and PyTorch's; and planning an epoch.

All engines get the same batches: "128x16" are so many rows of so many random tokens, without
padding, and "multi30k:2048" is the corpus in batches of at most 2,048 tokens a side. Before the
clock starts every engine has seen a batch of each shape.
"""

import collections
import concurrent.futures
import functools
import importlib.util
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.engines import Channel, Engine, check_gpu, make_row, take_turns
from keras_transformer.commands import common
from keras_transformer.config import EOS_ID, PAD_ID, ModelConfig, TrainingConfig
from keras_transformer.data import (
    MAX_COMPILED_SHAPES,
    MAX_SHAPES,
    Batch,
    BatchPlan,
    TokenizedCorpus,
    training_batches,
)
from keras_transformer.errors import InputError

# The file that an engine runs. "kept" and "compiled" keep freed memory, as ours does.
ENGINES = {
    "ours": "training",
    "pytorch": "pytorch",
    "pytorch_kept": "pytorch",
    "pytorch_compiled": "pytorch",  # torch.compile
}
_PYTORCH = tuple(name for name, module in ENGINES.items() if module == "pytorch")
_WARM_UP_STEPS = 3
_MIN_STEPS = 30  # of an engine, in all of its turns
_SEED = 1

Job = dict[str, Any]  # engine, device, preset, precision, batch, vocabulary_size, corpus, threads


def jobs(precisions: Sequence[str], job: Job) -> list[Job]:
    """Returns what is to be run in turns with one model and batch: each engine and precision.

    `job` has all but these two.
    """
    config = ModelConfig.preset(job["preset"], vocabulary_size=job["vocabulary_size"])
    rivals: list[str] = []
    if config.architecture == "transformer" and importlib.util.find_spec("torch"):
        can_compile = shutil.which("g++") or shutil.which("c++")
        can_run = {
            "pytorch_kept": job["device"] == "cpu",  # it keeps memory of the host
            "pytorch_compiled": can_compile,
        }
        rivals = [name for name in _PYTORCH if can_run.get(name, True)]
    return [
        {"engine": engine, "precision": precision, **job}
        for engine, precision in itertools.product(["ours", *rivals], precisions)
        if engine == "ours" or precision != "mixed_float16"  # PyTorch's would need a loss scale
    ]


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


def fixed_batch(text: str) -> tuple[int, int] | None:
    """Returns the rows and length of a fixed batch; None for empty text."""
    if text and is_real(text):
        raise InputError(f"decode takes batches of rows x length, such as 64x32, got {text!r}")
    return parse_batch(text) if text else None


def batch_name(text: str) -> str:
    """Returns a batch's text in full: "multi30k:2048" for "multi30k"."""
    rows, length = parse_batch(text)
    return f"{rows}x{length}" if rows else f"multi30k:{length}"


def is_real(batch: str) -> bool:
    return parse_batch(batch)[0] == 0


def batches(job: Job) -> tuple[list[Batch], Iterator[Batch]]:
    """Returns a batch of random tokens of each shape, and the batches of a job without end."""
    random, (rows, length) = np.random.default_rng(_SEED), parse_batch(job["batch"])

    def random_batch(rows: int, source_length: int, target_length: int) -> Batch:
        source, target, labels = (
            random.integers(EOS_ID + 1, job["vocabulary_size"], (rows, length), np.int32)
            for length in (source_length, target_length, target_length)
        )
        return {"source": source, "target": target}, labels

    if rows:
        batch = random_batch(rows, length, length)
        return [batch], itertools.repeat(batch)
    with np.load(job["corpus"]) as arrays:
        corpus = TokenizedCorpus(**arrays)
    max_shapes = MAX_COMPILED_SHAPES if job["device"] == "gpu" else MAX_SHAPES
    bounds: Any = {"batch_tokens": length, "max_shapes": max_shapes}
    one_of_each = [random_batch(*shape) for shape in BatchPlan(corpus, **bounds).shapes]
    return one_of_each, training_batches(corpus, **bounds, seed=_SEED)


def real_tokens(batch: Batch) -> int:
    """Counts the target tokens that are not padding."""
    return int(np.count_nonzero(np.asarray(batch[1]) != PAD_ID))


def measure(jobs: Sequence[Job], *, rounds: int, round_seconds: float) -> Iterator[dict[str, Any]]:
    """Has the engines of some jobs take turns, and yields the row of each.

    All make as many steps in a turn as each other, so that they see the same batches, and at least
    30 in all turns.
    """
    engines: list[Engine] = []
    try:
        for job in jobs:
            engines.append(Engine(ENGINES[job["engine"]], job, {}))
        with concurrent.futures.ThreadPoolExecutor() as pool:  # since compilation takes long
            list(pool.map(_warm_up, engines))
        slowest = max(engine.run(_WARM_UP_STEPS)["latencies"][0] for engine in engines)
        steps = max(math.ceil(_MIN_STEPS / rounds), round(round_seconds / slowest))
        tasks = [functools.partial(lambda engine, _: engine.run(steps), each) for each in engines]
        results = take_turns(tasks, rounds)
    finally:
        for engine in engines:
            engine.close()
    for job, engine, turns in zip(jobs, engines, results, strict=True):
        names = ("engine", "device", "preset", "precision", "batch", "threads")
        seconds = float(np.median([turn["latencies"][0] for turn in turns]))
        yield make_row(
            "tokens",
            {name: job[name] for name in names},
            turns,
            seconds_per_step=seconds,
            steps=steps,
            compiled=sum(turn["compiled"] for turn in turns),
            version=engine.greetings[0]["version"],
        )


def _warm_up(engine: Engine) -> None:
    """Has an engine see a batch of each shape, and then some more."""
    engine.run(engine.greetings[0]["shapes"])
    engine.run(_WARM_UP_STEPS)


def report_steps(channel: Channel, tokens: int, steps: int, compiled: int = 0) -> None:
    """Answers that the steps of a request have been made, and how many graphs were compiled."""
    usage = channel.stop()
    latencies = [usage["seconds"] / steps]
    channel.answer(units=tokens, count=steps, latencies=latencies, compiled=compiled, **usage)


def main(job: Job) -> None:
    """Runs our training in this process."""
    common.load_tensorflow()
    import keras
    import tensorflow as tf

    from keras_transformer.data import to_dataset
    from keras_transformer.models import build_model
    from keras_transformer.training.optimizer import compile_for_training

    check_gpu(job, bool(tf.config.list_physical_devices("GPU")), "TensorFlow")
    tf.config.experimental.enable_tensor_float_32_execution(False)  # as PyTorch's default is
    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    version = f"keras {keras.__version__}, tensorflow {tf.__version__}"
    training = TrainingConfig.preset(job["preset"], precision=job["precision"])
    config = ModelConfig.preset(job["preset"], vocabulary_size=job["vocabulary_size"])
    keras.utils.set_random_seed(training.seed)
    model = build_model(config, dtype=training.precision)
    compile_for_training(model, training)
    one_of_each_shape, stream = batches(job)
    tokens: collections.deque[int] = collections.deque()  # of batches that are prefetched

    def counted() -> Iterator[Batch]:
        for batch in itertools.chain(one_of_each_shape, stream):
            tokens.append(real_tokens(batch))
            yield batch

    class Turns(keras.callbacks.Callback):
        """Stops the clock after as many steps as were requested, and `fit` at the last request."""

        channel = Channel(version, shapes=len(one_of_each_shape))

        def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
            self._wait()

        def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
            self.tokens.append(tokens.popleft())
            if len(self.tokens) == self.steps:
                float((logs or {})["loss"])  # a GPU works on while Python goes on
                report_steps(self.channel, sum(self.tokens), self.steps)
                self._wait()

        def _wait(self) -> None:
            self.steps, self.tokens = self.channel.request(), list[int]()
            self.model.stop_training = not self.steps

    model.fit(
        to_dataset(counted), steps_per_epoch=10**9, callbacks=[Turns()], shuffle=False, verbose=0
    )


def prepare_corpus(folder: str, data_dir: str | None, vocabulary_size: int) -> str | None:
    """Tokenizes Multi30k with its own vocabulary; prints why if there is none, and returns None."""
    paths = [pathlib.Path(data_dir or "", name) for name in ("train.en", "train.de")]
    missing = [f"{path} does not exist." for path in paths if not path.exists()]
    if data_dir is None or missing:
        reason = "--data_dir names no corpus." if data_dir is None else missing[0]
        print(f"Real batches are skipped: {reason}", file=sys.stderr)
        return None
    common.load_tensorflow()
    from keras_transformer.files import read_lines
    from keras_transformer.text import learn_vocabulary

    text = [read_lines(path) for path in paths]
    vocabulary = learn_vocabulary(itertools.chain(*text), size=vocabulary_size)
    corpus = vars(TokenizedCorpus.from_ids(*map(vocabulary.encode, text)))
    path = os.path.join(folder, "corpus.npz")
    np.savez(
        path, **{name: value for name, value in corpus.items() if name.endswith(("ids", "offsets"))}
    )
    return path


# Planning an epoch

_BATCH_TOKENS = 25_000  # the paper's
_CHUNK = 1 << 22
_PLACE = 0.77  # share of the third epoch at which a run resumes


def measure_plan(folder: pathlib.Path, pairs: int, whole_epoch: bool) -> Iterator[dict[str, Any]]:
    """Yields the time and memory of each part of planning an epoch over made-up lengths.

    Args:
        folder: for the lengths, in files of 16 bytes a pair that are mapped into memory.
        pairs: how many.
        whole_epoch: whether to go through all batches too, to see that each pair occurs once.
    """
    source, target = _offsets(folder, pairs)
    no_ids = np.zeros(0, np.uint16)
    corpus = TokenizedCorpus(
        source_ids=no_ids,
        source_offsets=source,
        target_ids=no_ids,
        target_offsets=target,
    )

    def begin(max_shapes: int) -> BatchPlan:
        plan = BatchPlan(corpus, batch_tokens=_BATCH_TOKENS, max_shapes=max_shapes)
        next(plan.epoch(seed=_SEED))
        return plan

    for max_shapes in (MAX_COMPILED_SHAPES, MAX_SHAPES):
        action = f"plan in {max_shapes} shapes"
        plan, row = _timed(action, begin, max_shapes)
        batches = plan.batches_per_epoch
        yield row | {"shapes": len(plan.shapes), "batches": batches, "real_share": plan.real_share}
    place = int(_PLACE * batches)
    _, row = _timed(
        "first batch after resuming", lambda: next(plan.epoch(2, seed=_SEED, first_batch=place))
    )
    yield row
    if whole_epoch:
        times, row = _timed("whole epoch", _occurrences, plan, pairs)
        yield row | {"pairs_not_seen_once": int(np.count_nonzero(times != 1))}


def _offsets(folder: pathlib.Path, pairs: int) -> list[npt.NDArray[np.int64]]:
    """Writes log-normal lengths, correlated like those of sentences and their translations."""
    random = np.random.default_rng(0)
    paths = [folder / "source", folder / "target"]
    files = [np.memmap(path, np.int64, "w+", shape=(pairs + 1,)) for path in paths]
    ends = [0, 0]
    for first in range(0, pairs, _CHUNK):
        count = min(_CHUNK, pairs - first)
        source = np.exp(random.normal(3, 0.6, count))
        target = source * np.exp(random.normal(0.05, 0.2, count))
        for side, lengths in enumerate((source, target)):
            offsets = ends[side] + np.cumsum(np.clip(lengths, 1, 250).astype(np.int64))
            files[side][first + 1 : first + 1 + count] = offsets
            ends[side] = int(offsets[-1])
    return [np.asarray(np.memmap(path, np.int64, "r")) for path in paths]


def _occurrences(plan: BatchPlan, pairs: int) -> npt.NDArray[np.uint8]:
    times = np.zeros(pairs, np.uint8)
    for batch in plan.epoch(seed=_SEED):
        times[batch.pairs] += 1
    return times


def _timed(action: str, call: Callable[..., Any], *arguments: Any) -> tuple[Any, dict[str, Any]]:
    tracemalloc.start()
    start = time.perf_counter()
    try:
        result = call(*arguments)
        seconds = time.perf_counter() - start
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, {"action": action, "seconds": seconds, "megabytes": peak / 1e6}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
