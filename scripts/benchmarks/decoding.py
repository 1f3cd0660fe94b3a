"""Measures decoding: our exports in a session, as a model server runs them, and CTranslate2.

Each engine works as one worker with all cores and, on a CPU, as workers with one core each. The
clock runs from the ids of sentences to the ids of their translations: each engine turns ids into
the text that it takes, and back. All processes keep freed memory.
"""

import functools
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.engines import Channel, Engine, Turn, check_gpu, rates, take_turns
from keras_transformer.commands import common
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, SearchConfig, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.files import read_lines
from keras_transformer.host import keep_freed_memory

if TYPE_CHECKING:
    from keras_transformer.inference import ModelFunctions
    from keras_transformer.models import Transformer
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
# Whose translations must equal CTranslate2's in float32, but for ties.
_COMPARED = ("ours", "ours_xla", "ours_bfloat16", "ctranslate2_int8")
BEAM_SIZE = 4
# Translations are ranked by their log-probability: each engine has another length penalty.
LENGTH_PENALTY = 0.0
_SEED = 1
_RANDOM_BATCHES = 4  # of different sentences
_SINGLES = 10  # sentences of a round that are translated one at a time
_REST_SECONDS = 0.25  # between turns, until threads that wait in a loop for work fall asleep


class Sentences(NamedTuple):
    """Source sentences, the longest first.

    Attributes:
        name: in the table.
        ids: of each sentence, without EOS.
        batch_size: sentences of a batch.
        forced: whether every translation must have as many tokens as its source, and all of a
            batch as many as each other; else the model is trained, and translations end by
            themselves.
    """

    name: str
    ids: list[list[int]]
    batch_size: int
    forced: bool


def random_sentences(
    vocabulary_size: int, batch_size: int, length: int, path: str | None
) -> Sentences:
    """Makes sentences of random tokens, whose translations are to be as long as they are.

    Args:
        vocabulary_size: of the model.
        batch_size: sentences of a batch, which have one length.
        length: of all sentences, if `path` is None.
        path: a file whose lines in words are the lengths, spread evenly over them in order.
    """
    lengths, name = [length], f"{length} forced"
    if path is not None:
        lengths = sorted((len(line.split()) for line in _lines(path)), reverse=True)
        name = f"as {pathlib.Path(path).stem}"
    draw, ids = np.random.default_rng(_SEED), []
    for place in (np.arange(_RANDOM_BATCHES) + 0.5) / _RANDOM_BATCHES:
        shape = (batch_size, lengths[int(place * len(lengths))])
        ids += draw.integers(EOS_ID + 1, vocabulary_size, shape).tolist()
    return Sentences(name, ids, batch_size, forced=True)


def _lines(path: str) -> list[str]:
    lines = [line for line in read_lines(path) if line.strip()]
    if not lines:
        raise InputError(f"{path} has no sentences")
    return lines


def test_set(path: str, source: "Vocabulary", batch_size: int) -> Sentences:
    """Reads the sentences of a file."""
    longest = SearchConfig().max_source_length
    ids = [row[:longest] for row in source.encode(_lines(path))]
    return Sentences(pathlib.Path(path).stem, sorted(ids, key=len, reverse=True), batch_size, False)


def random_model(preset: str, vocabulary_size: int) -> "tuple[Transformer, Vocabulary]":
    """Makes a Transformer with random weights which, like a trained one, wants no reserved token.

    CTranslate2 could generate padding, which our search leaves out; here neither of them does.
    """
    import keras

    from keras_transformer.models import build_model
    from keras_transformer.text import learn_vocabulary

    words = (f"w{number}" for number in range(vocabulary_size))
    vocabulary = learn_vocabulary(words, size=vocabulary_size, kind="word")
    keras.utils.set_random_seed(_SEED)
    model = build_model(TransformerConfig.preset(preset, vocabulary_size=vocabulary_size))
    # Hidden states share a direction, and the embeddings of these tokens point the other way.
    signs = np.random.default_rng(_SEED).choice([-1.0, 1.0], model.config.model_dim)
    last_norm = model.decoder.final_norm or model.decoder.layers[-1].feed_forward_norm
    last_norm.bias.assign(signs / 2)
    table = np.array(model.target_embedding.table)
    table[[PAD_ID, BOS_ID, EOS_ID]] = -signs * model.config.model_dim**-0.5
    model.target_embedding.table.assign(table)
    return model, vocabulary


