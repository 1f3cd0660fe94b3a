"""Measures how fast batches come that nothing is done with."""

import time

from benchmarks.batches import real_tokens, stream
from benchmarks.engines import Channel, Job, job_of_process
from keras_transformer.commands import common
from keras_transformer.data import to_dataset


def main(job: Job) -> None:
    common.load_tensorflow()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(job.threads)
    batches = iter(to_dataset(lambda: stream(job.kind, job.vocabulary_size, job.corpus)))
    channel = Channel(f"tensorflow {tf.__version__}")
    while steps := channel.steps_wanted():
        start = time.perf_counter()
        labels = [next(batches)[1] for _ in range(steps)]
        seconds = time.perf_counter() - start
        channel.report(seconds, sum(map(real_tokens, labels)))


if __name__ == "__main__":
    main(job_of_process())
