"""Which devices a run trains on, of this machine and of others, and how they work together."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_transformer.data import Batch, TokenizedCorpus, to_dataset
from keras_transformer.errors import InputError, check_choice, one_line, writing
from keras_transformer.host import has_bfloat16, may_use_gpu

STRATEGIES = ("auto", "none", "mirrored", "multi_worker")


@dataclasses.dataclass(frozen=True)
class Worker:
    """One of the processes that train together; the first one, the chief, writes the files."""

    index: int
    count: int

    @property
    def is_chief(self) -> bool:
        return self.index == 0


ONLY_WORKER: Worker = Worker(0, 1)


def make_strategy(name: str = "auto") -> tf.distribute.Strategy:
    """Returns the strategy under which `train` builds and fits the model.

    Args:
        name: "multi_worker" trains on all GPUs of several machines, each of which runs the same
            command with its own TF_CONFIG in the environment; it must be made before TensorFlow
            has done anything else. "mirrored" trains on all GPUs of the machine, or on all its
            logical CPU devices if it has no GPU; "none" on one device. "auto" is
            "multi_worker" if TF_CONFIG names several workers, "mirrored" if there are several
            GPUs, else "none".

    Raises:
        InputError: the name is none of these, or TF_CONFIG is missing or damaged.
    """
    check_choice("strategy", name, STRATEGIES)
    worker = worker_of_environment()
    if name == "multi_worker" and worker is None:
        raise InputError(
            "strategy multi_worker needs TF_CONFIG in the environment of each worker, such as "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}'
        )
    if name == "multi_worker" or (name == "auto" and worker is not None and worker.count > 1):
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_logical_devices("GPU")
    if name == "none" or (name == "auto" and len(gpus) < 2):
        return tf.distribute.get_strategy()
    devices = gpus or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def auto_precision() -> str:
    """Returns the policy that `precision=auto` means here: the fastest that trains as well.

    On GPUs it follows from the compute capability of the oldest one: bfloat16 from 8.0 on, float16,
    with loss scaling, for 7.x, else float32. Processors without instructions for bfloat16 are
    slower in it than in float32: 0.7 of its rate with AVX2.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "mixed_bfloat16" if has_bfloat16() else "float32"
    details = map(tf.config.experimental.get_device_details, gpus)
    major, _ = min(each.get("compute_capability", (0, 0)) for each in details)
    return "mixed_bfloat16" if major >= 8 else "mixed_float16" if major == 7 else "float32"


def describe_devices(strategy: tf.distribute.Strategy) -> str:
    """Returns what a strategy trains on: "the CPU", "the GPU (NVIDIA H100)", "2 CPUs"."""
    replicas, kind, names = strategy.num_replicas_in_sync, "CPU", set()
    for gpu in tf.config.list_physical_devices("GPU"):
        kind = "GPU"
        names.add(tf.config.experimental.get_device_details(gpu).get("device_name", "unknown"))
    card = f" ({', '.join(sorted(names))})" if names else ""
    return (f"{replicas} {kind}s" if replicas > 1 else f"the {kind}") + card


def why_no_gpu() -> str:
    """Returns a line to show where an NVIDIA driver is, but TensorFlow sees no GPU; else ""."""
    if not may_use_gpu() or tf.config.list_physical_devices("GPU"):
        return ""
    reason = "does not find its CUDA libraries"
    if not tf.test.is_built_with_cuda():
        reason = "is built without CUDA"
    return (
        f"This machine has an NVIDIA driver, but TensorFlow {reason} and uses the CPU; for the GPU "
        'run: pip install "tensorflow[and-cuda]"'
    )


def worker_of(strategy: tf.distribute.Strategy) -> Worker:
    """Returns which worker this process is under a strategy; without others, the only one."""
    worker = worker_of_environment()
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return worker if several and worker is not None else ONLY_WORKER


def worker_of_environment() -> Worker | None:
    """Returns which worker TF_CONFIG makes this process; None without one.

    Raises:
        InputError: TF_CONFIG is damaged, or has other tasks than workers.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        workers, task = config["cluster"]["worker"], config["task"]
        worker = Worker(int(task["index"]), len(workers))
        if set(config["cluster"]) != {"worker"} or task["type"] != "worker":
            raise ValueError("every task must be a worker")
        if not 0 <= worker.index < worker.count:
            raise ValueError(f"there is no worker {worker.index} of {worker.count}")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"TF_CONFIG is damaged ({type(error).__name__}: {error}); expected "
            '{"cluster": {"worker": [addresses]}, "task": {"type": "worker", "index": 0}}'
        ) from error
    return worker


def distributed(
    strategy: tf.distribute.Strategy,
    make_batches: Callable[..., Iterator[Batch]],
    corpus: TokenizedCorpus,
    **options: Any,
) -> Any:
    """Returns a data set of this worker's rows of batches, which its replicas cut up."""
    worker = worker_of(strategy)
    shard, replicas = (worker.index, worker.count), strategy.num_replicas_in_sync
    dataset = to_dataset(
        functools.partial(make_batches, corpus, shard=shard, replicas=replicas, **options)
    )
    if worker.count > 1:
        return strategy.distribute_datasets_from_function(lambda context: dataset)
    policy = tf.data.Options()
    # A strategy is to cut up the batches and not the files that they come from.
    policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return strategy.experimental_distribute_dataset(dataset.with_options(policy))


