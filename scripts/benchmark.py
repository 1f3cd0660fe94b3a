"""Measures speed, beside that of other work on the same machine in the same minutes.

    python scripts/benchmark.py train
    python scripts/benchmark.py train --presets=tiny --precisions=float32 --batch=128x16 --json
    python scripts/benchmark.py train --check

train: real target tokens a second of whole training steps, ours and PyTorch's nn.Transformer,
which is left out where torch is not installed. The engines take turns, so that whatever else the
machine does slows all of them.
"""

import contextlib
import importlib.util
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from absl import flags
from benchmarks.batches import BatchKind, save_corpus
from benchmarks.engines import Engine, Job, Round
from benchmarks.report import Row, check, table_line

import common
from keras_transformer.config import PRESETS, TrainingConfig
from keras_transformer.errors import InputError

_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "multi30k"
_REAL = ("multi30k:2048", "multi30k:8192")  # the tiny preset's batch_tokens; the recipe's
_KNOWN_PRECISIONS = get_args(TrainingConfig.__dataclass_fields__["precision"].type)
_WARM_UP_STEPS = 3

_PRESETS = flags.DEFINE_list("presets", ["tiny", "base"], "Models to train.")
_PRECISIONS = flags.DEFINE_list(
    "precisions", ["float32", "mixed_bfloat16"], "Precisions to train them in."
)
_BATCHES = flags.DEFINE_list(
    "batch",
    None,
    "What to train on: 128x16 is 128 rows of 16 random symbols a side, multi30k:2048 the corpus "
    "in batches of 2,048 tokens. Default: 128x16, and for tiny multi30k:2048 and multi30k:8192.",
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", str(_DATA), "Folder of Multi30k, with train.en and train.de."
)
_VOCABULARY_SIZE = flags.DEFINE_integer(
    "vocabulary_size", 8000, "Symbols of the shared vocabulary.", lower_bound=8
)
_INPUT_PIPELINE = flags.DEFINE_boolean(
    "input_pipeline", True, "Measure how fast real batches come that nothing is done with, too."
)
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Turns of each engine.", lower_bound=1)
_SECONDS = flags.DEFINE_float(
    "round_seconds", 3.0, "About how long a turn of the slowest engine takes.", lower_bound=0
)
_THREADS = flags.DEFINE_integer(
    "threads", None, "Cores to use. Default: all that this process may use.", lower_bound=1
)
_JSON = flags.DEFINE_boolean("json", False, "Print one JSON object for each row of the table.")
_CHECK = flags.DEFINE_boolean(
    "check", False, "Hold the figures against our targets; exit with 1 where one is missed."
)


def main(arguments: list[str]) -> None:
    commands: dict[str, Callable[[], None]] = {"train": _train}
    if len(arguments) != 1 or arguments[0] not in commands:
        raise InputError(
            f"give what to measure before the flags, one of {', '.join(commands)}; got "
            f"{' '.join(arguments) or 'nothing'}"
        )
    commands[arguments[0]]()


