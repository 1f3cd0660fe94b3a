"""Measures speed beside that of other toolkits on the same machine in the same minutes.

    python scripts/benchmark.py train
    python scripts/benchmark.py train --presets=tiny --precisions=float32 --json=train.json
    python scripts/benchmark.py decode --presets=tiny
    python scripts/benchmark.py decode --presets= --run_dir=runs/multi30k --sentences=test.en
    python scripts/benchmark.py plan --pairs=1000000000
    python scripts/benchmark.py layers
    python scripts/benchmark.py start --presets=tiny --rounds=3
    python scripts/benchmark.py gpu_program --aot_python=/tmp/aot/bin/python

train: real target tokens a second of whole training steps, ours and those of PyTorch's
nn.Transformer (if torch is installed) in the same precisions: with default settings,
with freed memory kept, and with torch.compile.
decode: sentences a second and latency, from ids to ids, of beam search with 4 hypotheses: our
exports as a plain graph, with XLA and with the default search, and CTranslate2 with the same
weights in float32 and int8, if it is installed. Random weights translate random sentences to a
forced length, or to the lengths of a test set; the model of a training run translates the test set.
Each engine works as one worker with all cores and, on a CPU, as workers with one core each.
plan: time and memory of planning an epoch over made-up lengths, 16 bytes a pair on disk.
layers: Table 1 of the paper: time, peak memory and operations of one layer over the length n, how
they grow, sequential operations and path lengths as measured beside the table's.
start: processor seconds of a new process until its first translation, by a run and by its export:
imports, loading, the first call. Nodes are those of `serving_default`, and of the whole export.
gpu_program: what XLA makes of updates and of a search step for an H100, counted without one: its
kernels, their bytes, the least time that they take, and processor seconds of compilation.

The engines take turns in a random order, so that whatever else the machine does slows all of them.
Rates are medians of the turns, with the 95 % confidence interval from low to high. Minor page
faults and system time are those of a training step or of a sentence.

--json=FILE keeps the table with machine and versions, for the figures of docs/results (see
scripts/results.py): rows by what they measured, such as
`rows.ours/tiny/float32/128x16.tokens_per_second`.
"""

import itertools
import json
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks import decoding, start, training
from benchmarks.engines import table
from keras_transformer.commands import command_flags, common
from keras_transformer.commands.main import run
from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.files import write_atomically
from keras_transformer.host import NVIDIA_DRIVER, machine, num_cores, package_versions

_REAL = ("multi30k:2048", "multi30k:8192")  # the tiny preset's batch_tokens; the recipe's
_KNOWN_PRECISIONS = ["float32", "mixed_bfloat16", "mixed_float16"]
_TRAINING_VOCABULARY = 8000
# What tells the rows of a table apart, as far as they have it.
_NAMING = ("engine", "setting", "preset", "precision", "sentences", "batch", "action", "layer", "n")

