"""The layers of Table 1 of the paper, and what the table says of them.

Shapes: n positions, d model dimension, k width of a kernel, r positions that restricted
self-attention sees, w = (r - 1) / 2 on each side.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.layers import SelfAttention

KERNEL = 3


class ProductsOnly(SelfAttention):
    """Self-attention without projections, which the table leaves out: x is all of Q, K and V."""

    def build(self, input_shape: Any) -> None:
        self.projection = lambda x: ops.concatenate([x, x, x], axis=-1)
        self.output_projection = lambda x: x


class LayerType(NamedTuple):
    """A row of the table.

    Attributes:
        make: gives a layer [1, n, d] to [1, n, d] from d, r, and its number in a stack.
        complexity: per layer, as the table writes it.
        exponent: of n in that.
        is_sequential: whether n operations must follow each other, and not 1.
        path: gives the layers that connect positions 1 and n, from n and r.
    """

    make: Callable[[int, int, int], keras.layers.Layer]
    complexity: str
    exponent: int
    is_sequential: bool
    path: Callable[[int, int], int]


def _attention(kind: type[SelfAttention], d: int, window: int | None) -> SelfAttention:
    num_heads = max(d // 64, 1)
    return kind(
        num_heads=num_heads, key_dim=d // num_heads, value_dim=d // num_heads, window=window
    )


def _convolution(d: int, **options: Any) -> keras.layers.Conv1D:
    return keras.layers.Conv1D(d, KERNEL, **{"padding": "same", **options})


def _in_one(n: int, r: int) -> int:
    return 1


def _in_steps_of_a_kernel(n: int, r: int) -> int:
    return math.ceil((n - 1) / ((KERNEL - 1) // 2))


def _in_steps_of_a_window(n: int, r: int) -> int:
    return math.ceil((n - 1) / ((r - 1) // 2))


def _in_growing_steps(n: int, r: int) -> int:
    return next(layers for layers in range(n) if KERNEL**layers >= n)


LAYER_TYPES = {
    "self-attention": LayerType(
        lambda d, r, _: _attention(ProductsOnly, d, None), "n^2 d", 2, False, _in_one
    ),
    "with projections": LayerType(
        lambda d, r, _: _attention(SelfAttention, d, None), "n^2 d + n d^2", 2, False, _in_one
    ),
    "restricted": LayerType(
        lambda d, r, _: _attention(ProductsOnly, d, r), "r n d", 1, False, _in_steps_of_a_window
    ),
    "with projections, restricted": LayerType(
        lambda d, r, _: _attention(SelfAttention, d, r), "r n d + n d^2", 1, False,
        _in_steps_of_a_window,
    ),
    "recurrent": LayerType(
        lambda d, r, _: keras.layers.SimpleRNN(d, return_sequences=True), "n d^2", 1, True, _in_one
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
    """Returns the smallest number of stacked layers in which a gradient from the last position of
    the output reaches the first position of the input.
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
            return len(stack)
