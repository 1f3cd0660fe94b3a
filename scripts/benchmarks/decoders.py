"""The processes that decode: our exports, in a session as a server runs them, and CTranslate2."""

import json
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.engines import Channel
from keras_transformer.commands import common
from keras_transformer.config import EOS_ID, PAD_ID

BEAM_SIZE = 4
# Translations are ranked by their log-probability: each engine has another length penalty.
LENGTH_PENALTY = 0.0


class SavedModel:
    """A SavedModel in what a model server runs it in: a session, without Keras or eager Python."""

    def __init__(self, job: Mapping[str, Any], forced: bool) -> None:
        import tensorflow as tf
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        self.version = f"tensorflow {tf.__version__}"
        v1, threads = tf.compat.v1, job["threads"]
        v1.logging.set_verbosity(v1.logging.ERROR)  # its loader's advice is for eager code
        config = v1.ConfigProto(
            intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
        )
        session = v1.Session(graph=tf.Graph(), config=config)
        with session.graph.as_default():
            loaded = v1.saved_model.load(session, ["serve"], job["model"])
        tokens = loaded.signature_def["tokens"]
        self._names = list(tokens.outputs)
        # Other calls spend half a millisecond in Python, which no server does.
        self.translate = session._make_callable_from_options(
            CallableOptions(
                feed=[tokens.inputs["source"].name],
                fetch=[tokens.outputs[name].name for name in self._names],
            )
        )

    def prepare(self, sentences: Sequence[list[int]]) -> Any:
        """Returns int32 ids [B, S] with EOS and padding."""
        source = np.full((len(sentences), max(map(len, sentences)) + 1), PAD_ID, np.int32)
        for row, ids in zip(source, sentences, strict=True):
            row[: len(ids) + 1] = [*ids, EOS_ID]
        return source

    def ids(self, inputs: Any, outputs: Any) -> list[list[int]]:
        """Returns the tokens of each best translation, without EOS."""
        named = dict(zip(self._names, outputs, strict=True))
        best = zip(named["ids"][:, 0], named["lengths"][:, 0], strict=True)
        return [row[: length - 1].tolist() for row, length in best]


class CTranslate2:
    """CTranslate2's translator in float32, which takes tokens as text."""

    def __init__(self, job: Mapping[str, Any], forced: bool) -> None:
        import ctranslate2

        self.version = f"ctranslate2 {ctranslate2.__version__}"
        self._translator = ctranslate2.Translator(
            job["model"],
            compute_type="float32",
            inter_threads=job["at_once"],
            intra_threads=job["threads"],
        )
        self._source, target = (self._tokens(job["model"], side) for side in ("source", "target"))
        self._ids = {token: number for number, token in enumerate(target)}
        self._forced = forced
        self._options: dict[str, Any] = {"beam_size": BEAM_SIZE, "length_penalty": LENGTH_PENALTY}
        self._options["use_vmap"] = job["engine"].endswith("_shortlist")

    @staticmethod
    def _tokens(folder: str, side: str) -> list[str]:
        shared = pathlib.Path(folder, "shared_vocabulary.json")
        path = shared if shared.exists() else pathlib.Path(folder, f"{side}_vocabulary.json")
        tokens: list[str] = json.loads(path.read_text(encoding="utf-8"))
        return tokens

    def prepare(self, sentences: Sequence[list[int]]) -> Any:
        return [[self._source[id_] for id_ in ids] for ids in sentences]

    def translate(self, inputs: Any, **options: Any) -> Any:
        if self._forced:  # all of a batch are as long as each other
            length = len(inputs[0])
            options |= {"min_decoding_length": length, "max_decoding_length": length}
        return self._translator.translate_batch(inputs, **(self._options | options))

    def ids(self, inputs: Any, outputs: Any) -> list[list[int]]:
        """Returns the tokens of each best translation.

        At the maximum length CTranslate2 stops without EOS and leaves EOS's probability out of the
        ranking, where ours includes it: forced hypotheses are therefore scored again, with EOS.
        """
        best = [result.hypotheses[0] for result in outputs]
        if self._forced:
            results = self.translate(inputs, num_hypotheses=BEAM_SIZE)
            sources = [source for source in inputs for _ in range(BEAM_SIZE)]
            targets = [target for result in results for target in result.hypotheses]
            scores = self._translator.score_batch(sources, targets)
            totals = iter([sum(score.log_probs) for score in scores])
            best = [max(result.hypotheses, key=lambda _: next(totals)) for result in results]
        return [[self._ids[token] for token in tokens] for tokens in best]


def main(job: Mapping[str, Any]) -> None:
    """Translates what the parent asks for, and reports each batch's seconds, until it has gone."""
    sentences = json.loads(pathlib.Path(job["sentences"]).read_text())
    kind: type[SavedModel | CTranslate2] = CTranslate2
    if not job["engine"].startswith("ctranslate2"):
        common.load_tensorflow()
        kind = SavedModel
    start = time.perf_counter()
    engine = kind(job, sentences["forced"])
    channel = Channel(engine.version, load_seconds=time.perf_counter() - start)

    def timed(inputs: Any) -> tuple[float, Any]:
        start = time.perf_counter()
        outputs = engine.translate(inputs)
        return time.perf_counter() - start, outputs

    while request := channel.request():
        batches = [[sentences["ids"][number] for number in batch] for batch in request["batches"]]
        inputs = list(map(engine.prepare, batches))
        with ThreadPoolExecutor(request["at_once"]) as pool:
            channel.start()
            results = list(pool.map(timed, inputs))
            usage = channel.stop()
        ids: list[list[int]] = []
        if request["with_ids"]:
            for batch, (_, outputs) in zip(inputs, results, strict=True):
                ids += engine.ids(batch, outputs)
        sizes = list(map(len, batches))
        channel.answer(
            units=sum(sizes),
            count=sum(sizes),
            batch_sizes=sizes,
            latencies=[seconds for seconds, _ in results],
            ids=ids,
            **usage,
        )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
