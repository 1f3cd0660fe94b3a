"""Measures Table 1 of the paper: time, memory and operations of layers over the length n.

Each layer and length has a process of its own, which tells its peak of memory; those of one length
take turns.
"""

import contextlib
import functools
import importlib.util
import itertools
import json
import math
import pathlib
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.engines import Channel, Engine, take_turns
from keras_transformer.commands import common
from keras_transformer.errors import InputError

Figures = dict[str, Any]
SEQUENTIAL_DIM, SEQUENTIAL_LENGTHS = 8, (16, 32, 64, 128, 256)
PATH_DIM, PATH_LENGTH, PATH_WINDOW = 4, 33, 9
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3"}
_PASSES = ("forward", "both")  # both: forward and backward


def check_settings(lengths: Sequence[str], window: int, plot_path: str | None) -> list[int]:
    """Returns the lengths as numbers.

    Raises:
        InputError: a setting cannot be used.
    """
    if bad := [each for each in lengths if not each.isdecimal() or int(each) < 2]:
        raise InputError(f"--lengths must be whole numbers of at least 2, got {bad[0]!r}")
    if window < 3 or window % 2 == 0:
        raise InputError(f"--window must be odd and at least 3, got {window}")
    if plot_path is not None:
        common.check_output(pathlib.Path(plot_path))
        if importlib.util.find_spec("matplotlib") is None:
            raise InputError("--plot needs matplotlib: pip install matplotlib")
    return [int(each) for each in lengths]


def measure(
    names: Sequence[str], lengths: Sequence[int], d: int, r: int, rounds: int
) -> Iterator[Figures]:
    """Yields the figures of each layer at each length.

    Args:
        names: of `LAYER_TYPES`.
        lengths: n.
        d: model dimension.
        r: window of restricted self-attention.
        rounds: turns, of which the median counts.
    """
    for n in lengths:  # in new processes, whose memory is that of one length
        yield from _measure(names, [n], d, r, rounds)


def _measure(
    names: Sequence[str], lengths: Sequence[int], d: int, r: int, rounds: int
) -> Iterator[Figures]:
    from benchmarks.layer_types import count_operations

    with contextlib.ExitStack() as stack:
        engines = []
        for name in names:
            engines.append(Engine("layers", {"name": name, "d": d, "r": r}, _ENVIRONMENT))
            stack.callback(engines[-1].close)
        for n in lengths:
            figures: list[Figures] = [
                {"layer": name, "n": n, "operations": count_operations(name, n, d, r)}
                for name in names
            ]
            for which in _PASSES:
                tasks = [functools.partial(_turn, engine, which, n) for engine in engines]
                take_turns(tasks, 1)  # traces, and allocates for the first time
                turns = take_turns(tasks, rounds)
                for row, engine, its_turns in zip(figures, engines, turns, strict=True):
                    seconds = float(np.median([turn["seconds"] for turn in its_turns]))
                    row[f"{which}_ms"] = 1000 * seconds
                    peak = max(turn["peak_megabytes"] for turn in its_turns)
                    row[f"{which}_megabytes"] = peak - engine.greetings[0]["megabytes"]
            yield from figures


def _turn(engine: Engine, which: str, n: int, _: int) -> dict[str, Any]:
    return engine.run({"which": which, "n": n})


def summarize(rows: Sequence[Figures], d: int, r: int, rounds: int) -> Iterator[Figures]:
    """Yields a row of Table 1 for each layer: what was measured beside what the paper states."""
    from benchmarks.layer_types import LAYER_TYPES, longest_path

    names = list(dict.fromkeys(row["layer"] for row in rows))
    small = list(_measure(names, SEQUENTIAL_LENGTHS, SEQUENTIAL_DIM, PATH_WINDOW, rounds))
    for name in names:
        kind = LAYER_TYPES[name]
        own, its_small = ([row for row in each if row["layer"] == name] for each in (rows, small))
        yield {
            "layer": name,
            "complexity": kind.complexity,
            "paper_exponent": kind.exponent,
            **{
                f"{figure}_exponent": exponent(own, figure, least=max(row["n"] for row in own) / 4)
                for figure in ("operations", "forward_ms", "both_ms", "both_megabytes")
            },
            "paper_sequential": "n" if kind.is_sequential else "1",
            "sequential_exponent": exponent(its_small, "forward_ms"),
            "paper_path": kind.path(PATH_LENGTH, PATH_WINDOW),
            "path": longest_path(name, PATH_LENGTH, PATH_DIM, PATH_WINDOW),
        }


