"""Measures decoding: our exports in a session, as a model server runs them, and CTranslate2.

Each engine works as one worker with all cores and, on a CPU, as workers with one core each. The
clock runs from the ids of sentences to the ids of their translations: each engine turns ids into
the text that it takes, and back. All processes keep freed memory.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.engines import Channel, Engine, Turn, check_gpu, make_row, take_turns
from keras_transformer.commands import common
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, ModelConfig, SearchConfig
from keras_transformer.config.training import preset_size
from keras_transformer.errors import InputError
from keras_transformer.host import keep_freed_memory

if TYPE_CHECKING:
    from keras_transformer.models import Seq2SeqModel, Transformer
    from keras_transformer.text import Vocabulary

# The environment of each engine. oneDNN prepares itself again for every shape, and these change
# from step to step of the plain graph.
ENGINES: dict[str, dict[str, str]] = {
    "ours": {"TF_ENABLE_ONEDNN_OPTS": "0"},
    "ours_xla": {"XLA_FLAGS": "--xla_cpu_prefer_vector_width=512"},
    "ours_default": {"TF_ENABLE_ONEDNN_OPTS": "0"},  # what users get; on a GPU, the compiled one
    "ours_bfloat16": {"TF_ENABLE_ONEDNN_OPTS": "1"},
    "ctranslate2": {},
    "ctranslate2_int8": {},
}
# The engine whose translations must equal another's, except for ties.
_MATCHES = {
    "ours": "ctranslate2", "ours_xla": "ctranslate2",
    "ours_bfloat16": "ctranslate2", "ctranslate2_int8": "ctranslate2",
}  # fmt: skip
BEAM_SIZE = 4
# Translations are ranked by their log-probability: each engine has another length penalty.
LENGTH_PENALTY = 0.0
_SEED = 1
# Size of the vocabulary, length of sentences, batch size.
_FORCED = {"tiny": (8000, 20, 64)}
_FORCED |= dict.fromkeys(("small", "base", "big"), (37000, 24, 32))
_RANDOM_BATCHES = 4  # of different sentences
_TEST_SET_BATCH = 64
_MAX_SINGLES, _MIN_SINGLES = 20, 3  # sentences of a round that are translated one at a time
_REST_SECONDS = 0.25  # between turns, until threads that wait in a loop for work fall asleep

Batches = Sequence[list[int]]  # numbers of sentences
# From a folder, which it fills, to the model's own folder for each engine.
Write = Callable[[str], dict[str, str]]

# What is translated: sentences as ids, and one model in the formats of all engines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentences:
    """Source sentences, the longest first.

    Attributes:
        name: in the table.
        ids: of each sentence, without EOS.
        batch_size: sentences of a batch, B.
        forced: whether every translation must have as many tokens as its source, and all of a
            batch as many as each other; else the model is trained, and translations end by
            themselves.
    """

    name: str
    ids: list[list[int]]
    batch_size: int
    forced: bool = False

    @classmethod
    def random(
        cls, name: str, *, vocabulary_size: int, lengths: Sequence[int], batch_size: int
    ) -> "Sentences":
        """Makes sentences of random tokens, whose translations are to be as long as they are.

        Args:
            name: in the table.
            vocabulary_size: V.
            lengths: of sentences; each batch has one of them, spread evenly over these in order.
            batch_size: B.
        """
        draw, falling = np.random.default_rng(_SEED), sorted(lengths, reverse=True)
        quantiles = (np.arange(_RANDOM_BATCHES) + 0.5) / _RANDOM_BATCHES
        ids: list[list[int]] = []
        for place in quantiles:
            shape = (batch_size, falling[int(place * len(falling))])
            ids += draw.integers(EOS_ID + 1, vocabulary_size, shape).tolist()
        return cls(name=name, ids=ids, batch_size=batch_size, forced=True)

    def batches(self) -> list[list[int]]:
        """Returns the numbers of the sentences of each batch."""
        numbers = list(range(len(self.ids)))
        return [
            numbers[first : first + self.batch_size]
            for first in range(0, len(numbers), self.batch_size)
        ]

    def batches_of_round(self, count: int) -> list[list[int]]:
        """Returns `count` batches of random sentences; a test set is translated as a whole."""
        if not self.forced:
            return self.batches()
        return list(itertools.islice(itertools.cycle(self.batches()), count))

    def singles_of_round(self, number: int, count: int) -> list[list[int]]:
        """Returns `count` batches of one sentence each, different ones in each round."""
        order = np.random.default_rng(_SEED).permutation(len(self.ids)).tolist()
        taken = itertools.islice(itertools.cycle(order), number * count, (number + 1) * count)
        return [[sentence] for sentence in taken]

    def one_of_each_length(self) -> list[list[int]]:
        """Returns batches of one sentence each, of all the lengths that there are."""
        return [[number] for number in {len(ids): n for n, ids in enumerate(self.ids)}.values()]


def random_case(
    preset: str,
    vocabulary_size: int | None = None,
    path: str | None = None,
    batch: tuple[int, int] | None = None,
) -> tuple[Sentences, Write]:
    """Returns random sentences and what writes a model with random weights.

    Args:
        preset: of the model; see `preset_size`.
        vocabulary_size: of the model, if it is not to be that of the preset's table.
        path: of a test set, whose lines in words are the lengths of a Transformer's sentences.
        batch: sentences of a batch, and their length, if they are not to be those of the table.
    """
    from keras_transformer.models import Transformer

    default_size, length, batch_size = _FORCED[preset_size(preset)]
    batch_size, length = batch or (batch_size, length)
    model, vocabulary = random_model(preset, vocabulary_size or default_size)
    name, lengths = f"{length} forced", [length]
    if path is not None and isinstance(model, Transformer):
        name, lengths = f"as {pathlib.Path(path).stem}", _line_lengths(path)
    sentences = Sentences.random(
        name, vocabulary_size=vocabulary.size, lengths=lengths, batch_size=batch_size
    )
    return sentences, functools.partial(_write_models, model, vocabulary, vocabulary, sentences)


def run_case(run_dir: str, checkpoint: str, path: str) -> tuple[Sentences, Write]:
    """Returns the sentences of a file and what writes the model of a training run.

    Raises:
        InputError: there is no such run or checkpoint, or the file has no sentences.
    """
    from keras_transformer.files import read_lines
    from keras_transformer.training.run import RunDirectory

    run = RunDirectory(run_dir)
    model = run.load_model(checkpoint)
    source, target = run.vocabularies()
    longest = SearchConfig().max_source_length
    ids = [row[:longest] for row in source.encode(read_lines(path)) if row]
    check_not_empty(ids, path)
    ids.sort(key=len, reverse=True)
    sentences = Sentences(name=pathlib.Path(path).stem, ids=ids, batch_size=_TEST_SET_BATCH)
    return sentences, functools.partial(_write_models, model, source, target, sentences)


def _line_lengths(path: str) -> list[int]:
    from keras_transformer.files import read_lines

    lengths = [len(line.split()) for line in read_lines(path) if line.strip()]
    check_not_empty(lengths, path)
    return lengths


def check_not_empty(sentences: Sequence[object], path: str) -> None:
    if not sentences:
        raise InputError(f"{path} has no sentences; give --sentences a file with one on each line")


def random_model(preset: str, vocabulary_size: int) -> "tuple[Seq2SeqModel, Vocabulary]":
    """Makes a model with random weights.

    A Transformer, like a trained one, never wants a reserved token: CTranslate2 could generate
    padding, which our search leaves out; here neither of them does.
    """
    import keras

    from keras_transformer.models import Transformer, build_model
    from keras_transformer.text import learn_vocabulary

    words = (f"w{number}" for number in range(vocabulary_size))
    vocabulary = learn_vocabulary(words, size=vocabulary_size, kind="word")
    keras.utils.set_random_seed(_SEED)
    model = build_model(ModelConfig.preset(preset, vocabulary_size=vocabulary_size))
    if not isinstance(model, Transformer):
        return model, vocabulary
    # Hidden states share a direction, and the embeddings of these tokens point the other way.
    signs = np.random.default_rng(_SEED).choice([-1.0, 1.0], model.config.model_dim)
    last_norm = model.decoder.final_norm or model.decoder.layers[-1].feed_forward_norm
    last_norm.bias.assign(signs / 2)
    table = np.array(model.target_embedding.table)
    table[[PAD_ID, BOS_ID, EOS_ID]] = -signs * model.config.model_dim**-0.5
    model.target_embedding.table.assign(table)
    return model, vocabulary


def _write_models(
    model: "Transformer",
    source: "Vocabulary",
    target: "Vocabulary",
    sentences: Sentences,
    folder: str,
) -> dict[str, str]:
    """Writes the model for each engine that is installed, and returns its folders by engine."""
    import tensorflow as tf

    from keras_transformer.inference import ModelTranslator, XlaShapes
    from keras_transformer.interop.ctranslate2 import export_ctranslate2
    from keras_transformer.models import build_model

    forced: dict[str, Any] = {}
    shapes = XlaShapes(batch_sizes=(1, sentences.batch_size))
    if sentences.forced:
        lengths = sorted(set(map(len, sentences.ids)))
        forced = {"min_length": lengths[0], "max_length": lengths[-1], "max_extra_length": 0}
        shapes = shapes._replace(lengths=tuple(length + 1 for length in lengths))  # and EOS
    default = SearchConfig(**forced)
    search = default.replace(beam_size=BEAM_SIZE, length_penalty=LENGTH_PENALTY)
    half = build_model(model.config, dtype="bfloat16")
    half.set_weights(model.get_weights())
    translators = {
        "ours": ModelTranslator(model, source, target, search),
        "ours_xla": ModelTranslator(model, source, target, search, xla=shapes),
        "ours_default": ModelTranslator(model, source, target, default),
        "ours_bfloat16": ModelTranslator(half, source, target, search),
    }
    folders = {name: f"{folder}/{name}" for name in translators}
    for name, translator in translators.items():
        # The graph of this signature is the same in an export of all of them.
        translator = translator.with_stored_projection()
        tokens = translator.function("tokens")
        tf.saved_model.save(translator.module(), folders[name], signatures={"tokens": tokens})
    rival = f"{folder}/ctranslate2"
    try:
        export_ctranslate2(model, source, target, rival)
    except InputError as error:  # it is not installed, or does not support the model
        print(f"CTranslate2 is skipped: {error}", file=sys.stderr)
        return folders
    return folders | dict.fromkeys(["ctranslate2", "ctranslate2_int8"], rival)


# The measurement


class Team:
    """An engine in one setting of workers, which translate at the same time, and their threads.

    Attributes:
        case: its part of a row.
        version: of the engine.
        load_seconds: how long its slowest worker took to load the model.
        first_seconds: how long its slowest first batch took, compilation included.
        translations: of the sentences.
    """

    def __init__(
        self, engine: str, device: str, model: str, sentences: str, workers: int, threads: int
    ) -> None:
        # CTranslate2 has its own workers, of ours each is a process.
        self._at_once = workers if engine.startswith("ctranslate2") else 1
        self._num_processes = workers // self._at_once
        self._job = {"engine": engine, "device": device, "model": model, "sentences": sentences,
                     "at_once": self._at_once, "threads": threads}  # fmt: skip
        self.case: dict[str, Any] = {"engine": engine, "device": device, "workers": workers,
                     "threads": threads, "setting": f"{workers}x{threads}"}  # fmt: skip
        self.version, self.load_seconds, self.first_seconds = "", 0.0, 0.0
        self.translations: list[list[int]] = []
        self.close = lambda: None  # no process runs yet

    def start(self, sentences: Sentences) -> None:
        """Starts the workers, and translates every shape of batch once in each."""
        engine = self.case["engine"]
        self._engine = Engine("decoding", self._job, ENGINES[engine], self._num_processes)
        self.close = self._engine.close
        batches, self._lengths = sentences.batches(), list(map(len, sentences.ids))
        self.version, self.load_seconds = (
            max(greeting[name] for greeting in self._engine.greetings)
            for name in ("version", "load_seconds")
        )
        first = self._engine.run(*[self._request(batches, with_ids=True)] * self._num_processes)
        self.first_seconds = max(first["latencies"][:: len(batches)])
        self.translations = first["ids"][: len(first["ids"]) // self._num_processes]
        lengths = list(map(len, self.translations))
        if sentences.forced and lengths != self._lengths:
            raise RuntimeError(f"{engine} gave {lengths} tokens where {self._lengths} were forced")
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
    sentences: Sentences,
    models: Mapping[str, str],
    *,
    device: str,
    cores: int,
    rounds: int,
    round_seconds: float,
) -> Iterator[dict[str, Any]]:
    """Yields two rows for each engine and setting: in batches, and one sentence at a time.

    Args:
        preset: the model's name, for the rows.
        sentences: what to translate.
        models: the model's folder for each engine.
        device: "cpu" or "gpu".
        cores: that an engine may use, as one worker with all or, on a CPU, as workers with one
            each.
        rounds: turns of each engine and setting.
        round_seconds: about how long a turn of the slowest takes.
    """
    path = pathlib.Path(next(iter(models.values()))).with_name("sentences.json")
    path.write_text(json.dumps(dataclasses.asdict(sentences)))
    teams: list[Team] = []
    try:
        settings = {(1, cores), (cores, 1)} if device == "cpu" else {(1, cores)}
        for (workers, threads), engine in itertools.product(sorted(settings), models):
            teams.append(Team(engine, device, models[engine], str(path), workers, threads))
        # Compilation for a GPU takes a minute of one core.
        with ThreadPoolExecutor(1 if device == "cpu" else len(teams)) as pool:
            list(pool.map(lambda team: team.start(sentences), teams))
        results = _take_turns(teams, sentences, rounds, round_seconds)
    finally:
        for team in teams:
            team.close()
    rivals = {team.case["engine"]: team.translations for team in teams}
    for team, turns in zip(itertools.chain(*zip(teams, teams, strict=True)), results, strict=True):
        engine, translations = team.case["engine"], team.translations
        equal, rival = None, rivals.get(_MATCHES.get(engine, ""))
        if rival is not None:
            equal = sum(a == b for a, b in zip(translations, rival, strict=True))
        latencies = np.concatenate([turn["latencies"] for turn in turns])
        yield make_row(
            "sentences",
            team.case
            | {
                "preset": preset,
                "sentences": sentences.name,
                "batch": max(turns[0]["batch_sizes"]),
            },
            turns,
            latency_p50_ms=1000 * float(np.percentile(latencies, 50)),
            latency_p99_ms=1000 * float(np.percentile(latencies, 99)),
            load_seconds=team.load_seconds,
            first_seconds=team.first_seconds,
            equal=equal,
            compared=len(translations),
            version=team.version,
        )


def _take_turns(
    teams: Sequence[Team], sentences: Sentences, rounds: int, round_seconds: float
) -> list[tuple[Turn, ...]]:
    """Returns the turns of each team in batches, followed by its turns one sentence at a time."""
    most_workers = max(team.case["workers"] for team in teams)
    slowest = max(team.translate(sentences.batches()[:most_workers])["seconds"] for team in teams)
    batches = sentences.batches_of_round(most_workers * max(1, round(round_seconds / slowest)))
    slowest = max(team.translate_one_by_one([[0]])["seconds"] for team in teams)
    count = min(max(round(round_seconds / slowest), _MIN_SINGLES), _MAX_SINGLES)

    def in_batches(team: Team, _: int) -> Turn:
        time.sleep(_REST_SECONDS)
        return team.translate(batches)

    def one_by_one(team: Team, number: int) -> Turn:
        return team.translate_one_by_one(sentences.singles_of_round(number, count))

    kinds = (in_batches, one_by_one)
    return take_turns([functools.partial(kind, team) for team in teams for kind in kinds], rounds)


# The worker: a process that translates the batches that its parent asks for


class SavedModel:
    """A SavedModel in a session, which is how a model server runs it, without Keras."""

    def __init__(self, job: Mapping[str, Any], forced: bool) -> None:
        import tensorflow as tf
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        check_gpu(job, bool(tf.config.list_physical_devices("GPU")), "TensorFlow")
        tf.config.experimental.enable_tensor_float_32_execution(False)  # as CTranslate2's default
        self.version = f"tensorflow {tf.__version__}"
        v1 = tf.compat.v1
        v1.logging.set_verbosity(v1.logging.ERROR)  # its loader's advice is for eager code
        config = v1.ConfigProto(
            inter_op_parallelism_threads=job["threads"], intra_op_parallelism_threads=job["threads"]
        )
        session = v1.Session(graph=tf.Graph(), config=config)
        with session.graph.as_default():
            loaded = v1.saved_model.load(session, ["serve"], job["model"]).signature_def["tokens"]
        # Other calls spend half a millisecond in Python, which no server does.
        options = CallableOptions(
            feed=[loaded.inputs["source"].name],
            fetch=[loaded.outputs[name].name for name in ("ids", "lengths")],
        )
        self._run = session._make_callable_from_options(options)

    def translate(self, sentences: Sequence[list[int]]) -> list[list[int]]:
        """Returns the tokens of each best translation, without EOS."""
        source = np.array([" ".join(map(str, ids)).encode() for ids in sentences], object)  # [B]
        found, lengths = self._run(source)
        best = zip(found[:, 0], lengths[:, 0], strict=True)
        return [row[: length - 1].tolist() for row, length in best]

    translate_exactly = translate


class CTranslate2:
    """CTranslate2's translator, which takes and returns tokens as text."""

    def __init__(self, job: Mapping[str, Any], forced: bool) -> None:
        import ctranslate2

        check_gpu(job, ctranslate2.get_cuda_device_count() > 0, "CTranslate2")
        keep_freed_memory()  # as ours does
        self.version = f"ctranslate2 {ctranslate2.__version__}"
        self._translator = ctranslate2.Translator(
            job["model"],
            device="cuda" if job["device"] == "gpu" else "cpu",
            compute_type="int8" if job["engine"].endswith("_int8") else "float32",
            inter_threads=job["at_once"],
            intra_threads=job["threads"],
        )
        self._source, target = (self._tokens(job["model"], side) for side in ("source", "target"))
        self._ids = {token: number for number, token in enumerate(target)}
        self._forced = forced
        self._options: dict[str, Any] = {"beam_size": BEAM_SIZE, "length_penalty": LENGTH_PENALTY}

    @staticmethod
    def _tokens(folder: str, side: str) -> list[str]:
        shared = pathlib.Path(folder, "shared_vocabulary.json")
        path = shared if shared.exists() else pathlib.Path(folder, f"{side}_vocabulary.json")
        tokens: list[str] = json.loads(path.read_text(encoding="utf-8"))
        return tokens

    def translate(self, sentences: Sequence[list[int]]) -> list[list[int]]:
        """Returns the tokens of each best translation, without EOS."""
        results = self._search(self._pieces(sentences))
        return [[self._ids[token] for token in result.hypotheses[0]] for result in results]

    def translate_exactly(self, sentences: Sequence[list[int]]) -> list[list[int]]:
        """Returns what `translate` does, of forced lengths with EOS's probability in the ranking.

        At the maximum length CTranslate2 stops without EOS and leaves out its probability, which
        ours includes: its hypotheses are scored again, with EOS.
        """
        if not self._forced:
            return self.translate(sentences)
        pieces = self._pieces(sentences)
        results = self._search(pieces, num_hypotheses=BEAM_SIZE)
        sources = [source for source in pieces for _ in range(BEAM_SIZE)]
        targets = [target for result in results for target in result.hypotheses]
        scores = self._translator.score_batch(sources, targets)
        totals = iter([sum(score.log_probs) for score in scores])
        best = [max(result.hypotheses, key=lambda _: next(totals)) for result in results]
        return [[self._ids[token] for token in tokens] for tokens in best]

    def _pieces(self, sentences: Sequence[list[int]]) -> list[list[str]]:
        return [[self._source[id_] for id_ in ids] for ids in sentences]

    def _search(self, pieces: list[list[str]], **options: Any) -> Any:
        if self._forced:  # all of a batch are as long as each other
            length = len(pieces[0])
            options |= {"min_decoding_length": length, "max_decoding_length": length}
        return self._translator.translate_batch(pieces, **(self._options | options))