def _train() -> None:
    cases = _cases()
    if not _JSON.value:
        print(table_line(), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = _prepare_corpus(folder) if any(kind.is_real for _, kind in cases) else None
        for preset, kind in cases:
            if kind.is_real and corpus is None:
                continue
            for row in _measure(_jobs(preset, kind, corpus)):
                rows.append(row)
                text = json.dumps(row.to_dict()) if _JSON.value else table_line(row.cells())
                print(text, flush=True)
    if _CHECK.value:
        verdicts = check(rows)
        print(*verdicts, sep="\n", file=sys.stderr if _JSON.value else sys.stdout)
        if any(verdict.met is False for verdict in verdicts):
            sys.exit(1)


def _cases() -> list[tuple[str, BatchKind]]:
    """Returns presets and batches that the flags name, checked."""
    for flag, choices in ((_PRESETS, list(PRESETS)), (_PRECISIONS, _KNOWN_PRECISIONS)):
        for value in flag.value:
            if value not in choices:
                raise InputError(
                    f"--{flag.name} must be of {', '.join(choices)}, separated by commas, "
                    f"got {value!r}"
                )
    if _BATCHES.value is not None:
        batches = [BatchKind.parse(text) for text in _BATCHES.value]
        return list(itertools.product(_PRESETS.value, batches))
    cases = [(preset, "128x16") for preset in _PRESETS.value]
    cases += [("tiny", batch) for batch in _REAL if "tiny" in _PRESETS.value]
    return [(preset, BatchKind.parse(text)) for preset, text in cases]


def _prepare_corpus(folder: str) -> str | None:
    """Tokenizes Multi30k with a vocabulary of its own, and says so where it is absent."""
    paths = [pathlib.Path(_DATA_DIR.value, name) for name in ("train.en", "train.de")]
    for path in paths:
        if not path.exists():
            print(f"Real batches are left out: {path} does not exist.", file=sys.stderr)
            return None
    common.load_tensorflow()
    from keras_transformer.data import TokenizedCorpus, read_lines
    from keras_transformer.text import learn_vocabulary

    text = [read_lines(path) for path in paths]
    vocabulary = learn_vocabulary(itertools.chain(*text), size=_VOCABULARY_SIZE.value)
    corpus = os.path.join(folder, "corpus.npz")
    save_corpus(TokenizedCorpus.from_ids(*map(vocabulary.encode, text)), corpus)
    return corpus


def _jobs(preset: str, kind: BatchKind, corpus: str | None) -> list[Job]:
    """Returns what is to be run in turns with one model and batch."""
    engines = ["ours"]
    if importlib.util.find_spec("torch"):
        engines += ["pytorch", "pytorch_sleep"]
    models = [(name, precision) for precision in _PRECISIONS.value for name in engines]
    if kind.is_real and _INPUT_PIPELINE.value:
        models.append(("input_pipeline", "-"))
    return [
        Job(
            engine=engine,
            preset=preset,
            precision=precision,
            batch=str(kind),
            vocabulary_size=_VOCABULARY_SIZE.value,
            corpus=corpus,
            threads=_THREADS.value or len(os.sched_getaffinity(0)),
        )
        for engine, precision in models
    ]


def _measure(jobs: Sequence[Job]) -> Iterator[Row]:
    """Lets engines take turns and yields the row of each."""
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(contextlib.closing(Engine(job))) for job in jobs]
        steps = _warm_up(engines)
        turns = [
            [engine.run(count) for engine, count in zip(engines, steps, strict=True)]
            for _ in range(_ROUNDS.value)
        ]
    for engine, rounds in zip(engines, zip(*turns, strict=True), strict=True):
        yield _row(engine, rounds)


def _warm_up(engines: Sequence[Engine]) -> list[int]:
    """Returns how many steps each engine is to make in a round.

    Those that train make as many as each other, so that they see the same batches.
    """
    for engine in engines:
        engine.run(_WARM_UP_STEPS)
    seconds = [engine.run(_WARM_UP_STEPS).seconds / _WARM_UP_STEPS for engine in engines]
    trains = [engine.job.engine != "input_pipeline" for engine in engines]
    slowest = max(itertools.compress(seconds, trains))
    return [
        max(1, round(_SECONDS.value / (slowest if training else own)))
        for own, training in zip(seconds, trains, strict=True)
    ]


def _row(engine: Engine, rounds: Sequence[Round]) -> Row:
    return Row(
        engine=engine.job.engine,
        preset=engine.job.preset,
        precision=engine.job.precision,
        batch=engine.job.batch,
        rounds=tuple(round_.tokens / round_.seconds for round_ in rounds),
        seconds_per_step=statistics.median(round_.seconds / round_.steps for round_ in rounds),
        steps=rounds[0].steps,
        threads=engine.job.threads,
        version=engine.version,
    )


if __name__ == "__main__":
    common.run(main)
