"""Masks, the biases made of them, and how each layer reads them: eager, in graphs, functional.

Shapes: B batch, T target length, S source length, D model dimension.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.layers import (
    CrossAttention,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    PositionalEncoding,
    SelfAttention,
    UniversalDecoder,
    UniversalEncoder,
    WindowedSelfAttention,
)
from keras_transformer.layers.masks import mask_to_bias, predicting_mask


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("score", [-1000.0, 0.0, 1000.0])
def test_hidden_key_has_no_weight_whatever_its_score(score, dtype):
    bias = ops.cast(mask_to_bias(np.array([False, True])), dtype)
    assert np.isfinite(ops.convert_to_numpy(ops.cast(bias, "float32"))).all()
    weights = ops.softmax(ops.cast([score, 0.0], dtype) + bias)
    np.testing.assert_array_equal(ops.cast(weights, "float32"), [0, 1])


def test_a_decoder_predicts_after_all_tokens_but_eos():
    found = predicting_mask(np.array([[2, 5, 3, 0]]))
    np.testing.assert_array_equal(found, [[True, True, False, False]])


# Each layer with the masks that Keras's layers take


B, T, S, D = 2, 5, 4, 8
HEADS = dict(num_heads=2, key_dim=3, value_dim=5)
SUBLAYERS = HEADS | dict(feed_forward_dim=12)
X = np.random.default_rng(1).normal(size=(B, T, D)).astype("float32")
MEMORY = np.random.default_rng(2).normal(size=(B, S, D)).astype("float32")
PADDING = np.arange(T) < [[T], [3]]
MEMORY_PADDING = np.arange(S) < [[S], [2]]
partial = functools.partial
ENCODERS = {
    "self": partial(SelfAttention, **HEADS),
    "window": partial(WindowedSelfAttention, window=3, **HEADS),
    "relative": partial(SelfAttention, max_relative_distance=2, **HEADS),
    "encoder layer": partial(EncoderLayer, **SUBLAYERS),
    "encoder": partial(Encoder, num_layers=2, **SUBLAYERS),
    "encoder, window": partial(Encoder, num_layers=2, attention_window=3, **SUBLAYERS),
    "universal encoder": partial(UniversalEncoder, num_steps=2, **SUBLAYERS),
}
DECODERS = {
    "decoder layer": partial(DecoderLayer, **SUBLAYERS),
    "decoder": partial(Decoder, num_layers=2, **SUBLAYERS),
    "decoder, window": partial(Decoder, num_layers=2, attention_window=3, **SUBLAYERS),
    "universal decoder": partial(UniversalDecoder, num_steps=2, **SUBLAYERS),
}
LAYERS = ENCODERS | DECODERS


def inputs_of(name):
    return [X, MEMORY] if name in DECODERS else [X]


def caller(mode, layer, *inputs, **options):
    """Returns what calls the layer with such inputs: eagerly, in a graph that knows no sizes but
    the last, or as a functional model.
    """
    masks = {name: value for name, value in options.items() if isinstance(value, np.ndarray)}
    fixed = {name: value for name, value in options.items() if name not in masks}
    if mode == "eager":
        return lambda *inputs: np.asarray(layer(*inputs, **options))
    if mode == "functional":
        symbolic, named = keras.tree.map_structure(
            lambda each: keras.Input(each.shape[1:], dtype=each.dtype.name), (inputs, masks)
        )
        model = keras.Model([*symbolic, *named.values()], layer(*symbolic, **named, **fixed))
        return lambda *inputs: np.asarray(model([*inputs, *masks.values()]))

    def call(inputs, masks):
        return layer(*inputs, **masks, **fixed)

    def spec(array):
        last = array.shape[-1] if array.dtype == np.float32 else None
        return tf.TensorSpec([None] * (array.ndim - 1) + [last], array.dtype)

    call(inputs, masks)  # creates the variables
    specs = tf.nest.map_structure(spec, (list(inputs), masks))
    graph = tf.function(call, input_signature=specs)
    return lambda *inputs: np.asarray(graph(list(inputs), masks))


def changed(x, token):
    other = x.copy()
    other[:, token] += 1
    return other


def reach(call, token, *memory):
    """Returns which positions [T] a change of one token reaches."""
    change = np.abs(call(X, *memory) - call(changed(X, token), *memory))
    return (change.max(axis=(0, 2)) > 1e-6).tolist()


LAST = [False] * 4 + [True]


@pytest.mark.parametrize("name", LAYERS)
def test_decoders_are_causal_by_default_and_encoders_with_use_causal_mask(name):
    layer, inputs = LAYERS[name](), inputs_of(name)
    causal, whole = {}, dict(use_causal_mask=False)
    if name in ENCODERS:
        causal, whole = dict(use_causal_mask=True), {}
    assert reach(caller("graph", layer, *inputs, **causal), 4, *inputs[1:]) == LAST
    assert reach(caller("functional", layer, *inputs, **whole), 4, *inputs[1:])[3:] == [True, True]


@pytest.mark.parametrize("name", LAYERS)
def test_masks_hide_padding(name):
    layer, inputs, masks = LAYERS[name](), inputs_of(name), dict(mask=PADDING)
    if name in DECODERS:
        masks |= dict(memory_mask=MEMORY_PADDING, use_causal_mask=False)
    others = [np.where(PADDING[..., None], X, 9), np.where(MEMORY_PADDING[..., None], MEMORY, 9)]
    call = caller("functional", layer, *inputs, **masks)
    found, expected = call(*others[: len(inputs)]), call(*inputs)
    np.testing.assert_allclose(found[PADDING], expected[PADDING], atol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "functional"])
@pytest.mark.parametrize("name", LAYERS)
def test_keras_masks_equal_masks_as_arguments(name, mode):
    layer, inputs, masks = LAYERS[name](), inputs_of(name), dict(mask=PADDING)
    if name in DECODERS:
        masks |= dict(memory_mask=MEMORY_PADDING)
    expected = np.asarray(layer(*inputs, **masks))
    zeros = [np.where(PADDING[..., None], X, 0), np.where(MEMORY_PADDING[..., None], MEMORY, 0)]
    masking = keras.layers.Masking()

    def with_masks(*inputs):
        return layer(*map(masking, inputs))

    found = caller(mode, with_masks, *zeros[: len(inputs)])(*zeros[: len(inputs)])
    np.testing.assert_allclose(found[PADDING], expected[PADDING], atol=1e-5)


def test_keras_masks_pass_through_layers():
    embedding = keras.layers.Embedding(10, D, mask_zero=True)
    x = PositionalEncoding(D)(embedding(np.array([[5, 6, 0]])))
    output = Encoder(num_layers=1, **SUBLAYERS)(x)
    np.testing.assert_array_equal(output._keras_mask, [[True, True, False]])


@pytest.mark.parametrize("name", ["self", "window", "encoder layer", "decoder layer"])
def test_attention_masks_are_true_where_a_query_attends(name):
    mask = np.broadcast_to(np.eye(T, dtype=bool), (B, T, T)).copy()
    call = caller("graph", LAYERS[name](), *inputs_of(name), attention_mask=mask)
    assert reach(call, 2, *inputs_of(name)[1:]) == [False, False, True, False, False]


@pytest.mark.parametrize("name", ["cross", *DECODERS])
def test_a_memory_may_have_another_width(name):
    layer = CrossAttention(**HEADS) if name == "cross" else DECODERS[name]()
    memory = np.concatenate([MEMORY, MEMORY[..., :3]], axis=-1)
    call = caller("functional", layer, X, memory)
    assert call(X, memory).shape == X.shape
    assert np.abs(call(X, memory) - call(X, changed(memory, 1))).max() > 1e-3
