"""Table 1 of the paper, measured: time, memory and operations of layers against the length n.

Each layer and length runs in its own process, which reports its peak memory; those of one length
take turns.

Shapes: n positions, d model dimension, k width of a kernel, r positions that restricted
self-attention sees, w = (r - 1) / 2 on each side.
"""

import contextlib
import functools
import json
import math
import pathlib
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from benchmarks.engines import Channel, Engine, peak_megabytes, take_turns
from keras_transformer.errors import InputError
from keras_transformer.layers import SelfAttention, WindowedSelfAttention

KERNEL = 3


class _ProductsOnly:
    """Self-attention without projections, which the table leaves out: x is all of Q, K and V."""

    def build(self, input_shape: Any) -> None:
        self.projection = lambda x: ops.concatenate([x, x, x], axis=-1)
        self.output_projection = lambda x: x


class ProductsOnly(_ProductsOnly, SelfAttention):
    pass


class WindowedProductsOnly(_ProductsOnly, WindowedSelfAttention):
    pass


class LayerType(NamedTuple):
    """A row of the table.

    Attributes:
        make: gives a layer [1, n, d] to [1, n, d] from d, r, and its number in a stack.
        complexity: per layer, as the table writes it.
        exponent: of n in that.
        is_sequential: whether n operations must follow each other, and not 1.
        path: gives the layers, or the steps of a recurrent one, that connect positions 1 and n,
            from n and r.
    """

    make: Callable[[int, int, int], keras.layers.Layer]
    complexity: str
    exponent: int
    is_sequential: bool
    path: Callable[[int, int], int]


def _attention(kind: type[SelfAttention], d: int, **options: Any) -> SelfAttention:
    num_heads = max(d // 64, 1)
    return kind(num_heads=num_heads, key_dim=d // num_heads, value_dim=d // num_heads, **options)


def _convolution(d: int, **options: Any) -> keras.layers.Conv1D:
    return keras.layers.Conv1D(d, KERNEL, **{"padding": "same", **options})


def _in_one(n: int, r: int) -> int:
    return 1


def _in_all_steps(n: int, r: int) -> int:
    return n


def _in_steps_of_a_kernel(n: int, r: int) -> int:
    return math.ceil((n - 1) / ((KERNEL - 1) // 2))


def _in_steps_of_a_window(n: int, r: int) -> int:
    return math.ceil((n - 1) / ((r - 1) // 2))


def _in_growing_steps(n: int, r: int) -> int:
    return next(layers for layers in range(n) if KERNEL**layers >= n)


LAYER_TYPES = {
    "self-attention": LayerType(
        lambda d, r, _: _attention(ProductsOnly, d), "n^2 d", 2, False, _in_one
    ),
    "with projections": LayerType(
        lambda d, r, _: _attention(SelfAttention, d), "n^2 d + n d^2", 2, False, _in_one
    ),
    "restricted": LayerType(
        lambda d, r, _: _attention(WindowedProductsOnly, d, window=r), "r n d", 1, False,
        _in_steps_of_a_window,
    ),
    "with projections, restricted": LayerType(
        lambda d, r, _: _attention(WindowedSelfAttention, d, window=r), "r n d + n d^2", 1, False,
        _in_steps_of_a_window,
    ),
    "recurrent": LayerType(
        lambda d, r, _: keras.layers.SimpleRNN(d, return_sequences=True), "n d^2", 1, True,
        _in_all_steps,
    ),
    "convolution": LayerType(
        lambda d, r, _: _convolution(d), "k n d^2", 1, False, _in_steps_of_a_kernel
    ),
    "dilated": LayerType(
        lambda d, r, number: _convolution(d, padding="causal", dilation_rate=KERNEL**number),
        "k n d^2", 1, False, _in_growing_steps,
    ),
    "separable": LayerType(
        lambda d, r, _: keras.layers.SeparableConv1D(d, KERNEL, padding="same"),
        "k n d + n d^2", 1, False, _in_steps_of_a_kernel,
    ),
}  # fmt: skip


def count_operations(name: str, n: int, d: int, r: int) -> int:
    """Counts multiplications with an addition in the products and convolutions of the graph."""
    layer = LAYER_TYPES[name].make(d, r, 1)
    steps = 1
    if LAYER_TYPES[name].is_sequential:
        layer.unroll, n, steps = True, 1, n  # TensorFlow counts a loop's body once
    layer.build((1, n, d))
    graph = (
        tf.function(layer, autograph=False).get_concrete_function(tf.TensorSpec((1, n, d))).graph
    )
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder.float_operation() | {
        "account_type_regexes": [".*MatMul.*", ".*Conv.*", ".*Einsum.*"],
        "output": "none",
    }
    return steps * profiler.profile(graph, options=options).total_float_ops // 2


def longest_path(name: str, n: int, d: int, r: int) -> int:
    """Returns the path length from the first position of the input to the last of the output.

    It is the smallest number of stacked layers in which a gradient gets through, times the steps
    that follow each other within a layer: a recurrent one passes its state on from each position to
    the next.
    """
    keras.utils.set_random_seed(1)
    x = tf.random.normal((1, n, d))
    stack: list[keras.layers.Layer] = []
    while True:
        stack.append(LAYER_TYPES[name].make(d, r, len(stack)))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for layer in stack:
                y = layer(y)
            last = y[0, -1]
        if tf.reduce_any(tape.gradient(last, x)[0, 0] != 0):
            return len(stack) * (n if LAYER_TYPES[name].is_sequential else 1)


Figures = dict[str, Any]
SEQUENTIAL_DIM, SEQUENTIAL_LENGTHS = 8, (16, 32, 64, 128, 256)
PATH_DIM, PATH_LENGTH, PATH_WINDOW = 4, 33, 9
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3"}
_PASSES = ("forward", "both")  # both: forward and backward


def check_settings(lengths: Sequence[str], window: int) -> list[int]:
    """Returns the lengths as numbers.

    Raises:
        InputError: a setting cannot be used.
    """
    if bad := [each for each in lengths if not each.isdecimal() or int(each) < 2]:
        raise InputError(f"--lengths must be whole numbers of at least 2, got {bad[0]!r}")
    if window < 3 or window % 2 == 0:
        raise InputError(f"--window must be odd and at least 3, got {window}")
    return [int(each) for each in lengths]


def measure(
    names: Sequence[str], lengths: Sequence[int], d: int, r: int, rounds: int
) -> Iterator[Figures]:
    """Yields the figures of each layer at each length, the median of some rounds.

    The peak memory of a length includes that of the lengths before it.

    Args:
        names: of `LAYER_TYPES`.
        lengths: n.
        d: model dimension.
        r: window of restricted self-attention.
        rounds: turns of each layer.
    """
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
    names = list(dict.fromkeys(row["layer"] for row in rows))
    small = list(measure(names, SEQUENTIAL_LENGTHS, SEQUENTIAL_DIM, PATH_WINDOW, rounds))
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


def main() -> None:
    """Runs a layer, forward or both ways, at each request."""
    import tensorflow as tf

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
    """Returns the resident memory of this process now; where it is not told, the peak so far."""
    if not pathlib.Path("/proc/self/statm").exists():
        return peak_megabytes()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
