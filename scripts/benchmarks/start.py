"""Processor seconds of a new process until its first translation, by a run and by its export.

Run as a program it is that process: it translates one sentence and writes its seconds as JSON.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

_SENTENCE = "w10 w20 w30 w40 w50 w60"
_MAX_EXTRA_LENGTH = 0  # random weights write to the longest length


def measure(preset: str, vocabulary_size: int, folder: pathlib.Path, rounds: int) -> Iterator[Any]:
    """Yields a row for the run and for the export: medians over fresh processes, in turns."""
    _write_models(preset, vocabulary_size, folder)
    turns: dict[str, list[dict[str, float]]] = {"run": [], "export": []}
    for _ in range(rounds):
        for name, seconds in turns.items():
            program = [sys.executable, __file__, name, str(folder / name)]
            environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
            output = subprocess.run(program, capture_output=True, check=True, env=environment)
            seconds.append(json.loads(output.stdout))
    for name, rows in turns.items():
        medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        yield {"engine": name, "preset": preset, "rounds": rounds, **medians}


def _write_models(preset: str, vocabulary_size: int, folder: pathlib.Path) -> None:
    """Writes a run and its export."""
    import tensorflow as tf

    from benchmarks.decoding import random_model
    from keras_transformer.config import TrainingConfig
    from keras_transformer.inference import ModelFunctions
    from keras_transformer.serving.constants import merge_constants
    from keras_transformer.training.run import RunDirectory
    from keras_transformer.training.settings import RunConfigs

    model, vocabulary = random_model(preset, vocabulary_size)
    search = {"max_extra_length": _MAX_EXTRA_LENGTH}
    configs = RunConfigs(model.config, None, TrainingConfig(), search=search)
    RunDirectory(folder / "run").write(configs, vocabulary, vocabulary, model)
    functions = ModelFunctions(model, vocabulary, search=configs.search_config({}))
    functions, path = functions.with_stored_projection(), folder / "export"
    tf.saved_model.save(functions.module(), str(path), signatures=functions.signatures())
    merge_constants(path)


def main(name: str, path: str) -> None:
    """Translates a sentence and prints the processor seconds of each part of the way."""
    from keras_transformer import Translator, load_exported

    times = [0.0, time.process_time()]
    translator = Translator.load(path) if name == "run" else load_exported(path)
    times.append(time.process_time())
    translator.translate(_SENTENCE)
    times.append(time.process_time())
    parts = ("import_seconds", "load_seconds", "translation_seconds")
    seconds = {part: times[place + 1] - times[place] for place, part in enumerate(parts)}
    print(json.dumps(seconds | {"processor_seconds": times[-1]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
