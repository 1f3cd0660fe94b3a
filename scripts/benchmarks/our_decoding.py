"""Measures the signature `tokens` of one of our SavedModels."""

import time
from typing import Any

import numpy as np

import common
from benchmarks.decoding_process import answer_requests, job_of_process
from keras_transformer.config import END_ID, PAD_ID


class SavedModel:
    """A SavedModel, loaded without Keras, as a server has it."""

    def __init__(self, folder: str) -> None:
        import tensorflow as tf

        self.version = f"tensorflow {tf.__version__}"
        self._loaded = tf.saved_model.load(folder)  # the signature lives as long as this
        self._tokens = self._loaded.signatures["tokens"]
        self._constant = tf.constant

    def prepare(self, sentences: list[list[int]]) -> Any:
        """Returns int32 ids [B, S] with END and padding."""
        length = max(map(len, sentences)) + 1
        source = np.full((len(sentences), length), PAD_ID, np.int32)
        for row, ids in zip(source, sentences, strict=True):
            row[: len(ids) + 1] = [*ids, END_ID]
        return source

    def translate(self, inputs: Any) -> Any:
        outputs = self._tokens(source=self._constant(inputs))
        return {name: value.numpy() for name, value in outputs.items()}

    def ids(self, inputs: Any, outputs: Any) -> list[list[int]]:
        best = zip(outputs["ids"][:, 0], outputs["lengths"][:, 0], strict=True)
        return [row[: length - 1].tolist() for row, length in best]


def main() -> None:
    job, sentences = job_of_process()
    common.load_tensorflow()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(job.threads)
    tf.config.threading.set_inter_op_parallelism_threads(job.threads)
    start = time.perf_counter()
    engine = SavedModel(job.model)
    answer_requests(engine, sentences, time.perf_counter() - start)


if __name__ == "__main__":
    main()
