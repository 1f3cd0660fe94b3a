"""Measures decoding: engines take turns, each as one worker with all cores and as workers of one.

A worker is a process that translates what its parent asks for: our export in a session, as a model
server runs it, or CTranslate2.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.engines import Channel, Engine, Row, Turn, take_turns
from keras_transformer.commands import common

if TYPE_CHECKING:
    from benchmarks.workloads import Sentences

# The environment of each engine. oneDNN prepares itself again for every shape, and these change
# from step to step of the plain graph.
ENGINES: dict[str, dict[str, str]] = {
    "ours": {"TF_ENABLE_ONEDNN_OPTS": "0"},
    "ours_shortlist": {"TF_ENABLE_ONEDNN_OPTS": "0"},
    "ours_xla": {"XLA_FLAGS": "--xla_cpu_prefer_vector_width=512"},
    "ctranslate2": {},
    "ctranslate2_shortlist": {},
}
_MOST_SINGLES, _FEWEST_SINGLES = 20, 3  # sentences of a round that are translated one at a time
_REST_SECONDS = 0.25  # between turns, until threads that wait in a loop for work fall asleep

Batches = Sequence[list[int]]  # numbers of sentences


class Team:
    """An engine in one setting of workers, which translate at the same time, and their threads.

    Attributes:
        case: its part of a row.
        greeting: with the version, and how long the slowest worker took to load the model.
        first_seconds: how long its slowest first batch took, compilation included.
        translations: of the sentences.
    """

    def __init__(self, engine: str, model: str, sentences: str, workers: int, threads: int) -> None:
        # CTranslate2 has workers of its own, the others have a process for each.
        self._at_once = workers if engine.startswith("ctranslate2") else 1
        self._num_processes = workers // self._at_once
        job = {"engine": engine, "model": model, "sentences": sentences,
               "at_once": self._at_once, "threads": threads}  # fmt: skip
        self.case: dict[str, Any] = {"engine": engine, "workers": workers, "threads": threads,
                     "setting": f"{workers}x{threads}"}  # fmt: skip
        self._engine = Engine("decoding", job, ENGINES[engine], self._num_processes)
        self.version: str = self._engine.greetings[0]["version"]
        self.load_seconds = max(each["load_seconds"] for each in self._engine.greetings)
        self.first_seconds = 0.0
        self.translations: list[list[int]] = []
        self.close = self._engine.close

    def warm_up(self, sentences: "Sentences") -> None:
        """Translates every shape of batch once in every worker."""
        batches, self._lengths = sentences.batches(), list(map(len, sentences.ids))
        first = self._engine.run(*[self._request(batches, with_ids=True)] * self._num_processes)
        self.first_seconds = max(first["latencies"][:: len(batches)])
        self.translations = first["ids"][: len(first["ids"]) // self._num_processes]
        for again in (batches * self._at_once, sentences.one_of_each_length()):
            self._engine.run(*[self._request(again)] * self._num_processes)

    def translate(self, batches: Batches) -> Turn:
        """Translates batches, as many at the same time as there are workers."""
        # Each gets about as many tokens, as workers do that take the next batch when they are done.
        shares: list[list[list[int]]] = [[] for _ in range(self._num_processes)]
        for batch in batches:
            min(shares, key=self._num_tokens).append(batch)
        return self._engine.run(*map(self._request, shares))

    def translate_one_by_one(self, batches: Batches) -> Turn:
        """Translates batches one after the other in the first worker."""
        return self._engine.run(self._request(batches) | {"at_once": 1})

    def _num_tokens(self, batches: Batches) -> int:
        """Returns how many tokens batches have with their padding, which their time goes by."""
        return sum(len(batch) * max(self._lengths[each] for each in batch) for batch in batches)

    def _request(self, batches: Batches, with_ids: bool = False) -> dict[str, Any]:
        return {"batches": batches, "at_once": self._at_once, "with_ids": with_ids}


def measure(
    preset: str,
    sentences: "Sentences",
    models: Mapping[str, str],
    *,
    cores: int,
    rounds: int,
    round_seconds: float,
) -> Iterator[Row]:
    """Yields two rows for each engine and setting: in batches, and one sentence at a time.

    Args:
        preset: the model's name, for the rows.
        sentences: what to translate.
        models: the model's folder for each engine.
        cores: that an engine may use, as one worker with all or as workers with one each.
        rounds: turns of each engine and setting.
        round_seconds: about how long a turn of the slowest takes.
    """
    path = pathlib.Path(next(iter(models.values()))).with_name("sentences.json")
    path.write_text(json.dumps(dataclasses.asdict(sentences)))
    teams: list[Team] = []
    try:
        for (workers, threads), engine in itertools.product(
            sorted({(1, cores), (cores, 1)}), models
        ):
            teams.append(Team(engine, models[engine], str(path), workers, threads))
            teams[-1].warm_up(sentences)
            lengths, forced = (
                list(map(len, ids)) for ids in (teams[-1].translations, sentences.ids)
            )
            if sentences.forced and lengths != forced:
                raise RuntimeError(f"{engine} gave {lengths} tokens where {forced} were forced")
        results = _take_turns(teams, sentences, rounds, round_seconds)
    finally:
        for team in teams:
            team.close()
    rivals = {team.case["engine"]: team.translations for team in teams}
    for team, turns in zip(itertools.chain(*zip(teams, teams, strict=True)), results, strict=True):
        batch = max(turns[0]["batch_sizes"])
        case = {**team.case, "preset": preset, "sentences": sentences.name, "batch": batch,
                "one_length": sentences.have_one_length}  # fmt: skip
        yield _row(team, case, turns, rivals)


def _take_turns(
    teams: Sequence[Team], sentences: "Sentences", rounds: int, round_seconds: float
) -> list[tuple[Turn, ...]]:
    """Returns the turns of each team in batches, followed by its turns one sentence at a time."""
    most_workers = max(team.case["workers"] for team in teams)
    slowest = max(team.translate(sentences.batches()[:most_workers])["seconds"] for team in teams)
    batches = sentences.batches_of_round(most_workers * max(1, round(round_seconds / slowest)))
    slowest = max(team.translate_one_by_one([[0]])["seconds"] for team in teams)
    count = min(max(round(round_seconds / slowest), _FEWEST_SINGLES), _MOST_SINGLES)

    def in_batches(team: Team, _: int) -> Turn:
        time.sleep(_REST_SECONDS)
        return team.translate(batches)

    def one_by_one(team: Team, number: int) -> Turn:
        return team.translate_one_by_one(sentences.singles_of_round(number, count))

    kinds = (in_batches, one_by_one)
    return take_turns([functools.partial(kind, team) for team in teams for kind in kinds], rounds)


def _row(
    team: Team, case: dict[str, Any], turns: Sequence[Turn], rivals: dict[str, list[list[int]]]
) -> Row:
    latencies = np.concatenate([turn["latencies"] for turn in turns])
    equal = None
    rival = "ctranslate2_shortlist" if case["engine"].endswith("_shortlist") else "ctranslate2"
    if rival in rivals:
        equal = sum(a == b for a, b in zip(team.translations, rivals[rival], strict=True))
    return Row.of(
        "sentences",
        case,
        turns,
        latency_p50_ms=1000 * float(np.percentile(latencies, 50)),
        latency_p99_ms=1000 * float(np.percentile(latencies, 99)),
        load_seconds=team.load_seconds,
        first_seconds=team.first_seconds,
        equal=equal,
        compared=len(team.translations),
        version=team.version,
    )


# The worker

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
        """Returns the ids of each sentence as text [B]."""
        return np.array([" ".join(map(str, ids)).encode() for ids in sentences], object)

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
