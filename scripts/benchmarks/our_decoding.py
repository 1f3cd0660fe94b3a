"""Measures the signature `tokens` of one of our SavedModels."""

import time
from typing import Any

import numpy as np

from benchmarks.decoding_process import answer_requests, job_of_process
from keras_transformer.commands import common
from keras_transformer.config import EOS_ID, PAD_ID


class SavedModel:
    """A SavedModel in what a model server runs it in: a session, without Keras or eager Python.

    Args:
        folder: of the SavedModel.
        threads: that it may use.
    """

    def __init__(self, folder: str, threads: int) -> None:
        import tensorflow as tf

        self.version = f"tensorflow {tf.__version__}"
        v1 = tf.compat.v1
        v1.logging.set_verbosity(v1.logging.ERROR)  # its loader's advice is for eager code
        config = v1.ConfigProto(
            intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
        )
        session = v1.Session(graph=tf.Graph(), config=config)
        with session.graph.as_default():
            loaded = v1.saved_model.load(session, ["serve"], folder)
        tokens = loaded.signature_def["tokens"]
        self._names = list(tokens.outputs)
        self._translate = session.make_callable(
            [tokens.outputs[name].name for name in self._names],
            feed_list=[tokens.inputs["source"].name],
        )

    def prepare(self, sentences: list[list[int]]) -> Any:
        """Returns int32 ids [B, S] with END and padding."""
        length = max(map(len, sentences)) + 1
        source = np.full((len(sentences), length), PAD_ID, np.int32)
        for row, ids in zip(source, sentences, strict=True):
            row[: len(ids) + 1] = [*ids, EOS_ID]
        return source

    def translate(self, inputs: Any) -> Any:
        return dict(zip(self._names, self._translate(inputs), strict=True))

    def ids(self, inputs: Any, outputs: Any) -> list[list[int]]:
        best = zip(outputs["ids"][:, 0], outputs["lengths"][:, 0], strict=True)
        return [row[: length - 1].tolist() for row, length in best]


def main() -> None:
    job, sentences = job_of_process()
    common.load_tensorflow()
    start = time.perf_counter()
    engine = SavedModel(job.model, job.threads)
    answer_requests(engine, sentences, time.perf_counter() - start)


if __name__ == "__main__":
    main()