_PRESETS = flags.DEFINE_list("presets", ["tiny", "base"], "Models to measure.")
_PRECISIONS = flags.DEFINE_list(
    "precisions", ["float32", "mixed_bfloat16"], "Precisions to train them in."
)
_BATCHES = flags.DEFINE_list(
    "batch",
    None,
    "What to train on or decode: 128x16 is 128 rows of 16 random tokens a side, multi30k:2048 the "
    "corpus in batches of 2,048 tokens (train only). Default of train: 128x16, and for tiny "
    "multi30k:2048 and multi30k:8192; of decode: 64x20 for tiny, 32x24 for other presets.",
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of Multi30k, with train.en and train.de.")
_VOCABULARY_SIZE = flags.DEFINE_integer(
    "vocabulary_size",
    None,
    "Tokens of the shared vocabulary. Default: 8000; of base and big 37000 to decode.",
    lower_bound=8,
)
_RUN_DIR = flags.DEFINE_string(
    "run_dir", None, "Training run whose model translates --sentences (decode)."
)
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", "auto", "Which checkpoint of --run_dir, as for translate.py; one only."
)
_SENTENCES = flags.DEFINE_string(
    "sentences", None, "Test set to decode, a sentence a line; random weights take its lengths."
)
_PAIRS = flags.DEFINE_integer("pairs", 10**7, "Sentence pairs to plan.", lower_bound=1)
_WHOLE_EPOCH = flags.DEFINE_boolean("whole_epoch", False, "Plan all batches, not only the first.")
_ROUNDS = flags.DEFINE_integer("rounds", 10, "Turns of each engine.", lower_bound=1)
_DEVICE = flags.DEFINE_enum(
    "device",
    "auto",
    ["auto", "cpu", "gpu"],
    "What train and decode run on; auto is the GPU of a machine with an NVIDIA driver.",
)
_SECONDS = flags.DEFINE_float(
    "round_seconds",
    3.0,
    "About how long a turn of the slowest engine takes, in seconds.",
    lower_bound=0,
)
_THREADS = flags.DEFINE_integer(
    "threads", None, "Cores to use. Default: all that this process may use.", lower_bound=1
)
_LENGTHS = flags.DEFINE_list(
    "lengths", ["64", "128", "256", "512", "1024", "2048", "4096", "8192"], "Lengths n of layers."
)
_DIM = flags.DEFINE_integer("model_dim", 512, "Model dimension d of layers.", lower_bound=1)
_WINDOW = flags.DEFINE_integer("window", 65, "Positions r that restricted self-attention sees.")
_AOT_PYTHON = command_flags.define_path(
    "aot_python",
    "Python of an environment with the extra aot, which compiles for a GPU (gpu_program). Default: "
    "the one that runs this.",
)
_JSON = command_flags.define_path(
    "json", "Also write the rows to this file, with machine and versions."
)


def main(arguments: list[str]) -> None:
    commands: dict[str, Callable[[], None]] = {
        "train": _train,
        "decode": _decode,
        "plan": _plan,
        "layers": _layers,
        "start": _start,
        "gpu_program": _gpu_program,
    }
    if len(arguments) != 1 or arguments[0] not in commands:
        raise InputError(
            f"give what to measure before the flags, one of {', '.join(commands)}; got "
            f"{' '.join(arguments) or 'nothing'}"
        )
    flags_of_commands = {
        "train": (_DEVICE, _PRECISIONS, _BATCHES, _DATA_DIR),
        "decode": (_DEVICE, _BATCHES, _RUN_DIR, _CHECKPOINT, _SENTENCES),
        "plan": (_PAIRS, _WHOLE_EPOCH),
        "layers": (_LENGTHS, _DIM, _WINDOW),
        "start": (),
        "gpu_program": (_AOT_PYTHON,),
    }
    allowed = {holder.name for holder in flags_of_commands[arguments[0]]}
    for holder in itertools.chain(*flags_of_commands.values()):
        if holder.present and holder.name not in allowed:
            raise InputError(
                f"--{holder.name} cannot be combined with {arguments[0]}; remove the flag"
            )
    _check_choices(_PRESETS, list(ModelConfig.presets()))
    common.check_output(_JSON.value, [_SENTENCES.value])
    if _DEVICE.value == "gpu" and _device() == "cpu":
        raise InputError("--device=gpu needs an NVIDIA driver, which this machine does not have")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # GPUs are for the engines
    commands[arguments[0]]()


def _train() -> None:
    _check_choices(_PRECISIONS, _KNOWN_PRECISIONS)
    batches = ["128x16", *_REAL] if _BATCHES.value is None else _BATCHES.value
    cases = [
        (preset, training.batch_name(batch))
        for preset, batch in itertools.product(_PRESETS.value, batches)
        if _BATCHES.value is not None or preset == "tiny" or batch not in _REAL
    ]
    size = _VOCABULARY_SIZE.value or _TRAINING_VOCABULARY
    same: training.Job = {"device": _device(), "threads": _cores(), "vocabulary_size": size}
    with tempfile.TemporaryDirectory() as folder:
        if any(training.is_real(batch) for _, batch in cases):
            same["corpus"] = training.prepare_corpus(folder, _DATA_DIR.value, size)
            if same["corpus"] is None:
                cases = [case for case in cases if not training.is_real(case[1])]
        jobs = ({"preset": preset, "batch": batch, **same} for preset, batch in cases)
        _show(
            list(training.measure(training.jobs(_PRECISIONS.value, job), **_rounds()))
            for job in jobs
        )


