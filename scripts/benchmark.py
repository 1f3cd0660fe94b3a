"""Measures speed, beside that of other work on the same machine in the same minutes.

    python scripts/benchmark.py train
    python scripts/benchmark.py train --presets=tiny --precisions=float32 --batch=128x16 --json
    python scripts/benchmark.py train --check
    python scripts/benchmark.py decode --presets=tiny
    python scripts/benchmark.py decode --presets= --run_dir=runs/multi30k

train: real target tokens a second of whole training steps, ours and PyTorch's nn.Transformer,
which is left out where torch is not installed.
decode: sentences a second and latency of beam search with 4 hypotheses, our exports as a plain
graph and with XLA, and CTranslate2 with the same weights, which is left out where it is not
installed. Random weights translate random sentences, to a forced length; the model of a training
run translates a test set. Each engine works as one worker with all cores and as workers with one
core each.

The engines take turns, so that whatever else the machine does slows all of them.
"""

import importlib.util
import itertools
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from absl import flags

from benchmarks import decoding, training
from benchmarks.batches import BatchKind, save_corpus
from benchmarks.decoding_report import check_decoding, decoding_line
from benchmarks.engines import Job
from benchmarks.report import Verdict, check, table_line
from benchmarks.sentences import Sentences
from keras_transformer.commands import common
from keras_transformer.commands.main import run
from keras_transformer.config import PRESETS, TrainingConfig
from keras_transformer.cores import num_cores
from keras_transformer.errors import InputError

_REAL = ("multi30k:2048", "multi30k:8192")  # the tiny preset's batch_tokens; the recipe's
_KNOWN_PRECISIONS = get_args(TrainingConfig.__dataclass_fields__["precision"].type)
_TRAINING_VOCABULARY = 8000

_PRESETS = flags.DEFINE_list("presets", ["tiny", "base"], "Models to measure.")
_PRECISIONS = flags.DEFINE_list(
    "precisions", ["float32", "mixed_bfloat16"], "Precisions to train them in."
)
_BATCHES = flags.DEFINE_list(
    "batch",
    None,
    "What to train on: 128x16 is 128 rows of 16 random symbols a side, multi30k:2048 the corpus "
    "in batches of 2,048 tokens. Default: 128x16, and for tiny multi30k:2048 and multi30k:8192.",
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of Multi30k, with train.en and train.de.")
_VOCABULARY_SIZE = flags.DEFINE_integer(
    "vocabulary_size",
    None,
    "Symbols of the shared vocabulary. Default: 8000; of base and big 37000 to decode.",
    lower_bound=8,
)
_INPUT_PIPELINE = flags.DEFINE_boolean(
    "input_pipeline", True, "Measure how fast real batches come that nothing is done with, too."
)
_RUN_DIR = flags.DEFINE_string(
    "run_dir", None, "Training run whose model translates --sentences, to decode."
)
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", "auto", "Which checkpoint of --run_dir, as for translate.py; one only."
)
_SENTENCES = flags.DEFINE_string("sentences", None, "Test set to decode, one sentence a line.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Turns of each engine.", lower_bound=1)
_SECONDS = flags.DEFINE_float(
    "round_seconds", 3.0, "About how long a turn of the slowest engine takes.", lower_bound=0
)
_THREADS = flags.DEFINE_integer(
    "threads", None, "Cores to use. Default: all that this process may use.", lower_bound=1
)
_JSON = flags.DEFINE_boolean("json", False, "Print one JSON object for each row of the table.")
_CHECK = flags.DEFINE_boolean(
    "check",
    False,
    "Hold the figures against the targets of BUILD_NOTES.md; exit with 1 where one is missed, or "
    "none was measured.",
)


def main(arguments: list[str]) -> None:
    commands: dict[str, Callable[[], None]] = {"train": _train, "decode": _decode}
    if len(arguments) != 1 or arguments[0] not in commands:
        raise InputError(
            f"give what to measure before the flags, one of {', '.join(commands)}; got "
            f"{' '.join(arguments) or 'nothing'}"
        )
    _refuse_flags_of_others(arguments[0])
    for preset in _PRESETS.value:
        _check_choice(_PRESETS.name, preset, list(PRESETS))
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
            for row in training.measure(_jobs(preset, kind, corpus), **_rounds()):
                rows.append(row)
                text = json.dumps(row.to_dict()) if _JSON.value else table_line(row.cells())
                print(text, flush=True)
    if _CHECK.value:
        _tell(check(rows))


