"""A step with a KV cache equals the causal pass: every layer, width, kind of cache and mode.

Shapes: B batch, W hypotheses, T length, S memory length, D model dimension, H heads.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import DecodingState
from keras_transformer.layers import (
    Decoder,
    FixedSlots,
    GrowingSlots,
    SelfAttention,
    UniversalDecoder,
    WindowedSelfAttention,
    slot_bias,
)

B, T, S, D, H = 2, 5, 4, 8, 2
RANDOM = np.random.default_rng(1)
MEMORY = RANDOM.normal(size=(B, S, D)).astype("float32")
HEADS = dict(num_heads=H, key_dim=4, value_dim=6, use_bias=True)
SUBLAYERS = dict(num_heads=H, key_dim=4, value_dim=4, feed_forward_dim=12)
PRE = dict(norm_position="pre", max_relative_distance=2, attention_bias=True)


def window(size, **options):
    return functools.partial(WindowedSelfAttention, window=size, **HEADS, **options)


LAYERS = {
    "self": functools.partial(SelfAttention, **HEADS),
    "relative": functools.partial(SelfAttention, max_relative_distance=2, **HEADS),
    "window 1": window(1),
    "window 3, relative": window(3, max_relative_distance=16),
    "window 5": window(5),
    "window 11": window(11),
    "decoder": functools.partial(Decoder, num_layers=2, **SUBLAYERS),
    "decoder, window, pre": functools.partial(
        Decoder, num_layers=2, attention_window=3, **SUBLAYERS, **PRE
    ),
    "universal decoder": functools.partial(UniversalDecoder, num_steps=2, **SUBLAYERS),
}
# XLA takes seconds: one layer of each kind of step.
CASES = [
    *((name, beams, kind) for name in LAYERS for beams, kind in
      [(1, "growing"), (1, "fixed graph"), (3, "growing"), (3, "fixed graph")]),
    ("relative", 3, "fixed XLA"), ("window 3, relative", 3, "fixed XLA"),
]  # fmt: skip


@functools.cache
def make_layer(name):
    """Returns a layer with random weights, and its outputs for x [B * 3, T, D]."""
    layer = LAYERS[name]()
    x = np.random.default_rng(2).normal(size=(B * 3, T, D)).astype("float32")

    def full():
        if hasattr(layer, "project_memory"):
            return layer(x, np.repeat(MEMORY, 3, axis=0))
        return layer(x, use_causal_mask=True)

    full()
    layer.set_weights([RANDOM.normal(scale=0.4, size=w.shape) for w in layer.weights])
    return layer, x.reshape(B, 3, T, D), np.asarray(full()).reshape(B, 3, T, -1)


@pytest.mark.parametrize(("name", "beams", "kind"), CASES)
def test_cached_steps_equal_the_causal_pass(name, beams, kind):
    layer, x, expected = make_layer(name)
    is_fixed = "fixed" in kind
    kv_cache = layer.empty_kv_cache(B, T * beams if is_fixed else 0)
    step = layer.step
    if hasattr(layer, "project_memory"):
        memory = layer.project_memory(MEMORY)

        def step(new, kv_cache, time, bias=None):
            return layer.step(new, memory, kv_cache, time, bias)[:2]

    if is_fixed:
        step = tf.function(step, jit_compile="XLA" in kind, autograph=False)
    size = getattr(layer, "window", None)
    slots = kv_cache[0].keys if isinstance(kv_cache, list) else kv_cache.keys
    assert isinstance(slots, FixedSlots if is_fixed else GrowingSlots)
    for time in range(T):
        bias = None  # each row is a sequence
        if beams > 1 or is_fixed:
            slots = kv_cache[0].keys if isinstance(kv_cache, list) else kv_cache.keys
            ids = np.zeros((B, beams), "int32")
            bias = slot_bias(ids, DecodingState(time=time), slots, size)
        new = x[:, :beams, time].reshape(-1, D)
        row, kv_cache = step(new, kv_cache, tf.constant(time) if is_fixed else time, bias)
        row = np.asarray(row).reshape(B, beams, -1)
        np.testing.assert_allclose(row, expected[:, :beams, time], rtol=1e-4, atol=1e-5)
    if size is not None and not is_fixed:  # it keeps no more than a later token sees
        keys = (kv_cache[0] if isinstance(kv_cache, list) else kv_cache).keys.entries
        assert keys.shape[2] == beams * min(T, size // 2)


def test_caches_have_the_compute_dtype_and_take_an_empty_batch():
    layer = SelfAttention(dtype="mixed_bfloat16", **HEADS)
    layer.build((None, None, D))
    result, kv_cache = layer.step(np.zeros((0, D), "float32"), layer.empty_kv_cache(0), 0)
    assert result.shape == (0, D)
    assert kv_cache.keys.entries.shape == (0, H, 1, 4)
    assert kv_cache.values.entries.shape == (0, H, 1, 6)
    assert kv_cache.keys.entries.dtype == "bfloat16"