def exponent(rows: Sequence[Mapping[str, Any]], figure: str, least: float = 0) -> float | None:
    """Fits figure = c n^exponent to the rows with n of at least `least`; None for a single one."""
    points = [(row["n"], row[figure]) for row in rows if row["n"] >= least]
    if len(points) < 2 or min(value for _, value in points) <= 0:
        return None
    lengths, values = np.log(np.transpose(points))
    return float(np.polyfit(lengths, values, 1)[0])


def crossing(rows: Sequence[Mapping[str, Any]], figure: str, one: str, other: str) -> float | None:
    """Returns the n from which a figure of `one` exceeds that of `other`, interpolated between
    lengths on a log-log scale; None if it never begins to.
    """
    ratios = {
        row["n"]: math.log(row[figure] / its_other[figure])
        for row in rows
        for its_other in rows
        if (row["layer"], its_other["layer"], row["n"]) == (one, other, its_other["n"])
    }
    points = sorted(ratios.items())
    for (n, ratio), (next_n, next_ratio) in itertools.pairwise(points):
        if ratio < 0 <= next_ratio:
            share = -ratio / (next_ratio - ratio)
            return float(n ** (1 - share) * next_n**share)
    return None


def crossings(rows: Sequence[Figures]) -> Iterator[Figures]:
    """Yields from which n on self-attention has more of something than recurrence."""
    for layer in ("self-attention", "with projections"):
        found = {
            f"{figure}_from": crossing(rows, figure, layer, "recurrent")
            for figure in ("operations", "forward_ms", "both_ms", "both_megabytes")
        }
        yield {"layer": f"{layer} > recurrent", **found}


def plot(rows: Sequence[Figures], path: str) -> None:
    """Draws time, memory and operations over n, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")  # needs no screen
    from matplotlib import pyplot

    figures = {
        "forward_ms": "forward, ms",
        "both_ms": "forward and backward, ms",
        "both_megabytes": "peak memory, MB",
        "operations": "multiply-adds, forward",
    }
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), layout="constrained")
    for axis, (name, title) in zip(axes.flat, figures.items(), strict=True):
        for layer in dict.fromkeys(row["layer"] for row in rows):
            own = [row for row in rows if row["layer"] == layer]
            axis.loglog([row["n"] for row in own], [row[name] for row in own], label=layer)
        axis.set(title=title, xlabel="n")
    axes[0, 0].legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Runs a layer, forward or both ways, at each request."""
    import tensorflow as tf

    from benchmarks.layer_types import LAYER_TYPES

    job = json.loads(sys.argv[1])
    layer = LAYER_TYPES[job["name"]].make(job["d"], job["r"], 1)
    layer.build((1, None, job["d"]))

    @tf.function(autograph=False)
    def forward(x: tf.Tensor) -> tf.Tensor:
        return layer(x)

    @tf.function(autograph=False)
    def both(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, [x, *(weight.value for weight in layer.trainable_weights)])

    passes = {"forward": forward, "both": both}
    for run in passes.values():  # memory counts from here: what TensorFlow takes for any step
        run(tf.zeros((1, 2, job["d"])))
    channel = Channel(tf.__version__, megabytes=_resident_megabytes())
    while (request := channel.request()) is not None:
        x = tf.random.stateless_normal((1, request["n"], job["d"]), (1, 1))
        channel.start()
        tf.nest.map_structure(lambda result: result.numpy(), passes[request["which"]](x))
        channel.answer(**channel.stop())


def _resident_megabytes() -> float:
    """Returns the resident memory of this process now."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
