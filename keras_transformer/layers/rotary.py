"""Rotary positions: queries and keys turned by angles that grow with position (Su et al. 2021)."""

import math

from keras import ops

from keras_transformer.decoding import Tensor


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turns each pair of dimensions (2i, 2i + 1) by position * 10000^(-2i / K) (3.2.2, eq. 15).

    The product of a turned query and a turned key depends on their distance only.

    Args:
        x: [..., K], K even.
        positions: int, broadcasts to x.shape[:-1].

    Returns:
        [..., K], computed in float32 and rounded to x's dtype.
    """
    num_pairs = x.shape[-1] // 2
    rates = ops.exp(ops.arange(num_pairs, dtype="float32") * (-math.log(10000.0) / num_pairs))
    angles = ops.cast(positions, "float32")[..., None] * rates  # [..., K/2]
    sines, cosines = ops.sin(angles), ops.cos(angles)
    pairs = ops.reshape(ops.cast(x, "float32"), (*ops.shape(x)[:-1], num_pairs, 2))
    first, second = pairs[..., 0], pairs[..., 1]
    turned = [first * cosines - second * sines, first * sines + second * cosines]
    return ops.cast(ops.reshape(ops.stack(turned, axis=-1), ops.shape(x)), x.dtype)
