"""Measures CTranslate2 in float32 with the weights that ours has."""

import json
import pathlib
import time
from typing import Any

import ctranslate2

from benchmarks.decoding_process import (
    BEAM_SIZE,
    LENGTH_PENALTY,
    Job,
    answer_requests,
    job_of_process,
)

Pieces = list[list[str]]  # of each sentence


class CTranslate2:
    """CTranslate2's translator, which takes symbols as text."""

    def __init__(self, job: Job, forced_length: int | None) -> None:
        self.version = f"ctranslate2 {ctranslate2.__version__}"
        self._translator = ctranslate2.Translator(
            job.model,
            compute_type="float32",
            inter_threads=job.at_once,
            intra_threads=job.threads,
        )
        self._source = _symbols(job.model, "source")
        self._ids = {piece: id_ for id_, piece in enumerate(_symbols(job.model, "target"))}
        self._forced_length = forced_length
        self._options: dict[str, Any] = dict(beam_size=BEAM_SIZE, length_penalty=LENGTH_PENALTY)
        if forced_length is not None:
            lengths = dict(min_decoding_length=forced_length, max_decoding_length=forced_length)
            self._options |= lengths

    def prepare(self, sentences: list[list[int]]) -> Pieces:
        return [[self._source[id_] for id_ in ids] for ids in sentences]

    def translate(self, inputs: Pieces) -> Any:
        return self._translator.translate_batch(inputs, **self._options)

    def ids(self, inputs: Pieces, outputs: Any) -> list[list[int]]:
        best = [result.hypotheses[0] for result in outputs]
        if self._forced_length is not None:
            best = self._best_complete(inputs)
        return [[self._ids[piece] for piece in pieces] for pieces in best]

    def _best_complete(self, inputs: Pieces) -> Pieces:
        """Returns the most probable of the translations that the search ends with.

        Where CTranslate2 reaches the maximum length it stops without the end symbol, and ranks
        what it has without the end's probability, which for us belongs to the translation.
        """
        options = self._options | {"num_hypotheses": BEAM_SIZE}
        results = self._translator.translate_batch(inputs, **options)
        pairs = [
            (source, target)
            for source, result in zip(inputs, results, strict=True)
            for target in result.hypotheses
        ]
        scores = self._translator.score_batch(*map(list, zip(*pairs, strict=True)))
        worth = iter([sum(score.log_probs) for score in scores])
        return [max(result.hypotheses, key=lambda _: next(worth)) for result in results]


def _symbols(folder: str, side: str) -> list[str]:
    """Returns the text of each symbol of a side's vocabulary."""
    shared = pathlib.Path(folder, "shared_vocabulary.json")
    path = shared if shared.exists() else pathlib.Path(folder, f"{side}_vocabulary.json")
    symbols: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return symbols


def main() -> None:
    job, sentences = job_of_process()
    start = time.perf_counter()
    engine = CTranslate2(job, sentences.forced_length)
    answer_requests(engine, sentences, time.perf_counter() - start)


if __name__ == "__main__":
    main()
