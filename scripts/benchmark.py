"""Measures speed, where it can beside other toolkits on the same machine in the same minutes.

    python scripts/benchmark.py train --presets=tiny --json=train.json
    python scripts/benchmark.py decode --presets tiny base
    python scripts/benchmark.py decode --run_dir=runs/multi30k --sentences=test.en
    python scripts/benchmark.py start --presets=tiny --rounds=3
    python scripts/benchmark.py gpu_program --aot_python=/tmp/aot/bin/python

train: target tokens a second of whole training steps, ours and those of PyTorch's nn.Transformer
(if torch is installed) in the same precisions: with default settings, with freed memory kept, as
ours does, and with torch.compile.
decode: sentences a second and latency, from ids to ids, of beam search with 4 hypotheses: our
exports as a plain graph, with XLA, in bfloat16 and with the default search, and CTranslate2 with
the same weights in float32 and int8, if it is installed. Random weights translate random sentences
to a forced length, or to the lengths of a test set; the model of a training run translates the test
set. Each engine works as one worker with all cores and, on a CPU, as workers with one core each.
start: processor seconds of a new process until its first translation, by a run and by its export:
imports, loading, the first call.
gpu_program: what XLA makes of updates and of a search step for an H100, counted without one: its
kernels, their bytes, the least time that they take, and processor seconds of compilation.

Rates are medians of rounds, in each of which the engines take turns in a random order. --json=FILE
keeps the table with machine, versions, commit and date, for the figures of docs/results (see
scripts/results.py): rows by what they measured, such as
`rows.ours/tiny/float32/128x16.tokens_per_second`.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import decoding, gpu_program, start, training
from keras_transformer.commands import common
from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.files import write_atomically
from keras_transformer.host import NVIDIA_DRIVER, machine, num_cores, package_versions

# What tells the rows of a table apart, as far as they have it.
_NAMING = ("engine", "setting", "preset", "precision", "sentences", "batch", "action")
# Of decode: tokens of the vocabulary, length of sentences, batch size.
_TINY, _LARGER = (8000, 20, 64), (37000, 24, 32)
_TEST_SET_BATCH = 64

Rows = Iterator[list[dict[str, Any]]]  # a table for each list


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    description, _, examples = __doc__.partition("\n\n")
    common_flags = argparse.ArgumentParser(add_help=False)
    presets = list(TransformerConfig.PRESETS)
    common_flags.add_argument("--presets", nargs="+", choices=presets, default=["tiny", "base"])
    common_flags.add_argument("--json", type=pathlib.Path, help="also write the rows to this file")
    measured = argparse.ArgumentParser(add_help=False)
    measured.add_argument("--rounds", type=int, default=10, help="turns of each engine")
    measured.add_argument("--vocabulary_size", type=int, help="tokens of the vocabulary")
    engines = argparse.ArgumentParser(add_help=False)
    engines.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto")
    engines.add_argument("--threads", type=int, default=num_cores(), help="cores to use")
    engines.add_argument("--round_seconds", type=float, default=3.0, help="of the slowest engine")
    result = argparse.ArgumentParser(
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = result.add_subparsers(dest="command", required=True)
    parents = [common_flags, measured, engines]
    train = commands.add_parser("train", parents=parents, help="rates of training")
    train.add_argument("--precisions", default="float32,mixed_bfloat16", help="separated by commas")
    train.add_argument("--batch", nargs=2, type=int, default=(128, 16), help="rows, tokens a side")
    decode = commands.add_parser("decode", parents=parents, help="rates and latency of search")
    decode.add_argument("--batch", nargs=2, type=int, help="sentences, tokens of random ones")
    decode.add_argument("--run_dir", help="training run whose model translates --sentences")
    decode.add_argument("--checkpoint", default="auto", help="of --run_dir")
    decode.add_argument("--sentences", help="a file with a sentence on each line")
    commands.add_parser("start", parents=parents[:2], help="time to the first translation")
    count = commands.add_parser("gpu_program", parents=[common_flags], help="kernels for a GPU")
    count.add_argument("--aot_python", default=sys.executable, help="with the extra aot")
    return result


def _train(options: argparse.Namespace) -> Rows:
    rows, length = options.batch
    for preset in options.presets:
        job = {
            "preset": preset,
            "device": options.device,
            "threads": options.threads,
            "vocabulary_size": options.vocabulary_size or _TINY[0],
            "rows": rows,
            "length": length,
        }
        jobs = training.jobs(options.precisions.split(","), job)
        yield list(training.measure(jobs, options.rounds, options.round_seconds))


def _decode(options: argparse.Namespace) -> Rows:
    from keras_transformer.training.run import RunDirectory

    if options.run_dir and not options.sentences:
        raise InputError("--run_dir needs --sentences")
    for preset in ["run"] if options.run_dir else options.presets:
        if options.run_dir:
            run = RunDirectory(options.run_dir)
            model, (source, target) = run.load_model(options.checkpoint), run.vocabularies()
            sentences = decoding.test_set(options.sentences, source, _TEST_SET_BATCH)
        else:
            size, length, batch_size = _TINY if preset.startswith("tiny") else _LARGER
            batch_size, length = options.batch or (batch_size, length)
            model, source = decoding.random_model(preset, options.vocabulary_size or size)
            target = source
            sentences = decoding.random_sentences(
                source.size, batch_size, length, options.sentences
            )
        with tempfile.TemporaryDirectory() as folder:
            models = decoding.write_models(model, source, target, sentences, pathlib.Path(folder))
            yield list(
                decoding.measure(
                    preset,
                    sentences,
                    models,
                    device=options.device,
                    cores=options.threads,
                    rounds=options.rounds,
                    round_seconds=options.round_seconds,
                )
            )


def _start(options: argparse.Namespace) -> Rows:
    for preset in options.presets:
        with tempfile.TemporaryDirectory() as folder:
            size = options.vocabulary_size or _TINY[0]
            yield list(start.measure(preset, size, pathlib.Path(folder), options.rounds))


def _gpu_program(options: argparse.Namespace) -> Rows:
    for case in gpu_program.CASES:
        if case.preset in options.presets:
            yield [gpu_program.measure(case, options.aot_python)]


def _commit() -> str | None:
    """Returns the commit of this repository, with "-dirty" if files have changed since."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    folder = pathlib.Path(__file__).parent
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return result.stdout.strip() or None