def _decode() -> None:
    if not _JSON.value:
        print(decoding_line(), flush=True)
    rows = []
    for preset, sentences, write in _decoding_cases():
        with tempfile.TemporaryDirectory() as folder:
            for row in decoding.measure(
                preset, sentences, write(folder), cores=_cores(), **_rounds()
            ):
                rows.append(row)
                text = json.dumps(row.to_dict()) if _JSON.value else decoding_line(row.cells())
                print(text, flush=True)
    if _CHECK.value:
        _tell(check_decoding(rows))


def _decoding_cases() -> Iterator[tuple[str, Sentences, Callable[[str], dict[str, str]]]]:
    """Yields the name of a model, what it is to translate, and how to write it to a folder."""
    common.load_tensorflow()
    from benchmarks.translators import random_case, run_case

    real = None  # read first, so that a wrong run is told at once
    if _RUN_DIR.value is None or _SENTENCES.value is None:
        print(
            "Real sentences are left out: --run_dir names no trained model, or --sentences none.",
            file=sys.stderr,
        )
    else:
        real = run_case(_RUN_DIR.value, _CHECKPOINT.value, _SENTENCES.value)
    for preset in _PRESETS.value:
        yield preset, *random_case(preset, _VOCABULARY_SIZE.value)
    if real is not None:
        yield "run", *real


def _refuse_flags_of_others(command: str) -> None:
    """Raises `InputError` for a flag that only another command reads."""
    own = {
        "train": (_PRECISIONS, _BATCHES, _DATA_DIR, _INPUT_PIPELINE),
        "decode": (_RUN_DIR, _CHECKPOINT, _SENTENCES),
    }
    for other, holders in own.items():
        for holder in holders if other != command else ():
            if holder.present:
                raise InputError(f"--{holder.name} has no use with {command}; leave it out")


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InputError(
            f"--{name} must be of {', '.join(choices)}, separated by commas, got {value!r}"
        )


def _cores() -> int:
    return _THREADS.value or num_cores()


def _rounds() -> dict[str, Any]:
    return {"rounds": _ROUNDS.value, "round_seconds": _SECONDS.value}


def _tell(verdicts: Sequence[Verdict]) -> None:
    """Prints which targets are met, and exits with 1 where one is missed or none was measured."""
    print(*verdicts, sep="\n", file=sys.stderr if _JSON.value else sys.stdout)
    results = {verdict.met for verdict in verdicts}
    if False in results or True not in results:
        sys.exit(1)


def _cases() -> list[tuple[str, BatchKind]]:
    """Returns presets and batches that the flags name, checked."""
    for precision in _PRECISIONS.value:
        _check_choice(_PRECISIONS.name, precision, _KNOWN_PRECISIONS)
    if _BATCHES.value is not None:
        batches = [BatchKind.parse(text) for text in _BATCHES.value]
        return list(itertools.product(_PRESETS.value, batches))
    cases = [(preset, "128x16") for preset in _PRESETS.value]
    cases += [("tiny", batch) for batch in _REAL if "tiny" in _PRESETS.value]
    return [(preset, BatchKind.parse(text)) for preset, text in cases]


def _prepare_corpus(folder: str) -> str | None:
    """Tokenizes Multi30k with a vocabulary of its own, and says so where it is absent."""
    if _DATA_DIR.value is None:
        print("Real batches are left out: --data_dir names no corpus.", file=sys.stderr)
        return None
    paths = [pathlib.Path(_DATA_DIR.value, name) for name in ("train.en", "train.de")]
    for path in paths:
        if not path.exists():
            print(f"Real batches are left out: {path} does not exist.", file=sys.stderr)
            return None
    common.load_tensorflow()
    from keras_transformer.data import TokenizedCorpus, read_lines
    from keras_transformer.text import learn_vocabulary

    text = [read_lines(path) for path in paths]
    vocabulary = learn_vocabulary(
        itertools.chain(*text), size=_VOCABULARY_SIZE.value or _TRAINING_VOCABULARY
    )
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
            vocabulary_size=_VOCABULARY_SIZE.value or _TRAINING_VOCABULARY,
            corpus=corpus,
            threads=_cores(),
        )
        for engine, precision in models
    ]


if __name__ == "__main__":
    run(main)