def sum_over_workers(strategy: tf.distribute.Strategy, value: float) -> float:
    """Returns the sum of the workers' values; waits until all of them have called it."""
    count = worker_of(strategy).count
    if count == 1:
        return value
    sums = _sum_over_replicas(strategy, tf.constant(value, tf.float64))
    replicas = strategy.num_replicas_in_sync // count
    return float(strategy.experimental_local_results(sums)[0]) / replicas


@tf.function
def _sum_over_replicas(strategy: tf.distribute.Strategy, value: tf.Tensor) -> Any:
    def meet(value: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

    return strategy.run(meet, args=(value,))


def value_of_chief(strategy: tf.distribute.Strategy, value: float) -> float:
    """Returns the chief's value in every worker; waits until all of them have called it."""
    return sum_over_workers(strategy, value if worker_of(strategy).is_chief else 0.0)


@contextlib.contextmanager
def all_or_none(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Raises in all workers where the block fails in one: the others would wait for it for ever.

    All workers enter it, and none leaves it before the others.

    Raises:
        InputError: the block has failed in another worker.
    """
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    failures = sum_over_workers(strategy, float(failure is not None))
    if failure is not None:
        raise failure
    if failures:
        raise InputError("another worker has failed; its last lines of output say why")


# How libraries beneath TensorFlow report a lack of memory, as an internal error.
_LACKS_MEMORY = re.compile(r"out.of.memory|(cublas|cudnn).*(not.initialized|handle)", re.IGNORECASE)


@contextlib.contextmanager
def report_out_of_memory() -> Iterator[None]:
    """Raises `InputError`, with the flags to change, if memory runs out."""
    try:
        yield
    except (MemoryError, tf.errors.OpError) as error:
        is_known = isinstance(error, MemoryError | tf.errors.ResourceExhaustedError)
        if not is_known and not _LACKS_MEMORY.search(str(error)):
            raise
        raise InputError(
            f"out of memory with a batch ({one_line(error)}); end other programs on this GPU if "
            "there are any, raise --accumulation_steps, which makes the batches of training and of "
            "the dev set smaller, or lower --batch_tokens in another --run_dir"
        ) from error


# While the first worker prepares a run, it touches a file every few seconds: the others share
# nothing with it but a file system, and would otherwise not know whether it is alive.

_NAME = "preparing"
_INTERVAL_S = 5.0
# Network file systems cache the time of a file's change for up to a minute.
_SILENCE_S = 300.0


@contextlib.contextmanager
def heartbeat(folder: pathlib.Path) -> Iterator[None]:
    """Touches a file in the folder every few seconds while the block runs, then removes it.

    The folder is made if it is missing, and removed again if the block leaves it empty.

    Raises:
        InputError: the folder cannot be written.
    """
    path, ended = folder / _NAME, threading.Event()
    with writing(f"run directory {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()

    def beat() -> None:
        while not ended.wait(_INTERVAL_S):
            with contextlib.suppress(OSError):  # a disk that is full for a moment
                path.touch()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()


def wait_for_first_worker(folder: pathlib.Path, is_ready: Callable[[], bool]) -> None:
    """Waits until `is_ready`, for as long as the first worker's heartbeat continues.

    Only changes of the file's time count, so that clocks of machines may differ.

    Raises:
        InputError: there has been no heartbeat for five minutes.
    """
    path, last, end = folder / _NAME, None, time.monotonic() + _SILENCE_S
    while not is_ready():
        with contextlib.suppress(OSError):
            if (changed := path.stat().st_mtime_ns) != last:
                last, end = changed, time.monotonic() + _SILENCE_S
        if time.monotonic() > end:
            raise InputError(
                f"the first worker has given no sign of life in {folder} for "
                f"{_SILENCE_S / 60:.0f} minutes; see why it stopped, share the file system of "
                "--run_dir among all workers, and give them the same flags"
            )
        time.sleep(min(0.5, _SILENCE_S / 10))