def _row_name(row: Mapping[str, Any]) -> str:
    """Returns what a row measured, without the characters that part a key of results.py."""
    return "/".join(re.sub(r"[^\w-]+", "-", str(row[name])) for name in _NAMING if name in row)


def _line(row: Mapping[str, Any]) -> str:
    """Returns a row as a line: its name and its numbers."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    text = ", ".join(f"{name} {value:.5g}" for name, value in numbers.items() if name != "batch")
    return f"{_row_name(row)}: {text}"


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    device = getattr(options, "device", "cpu")
    if device == "gpu" and not NVIDIA_DRIVER.exists():
        sys.exit("--device=gpu needs an NVIDIA driver, which this machine does not have")
    options.device = "gpu" if device != "cpu" and NVIDIA_DRIVER.exists() else "cpu"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # GPUs are for the engines
    common.load_tensorflow()
    log: dict[str, Any] = {
        "command": " ".join(sys.argv[1:] if arguments is None else arguments),
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "machine": machine(),
        "versions": package_versions(),
        "rows": {},
    }
    print(log["machine"])
    commands = {"train": _train, "decode": _decode, "start": _start, "gpu_program": _gpu_program}
    try:
        for rows in commands[options.command](options):
            print(*map(_line, rows), sep="\n", flush=True)
            log["rows"] |= {_row_name(row): row for row in rows}
            if options.json is not None:
                write_atomically(options.json, json.dumps(log, indent=1) + "\n")
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