def _decode() -> None:
    batches = list(map(training.fixed_batch, _BATCHES.value or [""]))
    common.load_tensorflow()
    real = None  # read first, so that a wrong run is reported at once
    if _RUN_DIR.value is None or _SENTENCES.value is None:
        print(
            "Real sentences are skipped: --run_dir names no trained model, or --sentences none.",
            file=sys.stderr,
        )
    else:
        real = decoding.run_case(_RUN_DIR.value, _CHECKPOINT.value, _SENTENCES.value)

    def groups() -> Iterator[list[dict[str, Any]]]:
        size, path = _VOCABULARY_SIZE.value, _SENTENCES.value
        for preset, batch in [*itertools.product(_PRESETS.value, batches), ("run", None)]:
            case = real if preset == "run" else decoding.random_case(preset, size, path, batch)
            if case is not None:
                sentences, write = case
                with tempfile.TemporaryDirectory() as folder:
                    models = write(folder)
                    options = {"device": _device(), "cores": _cores(), **_rounds()}
                    yield list(decoding.measure(preset, sentences, models, **options))

    _show(groups())


def _plan() -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = training.measure_plan(pathlib.Path(folder), _PAIRS.value, _WHOLE_EPOCH.value)
        _show([list(plan)])


def _layers() -> None:
    common.load_tensorflow()
    from benchmarks import layers

    lengths = layers.check_settings(_LENGTHS.value, _WINDOW.value)
    sizes = (_DIM.value, _WINDOW.value, _ROUNDS.value)

    def groups() -> Iterator[list[layers.Figures]]:
        rows: list[layers.Figures] = []
        for length in lengths:
            rows += (group := list(layers.measure(list(layers.LAYER_TYPES), [length], *sizes)))
            yield group
        yield list(layers.summarize(rows, *sizes))

    _show(groups())


def _start() -> None:
    common.load_tensorflow()
    size = _VOCABULARY_SIZE.value or _TRAINING_VOCABULARY

    def groups() -> Iterator[list[Any]]:
        for preset in _PRESETS.value:
            with tempfile.TemporaryDirectory() as folder:
                yield list(start.measure(preset, size, pathlib.Path(folder), _ROUNDS.value))

    _show(groups())


def _gpu_program() -> None:
    common.load_tensorflow()
    from benchmarks import gpu_program

    python = _AOT_PYTHON.value or sys.executable
    _show([gpu_program.measure(case, python)] for case in gpu_program.cases(_PRESETS.value))


def _show(groups: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """Prints each group of rows as a table when it is measured, and writes all to --json."""
    log: dict[str, Any] = {"machine": machine(), "versions": package_versions(), "rows": {}}
    print(log["machine"])
    for rows in groups:
        print(table(rows), end="\n\n", flush=True)
        log["rows"] |= {_row_name(row): row for row in rows}
        if _JSON.value is not None:
            write_atomically(_JSON.value, json.dumps(log, indent=1) + "\n")


def _row_name(row: Mapping[str, Any]) -> str:
    """Returns what a row measured, without the characters that part a key of results.py."""
    return "/".join(re.sub(r"[^\w-]+", "-", str(row[name])) for name in _NAMING if name in row)


def _check_choices(holder: "flags.FlagHolder[list[str]]", choices: Sequence[str]) -> None:
    for value in holder.value:
        if value not in choices:
            raise InputError(
                f"--{holder.name} must be of {', '.join(choices)}, separated by commas, "
                f"got {value!r}"
            )


def _device() -> str:
    has_gpu = _DEVICE.value != "cpu" and NVIDIA_DRIVER.exists()
    return "gpu" if has_gpu else "cpu"


def _cores() -> int:
    return _THREADS.value or num_cores()


def _rounds() -> dict[str, Any]:
    return {"rounds": _ROUNDS.value, "round_seconds": _SECONDS.value}


if __name__ == "__main__":
    run(main)
