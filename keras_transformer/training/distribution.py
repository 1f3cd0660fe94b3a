"""Which devices a run trains on, of this machine and of others, and how they work together."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_transformer.data import Batch, TokenizedCorpus, to_dataset
from keras_transformer.errors import InputError, check_choice, one_line
from keras_transformer.host import has_bfloat16, may_use_gpu
from keras_transformer.models.update import sum_over_replicas

STRATEGIES = ("auto", "none", "mirrored", "multi_worker")


@dataclasses.dataclass(frozen=True)
class Worker:
    """One of the processes that train together; the first one, the chief, writes the files."""

    index: int
    count: int

    @property
    def is_chief(self) -> bool:
        return self.index == 0


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
    if worker is not None and worker.count > 1 and name in ("auto", "multi_worker"):
        with report_lost_worker():
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
        # TensorFlow now only notes SIGTERM; until training notes it too, it ends the process.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
        return strategy
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
    major, _ = min(gpu.get("compute_capability", (0, 0)) for gpu in details)
    return "mixed_bfloat16" if major >= 8 else "mixed_float16" if major == 7 else "float32"


def describe_devices(strategy: tf.distribute.Strategy) -> str:
    """Returns the devices of a strategy: "the CPU", "the GPU (NVIDIA H100)", "2 CPUs"."""
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
    return worker if several and worker is not None else Worker(0, 1)


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
    """Returns a data set that gives each device of this worker its rows of a batch."""
    worker = worker_of(strategy)
    shard, replicas = (worker.index, worker.count), strategy.num_replicas_in_sync
    devices = replicas // worker.count  # of this worker

    def shares() -> Iterator[Batch]:
        batches = make_batches(corpus, shard=shard, replicas=replicas, **options)
        for inputs, labels in batches:
            rows = len(labels) // devices
            for share in (slice(rows * device, rows * (device + 1)) for device in range(devices)):
                yield {side: ids[share] for side, ids in inputs.items()}, labels[share]

    dataset = to_dataset(shares)
    # Its elements are those of the local devices in turn.
    return strategy.distribute_datasets_from_function(lambda context: dataset)


def sum_over_workers(strategy: tf.distribute.Strategy, value: float) -> float:
    """Returns the sum of the workers' values; waits until all of them have called it."""
    count = worker_of(strategy).count
    if count == 1:
        return value
    with report_lost_worker():
        sums = _sum_over_replicas(strategy, tf.constant(value, tf.float64))
    replicas = strategy.num_replicas_in_sync // count
    return float(strategy.experimental_local_results(sums)[0]) / replicas


@tf.function
def _sum_over_replicas(strategy: tf.distribute.Strategy, value: tf.Tensor) -> Any:
    return strategy.run(sum_over_replicas, args=(value,))


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
    try:
        yield
    except Exception:
        with contextlib.suppress(InputError):  # the others have ended: this error is the cause
            sum_over_workers(strategy, 1.0)
        raise
    if sum_over_workers(strategy, 0.0):
        raise InputError("another worker has failed; its last lines of output say why")


# How libraries beneath TensorFlow report a lack of memory, as an internal error.
_LACKS_MEMORY = re.compile(r"out.of.memory|(cublas|cudnn).*(not.initialized|handle)", re.IGNORECASE)


@contextlib.contextmanager
def report_out_of_memory() -> Iterator[None]:
    """Raises `InputError`, with the flags to change, if memory runs out in training."""
    try:
        yield
    except (MemoryError, tf.errors.OpError) as error:
        is_known = isinstance(error, MemoryError | tf.errors.ResourceExhaustedError)
        if not is_known and not _LACKS_MEMORY.search(str(error)):
            raise
        raise InputError(
            f"out of memory in training ({one_line(error)}); end other programs on this GPU if "
            "there are any, raise --accumulation_steps, which makes the batches of training and of "
            "the dev set smaller, or lower --batch_tokens in another --run_dir"
        ) from error


# How TensorFlow reports that another worker has died or left, and how it names one.
_LOST_WORKER = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.CancelledError,
)
_NAMED_WORKER = re.compile(r"/job:worker/(?:replica:\d+/)?task:(\d+)")


@contextlib.contextmanager
def report_lost_worker() -> Iterator[None]:
    """Raises `InputError` if another worker does not answer; alone, a worker has no such errors."""
    worker = worker_of_environment()
    try:
        yield
    except _LOST_WORKER as error:
        if worker is None or worker.count == 1:
            raise
        others = set(map(int, _NAMED_WORKER.findall(str(error)))) - {worker.index}
        name = f"worker {min(others)}" if len(others) == 1 else "another worker"
        raise InputError(
            f"{name} does not answer any more; see in its output why it ended, and start all "
            "workers again with the same command: they resume from the newest checkpoint"
        ) from error


# Network file systems show what another machine wrote after up to a minute.
_TIMEOUT_S = 300.0


def wait_for_files(folder: pathlib.Path, are_there: Callable[[], bool]) -> None:
    """Waits until this worker sees the files that the first one has written.

    Raises:
        InputError: it has not seen them for five minutes.
    """
    end = time.monotonic() + _TIMEOUT_S
    while not are_there():
        if time.monotonic() > end:
            raise InputError(
                f"this worker does not see in {folder} what the first worker wrote there "
                f"{_TIMEOUT_S / 60:.0f} minutes ago; share the file system of --run_dir among all "
                "workers, and give them the same flags"
            )
        time.sleep(0.5)
