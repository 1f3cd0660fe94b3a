"""Measures speed, beside that of other work on the same machine in the same minutes.

    python scripts/benchmark.py train
    python scripts/benchmark.py train --presets=tiny --precisions=float32 --batch=128x16 --json
    python scripts/benchmark.py train --check
    python scripts/benchmark.py decode --presets=tiny
    python scripts/benchmark.py decode --presets= --run_dir=runs/multi30k

train: real target tokens a second of whole training steps, ours and PyTorch's nn.Transformer,
as people find it and with memory kept, where torch is installed.
decode: sentences a second and latency of beam search with 4 hypotheses, our exports as a plain
graph and with XLA, and CTranslate2 with the same weights, which is left out where it is not
installed. Random weights translate random sentences, to a forced length; the model of a training
run translates a test set. Each engine works as one worker with all cores and as workers with one
core each.

The engines take turns, so that whatever else the machine does slows all of them. Minor page faults
and system time are those of a training step or of a sentence.
"""

import importlib.util
import itertools
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from absl import flags

from benchmarks import decoding, report, training
from benchmarks.engines import Row
from keras_transformer.commands import common
from keras_transformer.commands.main import run
from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.host import cpu_flags, has_bfloat16, num_cores

_REAL = ("multi30k:2048", "multi30k:8192")  # the tiny preset's batch_tokens; the recipe's
_KNOWN_PRECISIONS = ["float32", "mixed_bfloat16", "mixed_float16"]
_TRAINING_VOCABULARY = 8000

