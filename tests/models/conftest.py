"""The Transformer once more, in float64 NumPy and one sentence at a time, from the paper's text.

It shares no code with the package: no batches, no padding, no fused projections, no caches. The
weights are read from a model by the names of its layers.

Shapes: S source length, T target length, D model dimension, H heads.
"""

import math
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
EOS = 3


@pytest.fixture(scope="session")
def numpy_logits() -> Callable[..., Array]:
    return reference_logits


@pytest.fixture(scope="session")
def numpy_layers() -> Any:
    """The functions of this module, for references of other models of the same layers."""
    return sys.modules[__name__]


@pytest.fixture
def numpy_attentions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Array]]:
    """Gives "encoder" [L, H, S, S], "decoder" [L, H, T, T] and "cross" [L, H, T, S]."""

    def attentions(model: Any, source: list[int], target: list[int]) -> dict[str, Array]:
        heads: list[Array] = []

        def keep(scores: Array, softmax: Callable[[Array], Array] = softmax) -> Array:
            heads.append(softmax(scores))
            return heads[-1]

        with monkeypatch.context() as patch:
            patch.setitem(attend.__globals__, "softmax", keep)
            reference_logits(model, source, target)
        layers, num_heads = model.config.num_layers, model.config.num_heads
        encoder, decoder = heads[: layers * num_heads], heads[layers * num_heads :]
        by_layer = [
            decoder[first : first + num_heads] for first in range(0, len(decoder), num_heads)
        ]
        length = len(encoder[0])  # with EOS or without
        return {
            "encoder": np.reshape(encoder, (layers, num_heads, length, length)),
            "decoder": np.array(by_layer[0::2]),
            "cross": np.array(by_layer[1::2]),
        }

    return attentions


def reference_logits(model: Any, source: list[int], target: list[int]) -> Array:
    """Returns logits [T, V] of the token after each target token, without dropout."""
    config = model.config
    if not config.source_eos:
        source = [token for token in source if token != EOS]
    source_table, target_table = (
        float64(embedding.table) for embedding in (model.source_embedding, model.target_embedding)
    )
    x = embed(model, source_table[source], model.source_norm)
    for layer in model.encoder.layers:
        x = residual(config, layer.self_attention_residual, x, self_attend, layer)
        x = residual(config, layer.feed_forward_residual, x, feed_forward, layer)
    memory = last_norm(config, model.encoder, x)

    x = embed(model, target_table[target], model.target_norm)
    for layer in model.decoder.layers:
        x = residual(config, layer.self_attention_residual, x, self_attend, layer, True)
        x = residual(config, layer.cross_attention_residual, x, cross_attend, layer, memory)
        x = residual(config, layer.feed_forward_residual, x, feed_forward, layer)
    x = last_norm(config, model.decoder, x)

    matrix = target_table.T if model.projection is None else float64(model.projection.kernel)
    return x @ matrix + (float64(model.output_bias) if config.output_bias else 0)


def float64(variable: Any) -> Array:
    return np.asarray(variable, "float64")


def embed(model: Any, vectors: Array, norm: Any) -> Array:
    config = model.config
    x = vectors * (np.sqrt(config.model_dim) if config.scale_embeddings else 1)
    x = x + encode_positions(model, len(vectors))
    return normalize(config, norm, x) if config.embedding_norm else x


def encode_positions(model: Any, length: int) -> Array:
    config = model.config
    numbers = np.arange(length) + config.first_position
    if config.positions in ("relative", "rotary"):
        return np.zeros(config.model_dim)
    if config.positions == "learned":
        return float64(model.positions.table)[numbers]
    half = config.model_dim // 2
    if config.positions == "sinusoidal":
        angles = numbers[:, None] / 10000 ** (2 * np.arange(half) / config.model_dim)
        result = np.zeros((length, config.model_dim))
        result[:, 0::2], result[:, 1::2] = np.sin(angles), np.cos(angles)
        return result
    steps = half if config.positions == "halves" else half - 1
    angles = numbers[:, None] * np.exp(-np.arange(half) * np.log(10000) / steps)
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
    inner = activate(layer.feed_forward.activation, affine(layer.feed_forward.inner, x))
    return affine(layer.feed_forward.outer, inner)


def activate(name: str, x: Array) -> Array:
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    if name == "gelu_tanh":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return x / (1 + np.exp(-x * {"swish": 1, "gelu_sigmoid": 1.702}[name]))


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


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def attend(attention: Any, query: Array, keys: Array, values: Array, causal: bool) -> Array:
    is_self = hasattr(attention, "positions")
    heads = []
    for head in range(attention.num_heads):
        q, k, v = (
            np.split(part, attention.num_heads, axis=1)[head] for part in (query, keys, values)
        )
        if is_self and attention.positions == "rotary":
            q, k = turn(q), turn(k)
        scores = q @ k.T
        distances = np.arange(len(k))[None, :] - np.arange(len(q))[:, None]
        if is_self and attention.positions == "relative":
            rows = distances.clip(-attention.max_relative_distance, attention.max_relative_distance)
            rows += attention.max_relative_distance
            to_keys, to_values = map(float64, (attention.relative_keys, attention.relative_values))
            scores = scores + np.einsum("tk,tsk->ts", q, to_keys[rows])  # Shaw et al. 2018, eq. 2
        scores = scores / np.sqrt(attention.key_dim)
        if causal:
            scores[distances > 0] = -np.inf
        if window := getattr(attention, "window", None):
            scores[abs(distances) > (window - 1) / 2] = -np.inf
        weights = softmax(scores)
        head_output = weights @ v
        if is_self and attention.positions == "relative":
            head_output = head_output + np.einsum("ts,tsu->tu", weights, to_values[rows])  # eq. 1
        heads.append(head_output)
    return affine(attention.output_projection, np.concatenate(heads, axis=1))


def turn(x: Array) -> Array:
    """Su et al. 2021: dimensions 2i and 2i + 1 of row m, a complex number, times e^(i m theta)."""
    theta = 10000.0 ** (-np.arange(0, x.shape[1], 2) / x.shape[1])
    turned = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * np.arange(len(x))[:, None] * theta)
    return np.stack([turned.real, turned.imag], axis=2).reshape(x.shape)