def write_models(
    model: "Transformer",
    source: "Vocabulary",
    target: "Vocabulary",
    sentences: Sentences,
    folder: pathlib.Path,
) -> dict[str, str]:
    """Writes the model for each engine that is installed, and returns its folders by engine."""
    import tensorflow as tf

    from keras_transformer.inference import ModelFunctions, XlaShapes
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
    engines = {
        "ours": ModelFunctions(model, source, target, search),
        "ours_xla": ModelFunctions(model, source, target, search, xla=shapes),
        "ours_default": ModelFunctions(model, source, target, default),
        "ours_bfloat16": ModelFunctions(half, source, target, search),
    }
    folders = {}
    for name, functions in engines.items():
        functions = functions.with_stored_projection()
        folders[name] = str(folder / name)
        signatures = {"find": _search_of(functions)}
        tf.saved_model.save(functions.module(), folders[name], signatures=signatures)
    rival = str(folder / "ctranslate2")
    try:
        export_ctranslate2(model, source, target, rival)
    except InputError as error:  # it is not installed
        print(f"CTranslate2 is skipped: {error}", file=sys.stderr)
        return folders
    return folders | dict.fromkeys(["ctranslate2", "ctranslate2_int8"], rival)


def _search_of(functions: "ModelFunctions") -> Any:
    """Returns the search as a function from ids [B, S] to the fields of `Hypotheses`."""
    import tensorflow as tf

    inputs = [tf.TensorSpec([None, None], tf.int32, "ids")]
    return tf.function(lambda ids: functions.search_ids(ids)._asdict(), inputs, autograph=False)


