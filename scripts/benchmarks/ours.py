"""Measures our training as `scripts/train.py` does it: `fit`, input pipeline and metrics."""

import collections
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.batches import real_tokens, stream
from benchmarks.engines import Channel, Job, job_of_process
from keras_transformer.commands import common
from keras_transformer.config import ModelConfig, TrainingConfig
from keras_transformer.data import Batch


def main(job: Job) -> None:
    common.load_tensorflow()
    import keras
    import tensorflow as tf

    from keras_transformer.data import to_dataset
    from keras_transformer.models import Transformer
    from keras_transformer.training import compile_for_training

    tf.config.threading.set_intra_op_parallelism_threads(job.threads)
    training = TrainingConfig.preset(job.preset, precision=job.precision)
    config = ModelConfig.preset(job.preset, vocabulary_size=job.vocabulary_size)
    keras.utils.set_random_seed(training.seed)
    model = Transformer(config, dtype=keras.DTypePolicy(training.precision))
    compile_for_training(model, training)
    tokens: collections.deque[int] = collections.deque()  # of the batches that are on their way

    def batches() -> Iterator[Batch]:
        for batch in stream(job.kind, job.vocabulary_size, job.corpus):
            tokens.append(real_tokens(batch[1]))
            yield batch

    class Rounds(keras.callbacks.Callback):
        """Stops the clock, and `fit` with it, whenever as many steps are made as were wanted."""

        def __init__(self) -> None:
            super().__init__()
            self.channel = Channel(f"keras {keras.__version__}, tensorflow {tf.__version__}")

        def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
            self._wait()

        def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
            self.steps_left -= 1
            self.tokens += tokens.popleft()
            if self.steps_left == 0:
                self.channel.report(time.perf_counter() - self.start, self.tokens)
                self._wait()

        def _wait(self) -> None:
            self.steps_left = self.channel.steps_wanted()
            self.model.stop_training = self.steps_left == 0
            self.tokens = 0
            self.start = time.perf_counter()

    model.fit(
        to_dataset(batches),
        steps_per_epoch=10**9,
        callbacks=[Rounds()],
        shuffle=False,
        verbose=0,
    )


if __name__ == "__main__":
    main(job_of_process())
