"""The Transformer and the Universal Transformer in float64 NumPy, written from the papers.

One sentence at a time, without padding: Vaswani et al. 2017, Shaw et al. 2018 for distances,
Graves 2016 for halting, token by token. A model gives the weights.

Shapes: S source length, T target length, D model dimension, H heads, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
EOS = 3


class Answer(NamedTuple):
    """What a model says of one sentence pair."""

    logits: Array  # [T, V]
    heads: dict[str, Array]  # "encoder" [L, H, S, S], "decoder" [L, H, T, T], "cross" [L, H, T, S]
    halting: dict[str, tuple[Array, Array]]  # steps and remainders of each side, if it halts
    attention: Array  # [T, S], from which words are aligned


def answer(model: Any, source: list[int], target: list[int]) -> Answer:
    """Returns the logits of the token after each target token, and how they came about."""
    config = model.config
    if not getattr(config, "source_eos", True):
        source = [token for token in source if token != EOS]
    heads: dict[str, list[Array]] = {"encoder": [], "decoder": [], "cross": []}
    halting: dict[str, tuple[Array, Array]] = {}
    shares: dict[str, Array] = {}  # of each step in the output of each token, [L, T]

    def attend(kind: str, layer: Any, x: Array, memory: Array) -> Array:
        if kind == "decoder" and getattr(config, "decoder_mixer", "") == "ssru":
            return ssru(layer.self_attention, x)
        attention = layer.cross_attention if kind == "cross" else layer.self_attention
        output, weights = multi_head(attention, x, memory, causal=kind == "decoder")
        heads[kind].append(weights)
        return output

    def encoder_layer(layer: Any, x: Array) -> Array:
        x = residual(config, layer.self_attention_norm, x, lambda y: attend("encoder", layer, y, y))
        return residual(config, layer.feed_forward_norm, x, lambda y: feed_forward(y, layer))

    def decoder_layer(layer: Any, x: Array) -> Array:
        x = residual(config, layer.self_attention_norm, x, lambda y: attend("decoder", layer, y, y))
        x = residual(
            config, layer.cross_attention_norm, x, lambda y: attend("cross", layer, y, memory)
        )
        return residual(config, layer.feed_forward_norm, x, lambda y: feed_forward(y, layer))

    def stack(side: str, ids: list[int], apply: Callable[[Any, Array], Array]) -> Array:
        layers = model.encoder if side == "source" else model.decoder
        x = float64(getattr(model, f"{side}_embedding").table)[ids]
        x = x * (np.sqrt(config.model_dim) if config.scale_embeddings else 1)
        positions = encode_positions(model, len(ids))
        if hasattr(layers, "halting_unit"):
            x, halting[side], shares[side] = universal(config, layers, x, positions, apply)
        else:
            x = x + positions
            if config.embedding_norm:
                x = normalize(config, getattr(model, f"{side}_norm"), x)
            for layer in layers.layers:
                x = apply(layer, x)
        return normalize(config, layers.final_norm, x) if config.norm_position == "pre" else x

    memory = stack("source", source, encoder_layer)
    x = stack("target", target, decoder_layer)
    if model.projection is None:
        logits = x @ float64(model.target_embedding.table).T
    else:
        logits = x @ float64(model.projection.kernel)
    if config.output_bias:
        logits = logits + float64(model.output_bias)
    found = {name: np.array(each) for name, each in heads.items() if each}
    attention = found["cross"].mean(axis=1)  # [L, T, S]
    if "target" in shares:
        attention = np.sum(shares["target"][:, :, None] * attention, axis=0)
    else:
        attention = attention[-1]
    return Answer(logits, found, halting, attention)


def universal(
    config: Any, stack: Any, x: Array, positions: Array, apply: Callable[[Any, Array], Array]
) -> tuple[Array, tuple[Array, Array], Array]:
    """Returns the output [T, D] of a stack, the steps and remainders [T] of its tokens, and the
    share of each step in each token's attention [L, T].
    """
    unit, length = stack.halting_unit, len(x)
    output = np.zeros_like(x)
    total, steps, remainders = np.zeros((3, length))
    halted, shares = np.zeros(length, bool), np.zeros((config.num_steps, length))
    for step in range(1, config.num_steps + 1):
        angles = step / 10000 ** (np.arange(0, config.model_dim, 2) / config.model_dim)
        signal = np.stack([np.sin(angles), np.cos(angles)], axis=-1).ravel()
        entering = x + positions + signal
        y = apply(stack.layer, entering)
        if unit is None:
            x = output = y
            steps += 1
            shares[-1] = 1
            continue
        old = halted.copy()
        for token in range(length):
            weight = 0.0
            if not halted[token]:
                p = sigmoid(affine(unit, entering[token])[0])
                steps[token] += 1
                if total[token] + p > 1 - config.halting_epsilon or step == config.num_steps:
                    weight = remainders[token] = 1 - total[token]
                    halted[token] = True
                else:
                    weight = p
                    total[token] += p
            shares[step - 1, token] = weight
            output[token] += weight * y[token]
        x = np.where(old[:, None], x, y)
    return output, (steps, remainders), shares


def float64(variable: Any) -> Array:
    return np.asarray(variable, "float64")


def encode_positions(model: Any, length: int) -> Array:
    config = model.config
    numbers = np.arange(length) + config.first_position
    if config.positions == "relative":
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
    divisor = np.sqrt(deviation**2 + config.norm_epsilon)
    return float64(layer.gain) * (x - mean) / divisor + float64(layer.bias)


def residual(config: Any, norm: Any, x: Array, sublayer: Callable[[Array], Array]) -> Array:
    if config.norm_position == "post":
        return normalize(config, norm, x + sublayer(x))
    return x + sublayer(normalize(config, norm, x))


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


def ssru(layer: Any, x: Array) -> Array:
    """Kim et al. 2019, token by token."""
    state, outputs = np.zeros(x.shape[1]), []
    for token in x:
        forget = sigmoid(affine(layer.forget_gate, token))
        state = forget * state + (1 - forget) * affine(layer.candidate, token)
        outputs.append(np.maximum(state, 0))
    return np.array(outputs)


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def multi_head(attention: Any, x: Array, memory: Array, causal: bool) -> tuple[Array, Array]:
    """Returns the output [T, D] and the weights [H, T, S] of self-attention or cross-attention."""
    is_self = hasattr(attention, "projection")
    width = attention.num_heads * attention.key_dim
    if is_self:
        projected = affine(attention.projection, x)
        query, keys, values = np.split(projected, [width, 2 * width], axis=1)
    else:
        query = affine(attention.query_projection, x)
        keys, values = np.split(affine(attention.memory_projection, memory), [width], axis=1)
    is_relative = is_self and attention.max_relative_distance is not None
    heads, all_weights = [], []
    for head in range(attention.num_heads):
        q, k, v = (
            np.split(part, attention.num_heads, axis=1)[head] for part in (query, keys, values)
        )
        scores = q @ k.T
        distances = np.arange(len(k))[None, :] - np.arange(len(q))[:, None]
        if is_relative:
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
        output = weights @ v
        if is_relative:
            output = output + np.einsum("ts,tsu->tu", weights, to_values[rows])  # eq. 1
        heads.append(output)
        all_weights.append(weights)
    return affine(attention.output_projection, np.concatenate(heads, axis=1)), np.array(all_weights)
