"""The Transformer once more, in float64 NumPy and one sentence at a time, from the paper's text.

It shares no code with the package: no batches, no padding, no fused projections, no caches. The
weights are read from a model by the names of its layers.

Shapes: S source length, T target length, D model dimension, H heads.
"""

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

# Modules that tests import from here and from those of other folders.
_HERE = pathlib.Path(__file__).parent
sys.path.extend(
    str(_HERE.parent / folder) for folder in ("client", "models", "serving", "training")
)

Array = np.ndarray


@pytest.fixture(scope="session")
def numpy_logits() -> Callable[..., Array]:
    return reference_logits


def reference_logits(model: Any, source: list[int], target: list[int]) -> Array:
    """Returns logits [T, V] of the token after each target token, without dropout."""
    config = model.config
    source_table, target_table = (
        float64(embedding.table) for embedding in (model.source_embedding, model.target_embedding)
    )
    x = source_table[source] * np.sqrt(config.model_dim) + encode_positions(model, len(source))
    for layer in model.encoder.layers:
        x = residual(config, layer.self_attention_residual, x, self_attend, layer)
        x = residual(config, layer.feed_forward_residual, x, feed_forward, layer)
    memory = last_norm(config, model.encoder, x)

    x = target_table[target] * np.sqrt(config.model_dim) + encode_positions(model, len(target))
    for layer in model.decoder.layers:
        x = residual(config, layer.self_attention_residual, x, self_attend, layer, True)
        x = residual(config, layer.cross_attention_residual, x, cross_attend, layer, memory)
        x = residual(config, layer.feed_forward_residual, x, feed_forward, layer)
    x = last_norm(config, model.decoder, x)

    matrix = target_table.T if model.projection is None else float64(model.projection.kernel)
    return x @ matrix + (float64(model.output_bias) if config.output_bias else 0)


def float64(variable: Any) -> Array:
    return np.asarray(variable, "float64")


def encode_positions(model: Any, length: int) -> Array:
    config = model.config
    numbers = np.arange(length) + config.first_position
    if config.positions == "learned":
        return float64(model.positions.table)[numbers]
    half = config.model_dim // 2
    if config.positions == "sinusoidal":
        angles = numbers[:, None] / 10000 ** (2 * np.arange(half) / config.model_dim)
        result = np.zeros((length, config.model_dim))
        result[:, 0::2], result[:, 1::2] = np.sin(angles), np.cos(angles)
        return result
    angles = numbers[:, None] * np.exp(-np.arange(half) * np.log(10000) / (half - 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def normalize(config: Any, layer: Any, x: Array) -> Array:
    mean, deviation = x.mean(axis=-1, keepdims=True), x.std(axis=-1, keepdims=True)
    if config.norm_form == "variance":
        divisor = np.sqrt(deviation**2 + config.norm_epsilon)
    else:
        divisor = deviation + config.norm_epsilon
    return float64(layer.gain) * (x - mean) / divisor + float64(layer.bias)


def residual(config: Any, layer: Any, x: Array, sublayer: Any, *arguments: Any) -> Array:
    if config.norm_position == "post":
        return normalize(config, layer.norm, x + sublayer(x, *arguments))
    return x + sublayer(normalize(config, layer.norm, x), *arguments)


def last_norm(config: Any, stack: Any, x: Array) -> Array:
    return normalize(config, stack.final_norm, x) if config.norm_position == "pre" else x


def affine(dense: Any, x: Array) -> Array:
    return x @ float64(dense.kernel) + (float64(dense.bias) if dense.use_bias else 0)


def feed_forward(x: Array, layer: Any) -> Array:
    return affine(layer.feed_forward.outer, np.maximum(affine(layer.feed_forward.inner, x), 0))


def self_attend(x: Array, layer: Any, causal: bool = False) -> Array:
    attention = layer.self_attention
    width = attention.num_heads * attention.key_dim
    projected = affine(attention.projection, x)
    query, keys, values = np.split(projected, [width, 2 * width], axis=1)
    return attend(attention, query, keys, values, causal)


def cross_attend(x: Array, layer: Any, memory: Array) -> Array:
    attention = layer.cross_attention
    width = attention.num_heads * attention.key_dim
    projected = affine(attention.memory_projection, memory)
    query = affine(attention.query_projection, x)
    return attend(attention, query, projected[:, :width], projected[:, width:], False)


def attend(attention: Any, query: Array, keys: Array, values: Array, causal: bool) -> Array:
    heads = []
    for head in range(attention.num_heads):
        q, k, v = (
            np.split(part, attention.num_heads, axis=1)[head] for part in (query, keys, values)
        )
        scores = q @ k.T / np.sqrt(attention.key_dim)
        if causal:
            scores[np.triu_indices_from(scores, 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ v)
    return affine(attention.output_projection, np.concatenate(heads, axis=1))
