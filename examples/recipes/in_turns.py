"""Measures models in turns, text to text: sentences a second, and the time of one sentence.

    python examples/recipes/in_turns.py data/tatoeba_ende/test.en.gz en-de runs/student:1

After the sentences come models by name or folder, a beam of their own after a colon. One
process with all cores translates batches of 64, then 200 sentences one by one, after one round
that is not counted. Prints medians of three rounds by model, and its weights' size in float32.
"""

import datetime
import gzip
import itertools
import json
import statistics
import sys
import time

from keras_transformer import Translator
from keras_transformer.host import keep_freed_memory, machine, package_versions


def seconds(translator: Translator, requests: list[list[str]]) -> list[float]:
    """Returns how long each request takes."""
    times = [time.perf_counter()]
    for request in requests:
        translator.translate(request)
        times.append(time.perf_counter())
    return [end - start for start, end in itertools.pairwise(times)]


def main(path: str, names: list[str]) -> None:
    keep_freed_memory()
    translators = {}
    for name in names:
        model, _, beam = name.partition(":")
        translators[name] = Translator.load(model, **({"beam_size": int(beam)} if beam else {}))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    batches = [lines[start : start + 64] for start in range(0, len(lines), 64)]
    singles = [[line] for line in lines[:200]]
    rates: dict[str, list[float]] = {name: [] for name in names}
    latencies: dict[str, list[float]] = {name: [] for name in names}
    for number in range(4):
        for name, translator in translators.items():
            rate = len(lines) / sum(seconds(translator, batches))
            latency = statistics.median(seconds(translator, singles))
            if number:
                rates[name].append(rate)
                latencies[name].append(1000 * latency)
    result = {
        "models": {
            name.replace(":", "/").replace(".", "_"): {
                "sentences_per_second": statistics.median(rates[name]),
                "milliseconds": statistics.median(latencies[name]),
                "megabytes": 4e-6 * translator.model.count_params(),
            }
            for name, translator in translators.items()
        },
        "machine": machine(),
        "versions": package_versions(),
        "date": f"{datetime.date.today()}",
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
