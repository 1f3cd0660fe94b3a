"""Which devices a run trains on, of this machine and of others."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_transformer.data.batches import Batch, to_dataset
from keras_transformer.data.corpus import TokenizedCorpus
from keras_transformer.errors import InputError, check_choice, one_line
from keras_transformer.host import has_bfloat16
from keras_transformer.models.update import sum_over_replicas

STRATEGIES = ("auto", "none", "mirrored", "multi_worker")


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
    has_cluster = bool(os.environ.get("TF_CONFIG"))
    if name == "multi_worker" and not has_cluster:
        raise InputError(
            "strategy multi_worker needs TF_CONFIG in the environment of each worker, such as "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}'
        )
    if has_cluster and name in ("auto", "multi_worker"):
        try:
            resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
            several = resolver.cluster_spec().num_tasks("worker") > 1
            if several or name == "multi_worker":
                with report_lost_worker():
                    return tf.distribute.MultiWorkerMirroredStrategy()
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"TF_CONFIG is damaged: {one_line(error)}") from error
    gpus = tf.config.list_logical_devices("GPU")
    if name == "none" or (name == "auto" and len(gpus) < 2):
        return tf.distribute.get_strategy()
    devices = gpus or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def worker_index(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of this worker; worker 0, also where there is one only, writes files."""
    resolver = strategy.cluster_resolver
    return (resolver.task_id or 0) if resolver else 0


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Returns how many processes train together."""
    resolver = strategy.cluster_resolver
    return resolver.cluster_spec().num_tasks("worker") if resolver else 1


def wait_for_workers(strategy: tf.distribute.Strategy, flag: bool = False) -> bool:
    """Waits until all workers are here, and returns whether any of them has set its flag."""
    if num_workers(strategy) == 1:
        return flag
    with report_lost_worker():
        return bool(_sum_over_workers(strategy, tf.constant(float(flag))) > 0)


@tf.function
def _sum_over_workers(strategy: tf.distribute.Strategy, value: tf.Tensor) -> Any:
    total = strategy.run(lambda: sum_over_replicas(value))
    return strategy.experimental_local_results(total)[0]


def distributed(
    strategy: tf.distribute.Strategy,
    make_batches: Callable[..., Iterator[Batch]],
    corpus: TokenizedCorpus,
    **options: Any,
) -> Any:
    """Returns a data set that gives each device of this worker its rows of a batch."""
    shard = worker_index(strategy), num_workers(strategy)
    replicas = strategy.num_replicas_in_sync
    devices = replicas // shard[1]  # of this worker

    def shares() -> Iterator[Batch]:
        batches = make_batches(corpus, shard=shard, replicas=replicas, **options)
        for inputs, labels in batches:
            rows = len(labels) // devices
            for share in (slice(rows * device, rows * (device + 1)) for device in range(devices)):
                yield {side: ids[share] for side, ids in inputs.items()}, labels[share]

    dataset = to_dataset(shares)
    # Its elements are those of the local devices in turn.
    return strategy.distribute_datasets_from_function(lambda context: dataset)


# What the machine has


def auto_precision() -> str:
    """Returns the policy that `precision=auto` means here: the fastest that trains as well.

    On GPUs it follows from the compute capability of the oldest one. Processors without
    instructions for bfloat16 are slower in it than in float32: 0.7 of its rate with AVX2.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "mixed_bfloat16" if has_bfloat16() else "float32"
    details = map(tf.config.experimental.get_device_details, gpus)
    major, _ = min(gpu.get("compute_capability", (0, 0)) for gpu in details)
    return "mixed_bfloat16" if major >= 8 else "mixed_float16" if major == 7 else "float32"


def describe_devices(strategy: tf.distribute.Strategy) -> str:
    """Returns the devices of a strategy: "the CPU", "the GPU", "2 CPUs"."""
    replicas = strategy.num_replicas_in_sync
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return f"{replicas} {kind}s" if replicas > 1 else f"the {kind}"


# Errors of TensorFlow that a user can act on


@contextlib.contextmanager
def report_out_of_memory() -> Iterator[None]:
    """Raises `InputError`, with the flags to change, if memory runs out in training."""
    try:
        yield
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        raise InputError(
            f"out of memory in training ({one_line(error)}); raise --accumulation_steps, which "
            "splits batches, or lower --batch_tokens in another --run_dir"
        ) from error


@contextlib.contextmanager
def report_lost_worker() -> Iterator[None]:
    """Raises `InputError` if another worker does not answer; alone, a worker has no such errors."""
    try:
        yield
    except (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.DeadlineExceededError,
        tf.errors.CancelledError,
    ) as error:
        raise InputError(
            f"another worker does not answer any more ({one_line(error)}); start all workers again "
            "with the same command: they resume from the newest checkpoint"
        ) from error
