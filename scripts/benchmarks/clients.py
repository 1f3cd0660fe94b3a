"""Measures clients that send single sentences to exported models, with and without batching.

TensorFlow Serving merges waiting requests with TensorFlow's SharedBatchScheduler. The operation
BatchFunction has the same scheduler: here its function runs the export in a session of its own, as
the server's batching session does. The clients are threads of the same process, each of which sends
its next sentence as soon as it has an answer; gRPC and the network are not measured.
"""

import functools
import itertools
import json
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from benchmarks.decoding import check_not_empty, open_signature
from benchmarks.engines import Channel, Engine, Row, Target, Turn, Verdict, take_turns
from keras_transformer.commands import common
from keras_transformer.errors import InputError
from keras_transformer.files import read_lines
from keras_transformer.serving.model_folder import (
    BATCHING_FILE,
    SESSION_FILE,
    newest_version,
    read_batching,
)

SESSIONS = ("plain", SESSION_FILE)  # the server's default, and with the exported file
_LARGE_BATCH = 64  # sentences that warm up a session
_FEWEST_REQUESTS = 8  # of a client in a turn
_SEED = 1

# Of the server's command in docs/tutorials/serve.md. The second also keeps our settings of malloc
# away, whose single arena would have threads wait for each other.
ENVIRONMENT = {"TF_ENABLE_ONEDNN_OPTS": "0", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

Run = Callable[[Any], Sequence[Any]]  # from an array of texts to the outputs of a signature


class Batching(NamedTuple):
    """How requests are merged; the names are those of the server's batching file."""

    max_batch_size: int
    batch_timeout_micros: int
    num_batch_threads: int

    @property
    def name(self) -> str:
        return "x".join(map(str, self))

    @classmethod
    def of(cls, text: str, export: pathlib.Path) -> "Batching | None":
        """Returns what a value of --batching stands for; None is no batching.

        Raises:
            InputError: it stands for nothing, or the export's batching file lacks a value.
        """
        if text == "none":
            return None
        if text == "file":
            values = read_batching(export)
            missing = [name for name in cls._fields if name not in values]
            if missing:
                raise InputError(f"{export / BATCHING_FILE} does not set {missing[0]}; add it")
            return cls(*(values[name] for name in cls._fields))
        if not re.fullmatch(r"[1-9]\d*x\d+x[1-9]\d*", text):
            raise InputError(
                f"--batching must be of none, file and values such as 64x2000x2 (sentences, "
                f"microseconds, threads), separated by commas, got {text!r}"
            )
        return cls(*map(int, text.split("x")))


def measure(
    exports: Sequence[str],
    sessions: Sequence[str],
    batching: Sequence[str],
    clients: Sequence[int],
    sentences: str,
    *,
    cores: int,
    rounds: int,
    round_seconds: float,
) -> Iterator[Row]:
    """Yields a row for each export, session, way of batching, and number of clients.

    Args:
        exports: models' folders, whose newest versions are measured.
        sessions: of `SESSIONS`.
        batching: values that `Batching.of` knows.
        clients: how many send sentences at the same time.
        sentences: path of a file with a sentence a line.
        cores: threads of a plain session.
        rounds: turns of each row.
        round_seconds: about how long a turn of one client takes.
    """
    check_not_empty(_read_texts(sentences), sentences)
    versions = {export: str(newest_version(pathlib.Path(export))) for export in exports}
    settings = {export: [Batching.of(text, pathlib.Path(export)) for text in batching]
                for export in exports}  # fmt: skip
    engines: list[Engine] = []
    tasks, rows = [], []
    try:
        for export, session in itertools.product(exports, sessions):
            job = {"version": versions[export], "session": session, "threads": cores,
                   "sentences": sentences}  # fmt: skip
            engines.append(Engine("clients", job, ENVIRONMENT))
            for (text, setting), count in itertools.product(
                zip(batching, settings[export], strict=True), clients
            ):
                tasks.append((engines[-1], {"batching": setting, "clients": count}))
                case = {"export": pathlib.Path(export).name, "session": session, "batching": text,
                        "setting": setting.name if setting else "none",
                        "clients": count}  # fmt: skip
                rows.append((case, versions[export], engines[-1].greetings[0]))
        slowest = max(engine.greetings[0]["request_seconds"] for engine in engines)

        def turn(engine: Engine, request: dict[str, Any], number: int) -> Turn:
            count = max(round(round_seconds / slowest), _FEWEST_REQUESTS * request["clients"])
            return engine.run(request | {"requests": count, "first": number * count})

        results = take_turns([functools.partial(turn, *task) for task in tasks], rounds)
    finally:
        for engine in engines:
            engine.close()
    for (case, version, greeting), turns in zip(rows, results, strict=True):
        latencies = np.concatenate([turn["latencies"] for turn in turns])
        answers, batches, equal = (
            sum(turn[name] for turn in turns) for name in ("count", "batches", "equal")
        )
        files = [each for each in pathlib.Path(version).rglob("*") if each.is_file()]
        yield Row.of(
            "sentences",
            case,
            turns,
            latency_p50_ms=1000 * float(np.percentile(latencies, 50)),
            latency_p99_ms=1000 * float(np.percentile(latencies, 99)),
            mean_batch=answers / batches,
            equal_share=equal / answers,
            first_seconds=greeting["first_seconds"],
            megabytes=sum(each.stat().st_size for each in files) / 1e6,
            version=greeting["version"],
        )


def _read_texts(path: str) -> list[bytes]:
    return [line.encode() for line in read_lines(path) if line.strip()]


def check(rows: Sequence[Row]) -> list[Verdict]:
    """Compares the exported files with the server's defaults and with other ways of batching."""
    default = {"session": ("plain",), "batching": ("none",)}
    exported = {"session": (SESSION_FILE,), "batching": ("file",)}
    alone = exported | {"batching": ("none",)}
    others = {row.case["batching"] for row in rows} - {"none", "file"}
    return [
        Target(
            text=f"{count} client{'s' if count > 1 else ''} with the exported files against {name}",
            bound=bound,
            ours=exported | {"clients": (count,)},
            rival=rival | {"clients": (count,)},
            rival_name=name,
            measure="times" if count == 1 else "rates",
        ).verdict(rows)
        for count, bound, rival, name in (
            (1, 1.0, default, "the server's default"),
            (16, 1.6, default, "the server's default"),
            (16, 1.4, alone, "no batching"),
            (64, 2.0, default, "the server's default"),
            (16, 0.9, exported | {"batching": tuple(others)}, "other values"),
            (64, 0.9, exported | {"batching": tuple(others)}, "other values"),
        )
    ]


# The worker: a process with the model and the clients


def merged(run: Run, batching: Batching, clients: int) -> tuple[Run, Callable[[], None]]:
    """Returns `run` for single requests, which it merges, and a function that ends its threads."""
    import tensorflow as tf
    from tensorflow.core.protobuf.config_pb2 import CallableOptions, RunOptions

    v1 = tf.compat.v1
    config = v1.ConfigProto(
        use_per_session_threads=True, inter_op_parallelism_threads=batching.num_batch_threads
    )
    session = v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default():
        text = v1.placeholder(tf.string, [None])

        @tf.nondifferentiable_batch_function(
            *(batching.num_batch_threads, batching.max_batch_size, batching.batch_timeout_micros),
            max_enqueued_batches=clients,  # none is rejected
            autograph=False,
            enable_large_batch_splitting=False,
        )
        def batch(text: tf.Tensor) -> Any:
            return tf.numpy_function(run, [text], [tf.string, tf.float32])

        # The client's thread puts its request into the queue: the session's threads are busy.
        options = CallableOptions(
            feed=[text.name],
            fetch=[output.name for output in batch(text)],
            run_options=RunOptions(inter_op_thread_pool=-1),
        )
        return session._make_callable_from_options(options), session.close


class Service:
    """A version of an export in a session, and clients that ask it."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  (loads the tokenizer's operations)
        from google.protobuf import text_format

        version = pathlib.Path(job["version"])
        config = tf.compat.v1.ConfigProto()
        if job["session"] == SESSION_FILE:
            text = (version.parent / SESSION_FILE).read_text(encoding="utf-8")
            text_format.Parse(text, config)
        else:
            config.inter_op_parallelism_threads = job["threads"]
            config.intra_op_parallelism_threads = job["threads"]
        start = time.perf_counter()
        names = ("translations", "scores")
        self._run = open_signature(str(version), "serving_default", "text", names, config)
        texts = np.array(_read_texts(job["sentences"]), object)
        self._texts = np.random.default_rng(_SEED).permutation(texts)
        self._run(self._texts[:1])
        self.first_seconds = time.perf_counter() - start
        self._best: list[bytes] = []  # translation of each sentence, from large batches
        for first in range(0, len(texts), _LARGE_BATCH):
            self._best += self._run(self._texts[first : first + _LARGE_BATCH])[0][:, 0].tolist()
        self._batch_sizes: list[int] = []
        self._answer: Run = self._translate

    def request_seconds(self) -> float:
        """Returns how long a request takes when it is alone."""
        return float(np.median([self._ask(number)[0] for number in range(10)]))

    def serve(self, channel: Channel, request: Mapping[str, Any]) -> Turn:
        """Has clients send requests one after the other, all clients at the same time."""
        self._answer, close = self._translate, lambda: None
        if request["batching"] is not None:
            batching = Batching(*request["batching"])
            self._answer, close = merged(self._translate, batching, request["clients"])
        first, last = request["first"], request["first"] + request["requests"]
        with ThreadPoolExecutor(request["clients"]) as pool:
            list(pool.map(self._ask, range(request["clients"])))  # starts all threads
            self._batch_sizes.clear()
            channel.start()
            answers = list(pool.map(self._ask, range(first, last)))
            usage = channel.stop()
        close()
        return {
            "units": len(answers),
            "count": len(answers),
            "latencies": [seconds for seconds, _ in answers],
            "equal": sum(is_equal for _, is_equal in answers),
            "batches": len(self._batch_sizes),
            **usage,
        }

    def _translate(self, texts: Any) -> Sequence[Any]:
        self._batch_sizes.append(len(texts))
        return self._run(texts)

    def _ask(self, number: int) -> tuple[float, bool]:
        """Returns the seconds of a request, and whether its answer is that of a large batch."""
        number %= len(self._texts)
        start = time.perf_counter()
        found = self._answer(self._texts[number : number + 1])[0][0, 0]
        return time.perf_counter() - start, found == self._best[number]


def main(job: Mapping[str, Any]) -> None:
    """Serves each request of the parent."""
    common.load_tensorflow()
    import tensorflow as tf

    service = Service(job)
    channel = Channel(
        f"tensorflow {tf.__version__}",
        first_seconds=service.first_seconds,
        request_seconds=service.request_seconds(),
    )
    while request := channel.request():
        channel.answer(**service.serve(channel, request))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