def main(job: Mapping[str, Any]) -> None:
    """Translates the batches of each request, and reports the seconds of each."""
    sentences = json.loads(pathlib.Path(job["sentences"]).read_text())
    kind: type[SavedModel | CTranslate2] = CTranslate2
    if not job["engine"].startswith("ctranslate2"):
        common.load_tensorflow()
        kind = SavedModel
    else:
        import ctranslate2  # noqa: F401  (no part of loading a model)
    start = time.perf_counter()
    engine = kind(job, sentences["forced"])
    channel = Channel(engine.version, load_seconds=time.perf_counter() - start)

    def seconds_of(batch: list[list[int]]) -> float:
        start = time.perf_counter()
        engine.translate(batch)
        return time.perf_counter() - start

    while request := channel.request():
        batches = [[sentences["ids"][number] for number in batch] for batch in request["batches"]]
        with ThreadPoolExecutor(request["at_once"]) as pool:
            channel.start()
            latencies = list(pool.map(seconds_of, batches))
            usage = channel.stop()
        ids: list[list[int]] = []
        if request["with_ids"]:
            for batch in batches:
                ids += engine.translate_exactly(batch)
        sizes = list(map(len, batches))
        channel.answer(
            units=sum(sizes),
            count=sum(sizes),
            batch_sizes=sizes,
            latencies=latencies,
            ids=ids,
            **usage,
        )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