_PRESETS = flags.DEFINE_list("presets", ["tiny", "base"], "Models to measure.")
_PRECISIONS = flags.DEFINE_list(
    "precisions", ["float32", "mixed_bfloat16"], "Precisions to train them in."
)
_BATCHES = flags.DEFINE_list(
    "batch",
    None,
    "What to train on: 128x16 is 128 rows of 16 random tokens a side, multi30k:2048 the corpus "
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
    others = {
        "decode": (_PRECISIONS, _BATCHES, _DATA_DIR, _INPUT_PIPELINE),
        "train": (_RUN_DIR, _CHECKPOINT, _SENTENCES),
    }
    for holder in others[arguments[0]]:
        if holder.present:
            raise InputError(f"--{holder.name} has no use with {arguments[0]}; leave it out")
    _check_choices(_PRESETS, list(ModelConfig.presets()))
    commands[arguments[0]]()


def _train() -> None:
    _check_choices(_PRECISIONS, _KNOWN_PRECISIONS)
    batches = ["128x16", *_REAL] if _BATCHES.value is None else _BATCHES.value
    cases = [
        (preset, training.batch_name(batch))
        for preset, batch in itertools.product(_PRESETS.value, batches)
        if _BATCHES.value is not None or preset == "tiny" or batch not in _REAL
    ]
    with tempfile.TemporaryDirectory() as folder:
        are_real = [training.is_real(batch) for _, batch in cases]
        corpus = _prepare_corpus(folder) if any(are_real) else None
        rows = _show(
            row
            for (preset, batch), is_real in zip(cases, are_real, strict=True)
            if corpus is not None or not is_real
            for row in training.measure(_jobs(preset, batch, corpus), **_rounds())
        )
    _tell(report.check_training(rows, bfloat16=has_bfloat16()))


def _decode() -> None:
    common.load_tensorflow()
    from benchmarks.workloads import random_case, run_case

    real = None  # read first, so that a wrong run is reported at once
    if _RUN_DIR.value is None or _SENTENCES.value is None:
        print(
            "Real sentences are left out: --run_dir names no trained model, or --sentences none.",
            file=sys.stderr,
        )
    else:
        real = run_case(_RUN_DIR.value, _CHECKPOINT.value, _SENTENCES.value)

    def rows() -> Iterator[Row]:
        for preset in [*_PRESETS.value, "run"]:
            case = real if preset == "run" else random_case(preset, _VOCABULARY_SIZE.value)
            if case is not None:
                sentences, write = case
                with tempfile.TemporaryDirectory() as folder:
                    models = write(folder)
                    options = {"cores": _cores(), **_rounds()}
                    yield from decoding.measure(preset, sentences, models, **options)

    _tell(report.check_decoding(_show(rows())))


def _show(rows: Iterable[Row]) -> list[Row]:
    """Prints rows as they come, and returns them all."""
    if not _JSON.value:
        features = cpu_flags() & {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16"}
        print(f"{_cores()} cores with {', '.join(sorted(features)) or 'unknown features'}")
    shown: list[Row] = []
    for row in rows:
        lines = (
            [json.dumps(row.to_dict())]
            if _JSON.value
            else report.table_lines(row, with_head=not shown)
        )
        print(*lines, sep="\n", flush=True)
        shown.append(row)
    return shown


def _check_choices(holder: "flags.FlagHolder[list[str]]", choices: Sequence[str]) -> None:
    for value in holder.value:
        if value not in choices:
            raise InputError(
                f"--{holder.name} must be of {', '.join(choices)}, separated by commas, "
                f"got {value!r}"
            )


def _cores() -> int:
    return _THREADS.value or num_cores()


def _rounds() -> dict[str, Any]:
    return {"rounds": _ROUNDS.value, "round_seconds": _SECONDS.value}


def _tell(verdicts: Sequence[report.Verdict]) -> None:
    """Prints which targets are met, and exits with 1 where one is missed or none was measured."""
    if not _CHECK.value:
        return
    print(*verdicts, sep="\n", file=sys.stderr if _JSON.value else sys.stdout)
    results = {verdict.met for verdict in verdicts}
    if False in results or True not in results:
        sys.exit(1)


def _prepare_corpus(folder: str) -> str | None:
    """Tokenizes Multi30k with a vocabulary of its own, and says so where it is absent."""
    paths = [pathlib.Path(_DATA_DIR.value or "", name) for name in ("train.en", "train.de")]
    missing = [f"{path} does not exist." for path in paths if not path.exists()]
    if _DATA_DIR.value is None or missing:
        reason = "--data_dir names no corpus." if _DATA_DIR.value is None else missing[0]
        print(f"Real batches are left out: {reason}", file=sys.stderr)
        return None
    common.load_tensorflow()
    import numpy as np

    from keras_transformer.data import TokenizedCorpus, read_lines
    from keras_transformer.text import learn_vocabulary

    text = [read_lines(path) for path in paths]
    size = _VOCABULARY_SIZE.value or _TRAINING_VOCABULARY
    vocabulary = learn_vocabulary(itertools.chain(*text), size=size)
    corpus = vars(TokenizedCorpus.from_ids(*map(vocabulary.encode, text)))
    path = os.path.join(folder, "corpus.npz")
    np.savez(path, **{name: value for name, value in corpus.items() if name != "dropped"})
    return path


def _jobs(preset: str, batch: str, corpus: str | None) -> list[training.Job]:
    """Returns what is to be run in turns with one model and batch."""
    has_torch = importlib.util.find_spec("torch") is not None
    engines = [
        (engine, precision)
        for precision in _PRECISIONS.value
        for engine, (module, _) in training.ENGINES.items()
        if engine != "input_pipeline" and (module != "pytorch" or has_torch)
    ]
    if training.is_real(batch) and _INPUT_PIPELINE.value:
        engines.append(("input_pipeline", "-"))
    return [
        {
            "engine": engine,
            "preset": preset,
            "precision": precision,
            "batch": batch,
            "vocabulary_size": _VOCABULARY_SIZE.value or _TRAINING_VOCABULARY,
            "corpus": corpus,
            "threads": _cores(),
        }
        for engine, precision in engines
    ]


if __name__ == "__main__":
    run(main)
