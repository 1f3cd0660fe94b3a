"""Measures training: whole steps of ours and PyTorch's on the same batch of random tokens."""

import functools
import importlib.util
import itertools
import json
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.engines import Channel, Engine, check_gpu, rates, take_turns
from keras_transformer.commands import common
from keras_transformer.config import BOS_ID, EOS_ID, TrainingConfig, TransformerConfig

if TYPE_CHECKING:  # it would load TensorFlow, beside which PyTorch's optimizers cannot be imported
    from keras_transformer.data.batches import Batch

# The file that an engine runs. "kept" and "compiled" keep freed memory, as ours does.
ENGINES = {
    "ours": "training",
    "pytorch": "pytorch",
    "pytorch_kept": "pytorch",
    "pytorch_compiled": "pytorch",  # torch.compile
}
_WARM_UP_STEPS = 3
_MIN_STEPS = 30  # of an engine, in all of its turns
_SEED = 1

Job = dict[str, Any]  # engine, device, preset, precision, rows, length, vocabulary_size, threads


def jobs(precisions: Sequence[str], job: Job) -> list[Job]:
    """Returns a job for each engine and precision; `job` has all but these two."""
    engines = ["ours"]
    if importlib.util.find_spec("torch"):
        engines.append("pytorch")
        if job["device"] == "cpu":  # it keeps memory of the host
            engines.append("pytorch_kept")
        if shutil.which("g++"):
            engines.append("pytorch_compiled")
    return [
        {"engine": engine, "precision": precision, **job}
        for engine, precision in itertools.product(engines, precisions)
    ]


def batch(job: Job) -> "Batch":
    """Returns rows of random tokens, without padding."""
    shape = (3, job["rows"], job["length"])
    tokens = np.random.default_rng(_SEED).integers(
        EOS_ID + 1, job["vocabulary_size"], shape, np.int32
    )
    source, target, labels = tokens
    target[:, 0] = BOS_ID
    return {"source": source, "target": target}, labels


def measure(jobs: Sequence[Job], rounds: int, round_seconds: float) -> Iterator[dict[str, Any]]:
    """Has the engines of some jobs take turns of as many steps, and yields the row of each."""
    engines: list[Engine] = []
    try:
        engines += [Engine(ENGINES[job["engine"]], job) for job in jobs]
        for engine in engines:  # compilation included
            engine.run(_WARM_UP_STEPS)
        slowest = max(engine.run(_WARM_UP_STEPS)["seconds"] for engine in engines) / _WARM_UP_STEPS
        steps = max(math.ceil(_MIN_STEPS / rounds), round(round_seconds / slowest))
        tasks = [functools.partial(lambda engine, _: engine.run(steps), each) for each in engines]
        results = take_turns(tasks, rounds)
    finally:
        for engine in engines:
            engine.close()
    for job, engine, turns in zip(jobs, engines, results, strict=True):
        names = ("engine", "device", "preset", "precision", "threads")
        yield {
            **{name: job[name] for name in names},
            "batch": f"{job['rows']}x{job['length']}",
            **rates("tokens", turns),
            "steps": steps,
            "version": engine.version,
        }


def main(job: Job) -> None:
    """Runs our training in this process."""
    common.load_tensorflow()
    import keras
    import tensorflow as tf

    from keras_transformer.data.batches import to_dataset
    from keras_transformer.models import build_model
    from keras_transformer.training.optimizer import compile_for_training

    check_gpu(job, bool(tf.config.list_physical_devices("GPU")), "TensorFlow")
    tf.config.experimental.enable_tensor_float_32_execution(False)  # as PyTorch's default is
    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    training = TrainingConfig.preset(job["preset"], precision=job["precision"])
    config = TransformerConfig.preset(job["preset"], vocabulary_size=job["vocabulary_size"])
    keras.utils.set_random_seed(training.seed)
    model = build_model(config, dtype=training.precision)
    compile_for_training(model, training)
    channel = Channel(f"keras {keras.__version__}, tensorflow {tf.__version__}")

    batches = iter(to_dataset(lambda: itertools.repeat(batch(job))))
    step = tf.function(lambda: model.update(next(batches)), autograph=False)  # as `train` has it
    while steps := channel.request():
        for _ in range(steps):
            metrics = step()
        float(metrics["loss"])  # a GPU works on while Python goes on
        tokens = steps * job["rows"] * job["length"]
        channel.answer(units=tokens, seconds=channel.stop())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