class Team:
    """An engine in one setting of workers, which translate at the same time, and their threads.

    Args:
        engine: its name.
        job: "device", and the paths "model" and "sentences".
        workers: how many.
        threads: of each worker.
        sentences: those of the file.
    """

    def __init__(
        self, engine: str, job: Mapping[str, Any], workers: int, threads: int, sentences: Sentences
    ) -> None:
        self.engine, self.setting = engine, f"{workers}x{threads}"
        # CTranslate2 has its own workers, of ours each is a process.
        self._at_once = workers if engine.startswith("ctranslate2") else 1
        self._num_processes = workers // self._at_once
        job = {**job, "engine": engine, "at_once": self._at_once, "threads": threads}
        self.process = Engine("decoding", job, ENGINES[engine], self._num_processes)
        numbers = list(range(len(sentences.ids)))
        self._sentences, size = sentences, sentences.batch_size
        self.batches = [numbers[first : first + size] for first in numbers[::size]]

    def warm_up(self) -> list[list[int]]:
        """Translates every shape of batch in each worker; returns the translations in batches."""
        lengths = list(map(len, self._sentences.ids))
        one_of_each_length = [[number] for number in dict(zip(lengths, itertools.count())).values()]
        request = {
            "batches": self.batches * self._at_once + one_of_each_length,
            "at_once": self._at_once,
        }
        first = self.process.run(*[request] * self._num_processes)
        translations: list[list[int]] = first["ids"][: len(lengths)]
        if self._sentences.forced and list(map(len, translations)) != lengths:
            raise RuntimeError(f"{self.engine} gave translations of other lengths than forced")
        return translations

    def translate(self, repetitions: int, round_: int = 0) -> Turn:
        """Translates all batches, as many at the same time as there are workers."""
        time.sleep(_REST_SECONDS)
        batches = self.batches * repetitions
        shares = (batches[first :: self._num_processes] for first in range(self._num_processes))
        return self.process.run(*({"batches": each, "at_once": self._at_once} for each in shares))

    def translate_one_by_one(self, round_: int) -> Turn:
        """Translates some sentences, different ones in each round, in the first worker."""
        order = np.random.default_rng(_SEED).permutation(len(self._sentences.ids))
        numbers = np.roll(order, -_SINGLES * round_)[:_SINGLES, None].tolist()
        return self.process.run({"batches": numbers, "at_once": 1})


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
        cores: of one worker with all of them and, on a CPU, of workers with one each.
        rounds: turns of each engine and setting.
        round_seconds: about how long a turn of the slowest takes.
    """
    path = pathlib.Path(models["ours"]).with_name("sentences.json")
    path.write_text(json.dumps(sentences._asdict()))
    settings = sorted({(1, cores), (cores, 1)}) if device == "cpu" else [(1, cores)]
    teams: list[Team] = []
    translations: dict[str, list[list[int]]] = {}
    try:
        for (workers, threads), engine in itertools.product(settings, models):
            job = {"device": device, "model": models[engine], "sentences": str(path)}
            teams.append(Team(engine, job, workers, threads, sentences))
            translations[engine] = teams[-1].warm_up()
        slowest = max(team.translate(1)["seconds"] for team in teams)
        repetitions = max(1, round(round_seconds / slowest))
        tasks: list[Callable[[int], Turn]] = []
        for team in teams:
            tasks += [functools.partial(team.translate, repetitions), team.translate_one_by_one]
        results = take_turns(tasks, rounds)
    finally:
        for team in teams:
            team.process.close()
    for team, *pair in zip(teams, results[::2], results[1::2], strict=True):
        row = {"engine": team.engine, "device": device, "setting": team.setting, "preset": preset}
        equal = None
        if team.engine in _COMPARED and "ctranslate2" in translations and not sentences.forced:
            both = zip(translations[team.engine], translations["ctranslate2"], strict=True)
            equal = sum(ours == theirs for ours, theirs in both)
        for turns, batch_size in zip(pair, (sentences.batch_size, 1), strict=True):
            latencies = np.concatenate([turn["latencies"] for turn in turns])
            yield {
                **row,
                "sentences": sentences.name,
                "batch": batch_size,
                **rates("sentences", turns),
                "latency_p50_ms": 1000 * float(np.percentile(latencies, 50)),
                "equal": equal,
                "version": team.process.version,
            }


class SavedModel:
    """A SavedModel in a session, which is how a model server runs it, without Keras."""

    def __init__(self, job: Mapping[str, Any], forced: bool) -> None:
        common.load_tensorflow()
        import tensorflow as tf
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        check_gpu(job, bool(tf.config.list_physical_devices("GPU")), "TensorFlow")
        tf.config.experimental.enable_tensor_float_32_execution(False)  # as CTranslate2's default
        self.version = f"tensorflow {tf.__version__}"
        v1 = tf.compat.v1
        v1.logging.set_verbosity(v1.logging.ERROR)  # its loader's advice is for eager code
        threads = job["threads"]
        config = v1.ConfigProto(
            inter_op_parallelism_threads=threads, intra_op_parallelism_threads=threads
        )
        session = v1.Session(graph=tf.Graph(), config=config)
        with session.graph.as_default():
            loaded = v1.saved_model.load(session, ["serve"], job["model"]).signature_def["find"]
        # Other calls spend half a millisecond in Python, which no server does.
        options = CallableOptions(
            feed=[loaded.inputs["ids"].name],
            fetch=[loaded.outputs[name].name for name in ("ids", "lengths")],
        )
        self._run = session._make_callable_from_options(options)

    def translate(self, sentences: Sequence[list[int]]) -> list[list[int]]:
        """Returns the tokens of each best translation, without EOS."""
        shape = len(sentences), max(map(len, sentences)) + 1
        source = np.full(shape, PAD_ID, np.int32)  # [B, S]
        for row, ids in zip(source, sentences, strict=True):
            row[: len(ids) + 1] = [*ids, EOS_ID]
        ids, lengths = self._run(source)
        best = zip(ids[:, 0], lengths[:, 0], strict=True)
        return [row[: length - 1].tolist() for row, length in best]


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
        # One for both sides, or those of source and target.
        paths = sorted(pathlib.Path(job["model"]).glob("*_vocabulary.json"))
        vocabularies = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        self._source: list[str] = vocabularies[0]
        self._ids = {token: number for number, token in enumerate(vocabularies[-1])}
        self._forced = forced

    def translate(self, sentences: Sequence[list[int]]) -> list[list[int]]:
        """Returns the tokens of each best translation, without EOS."""
        options: dict[str, Any] = {"beam_size": BEAM_SIZE, "length_penalty": LENGTH_PENALTY}
        if self._forced:  # all of a batch are as long as each other
            length = len(sentences[0])
            options |= {"min_decoding_length": length, "max_decoding_length": length}
        pieces = [[self._source[id_] for id_ in ids] for ids in sentences]
        results = self._translator.translate_batch(pieces, **options)
        return [[self._ids[token] for token in result.hypotheses[0]] for result in results]


def main(job: Mapping[str, Any]) -> None:
    """Translates the batches of each request, and reports the seconds of each."""
    sentences = json.loads(pathlib.Path(job["sentences"]).read_text())
    kind = CTranslate2 if job["engine"].startswith("ctranslate2") else SavedModel
    engine = kind(job, sentences["forced"])
    channel = Channel(engine.version)

    def translate(batch: list[list[int]]) -> tuple[list[list[int]], float]:
        start = time.perf_counter()
        ids = engine.translate(batch)
        return ids, time.perf_counter() - start

    while request := channel.request():
        batches = [[sentences["ids"][number] for number in batch] for batch in request["batches"]]
        with ThreadPoolExecutor(request["at_once"]) as pool:
            channel.start()
            results = list(pool.map(translate, batches))
            seconds = channel.stop()
        channel.answer(
            units=sum(map(len, batches)),
            seconds=seconds,
            latencies=[latency for _, latency in results],
            ids=list(itertools.chain.from_iterable(ids for ids, _ in results)),
        )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
