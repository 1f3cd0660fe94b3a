"""A model's weights under CTranslate2's names, and its options under CTranslate2's.

Shapes: D model dimension, H heads, K and U key and value dimension of a head, P positions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers import CrossAttention, SelfAttention, sinusoids
from keras_transformer.models import Transformer

Array = npt.NDArray[Any]

# Rows of the table of positions; CTranslate2 refuses longer sentences, and by default cuts them to
# half as many tokens (its `max_input_length`).
NUM_POSITIONS = 2048

# Members of `ctranslate2.specs.Activation`.
ACTIVATIONS = {"relu": 0, "gelu_tanh": 1, "swish": 2, "gelu": 3, "gelu_sigmoid": 4}


def specification(model: Transformer, specs: Any) -> Any:
    """Returns a `TransformerSpec` with the weights of a model; `specs` is CTranslate2's module."""
    spec = _empty_specification(model, specs)
    encoder, decoder = spec.encoder, spec.decoder
    encoder.embeddings[0].weight = _numpy(model.source_embedding.table)
    decoder.embeddings.weight = _numpy(model.target_embedding.table)
    # Equal weights are stored once.
    encoder.position_encodings.encodings = _positions(
        getattr(model.positions, "table", None), model.config
    )
    decoder.position_encodings.encodings = encoder.position_encodings.encodings
    for layer_spec, layer in zip(encoder.layer, model.encoder.layers, strict=True):
        _set_layer(layer_spec, layer)
    for layer_spec, layer in zip(decoder.layer, model.decoder.layers, strict=True):
        _set_layer(layer_spec, layer)
        _set_cross_attention(layer_spec.attention, layer.cross_attention)
        _set_norm(layer_spec.attention.layer_norm, layer.cross_attention_residual.norm)
    if model.config.embedding_norm:
        _set_norm(encoder.layernorm_embedding, model.source_norm)
        _set_norm(decoder.layernorm_embedding, model.target_norm)
    if model.config.norm_position == "pre":
        _set_norm(encoder.layer_norm, model.encoder.final_norm)
        _set_norm(decoder.layer_norm, model.decoder.final_norm)

    decoder.projection.weight = decoder.embeddings.weight
    if model.projection is not None:
        _set_dense(decoder.projection, model.projection)
    if model.output_bias is not None:
        decoder.projection.bias = _numpy(model.output_bias)
    return spec


def _empty_specification(model: Transformer, specs: Any) -> Any:
    """Returns a `TransformerSpec` with the model's options and no weights."""
    config = model.config
    attention = model.decoder.layers[0].self_attention
    options = {
        "pre_norm": config.norm_position == "pre",
        "activation": ACTIVATIONS[config.activation],
        "layernorm_embedding": config.embedding_norm,
        # CTranslate2's keys and values have one width: the narrower ones are padded with zeros.
        "head_dim": max(attention.key_dim, attention.value_dim),
    }
    encoder = specs.TransformerEncoderSpec(config.num_layers, config.num_heads, **options)
    decoder = specs.TransformerDecoderSpec(
        config.decoder_layers or config.num_layers,
        config.num_heads,
        # Attention on request is the mean of the last layer's heads.
        alignment_heads=config.num_heads,
        **options,
    )
    encoder.scale_embeddings = decoder.scale_embeddings = config.scale_embeddings
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.config.add_source_eos = config.source_eos
    return spec


def _positions(table: Any, config: TransformerConfig) -> Array:
    """Returns the positions of a sentence's tokens, float32 [P, D]."""
    positions = np.arange(NUM_POSITIONS) + config.first_position
    if table is not None:
        return _numpy(table)[np.minimum(positions, config.max_positions - 1)]
    return _numpy(sinusoids(positions, config.model_dim, config.positions))


def _set_layer(spec: Any, layer: Any) -> None:
    """Sets what layers of encoder and decoder have in common."""
    _set_self_attention(spec.self_attention, layer.self_attention)
    _set_norm(spec.self_attention.layer_norm, layer.self_attention_residual.norm)
    _set_dense(spec.ffn.linear_0, layer.feed_forward.inner)
    _set_dense(spec.ffn.linear_1, layer.feed_forward.outer)
    _set_norm(spec.ffn.layer_norm, layer.feed_forward_residual.norm)


def _set_self_attention(spec: Any, attention: SelfAttention) -> None:
    key_dim, value_dim = attention.key_dim, attention.value_dim
    spec.queries_scale = key_dim**-0.5
    _set_to_heads(spec.linear[0], attention.projection, attention, (key_dim, key_dim, value_dim))
    _set_from_heads(spec.linear[1], attention)


def _set_cross_attention(spec: Any, attention: CrossAttention) -> None:
    key_dim, value_dim = attention.key_dim, attention.value_dim
    spec.queries_scale = key_dim**-0.5
    _set_to_heads(spec.linear[0], attention.query_projection, attention, (key_dim,))
    _set_to_heads(spec.linear[1], attention.memory_projection, attention, (key_dim, value_dim))
    _set_from_heads(spec.linear[2], attention)


def _set_to_heads(
    spec: Any, dense: Any, attention: SelfAttention | CrossAttention, dims: Sequence[int]
) -> None:
    """Sets a joint projection of D to heads: of queries, keys or values, as wide as `dims`."""
    ends = np.cumsum([attention.num_heads * dim for dim in dims])[:-1]

    def widened(columns: Array) -> Array:
        parts = np.split(columns, ends, axis=-1)
        return np.concatenate([_widened(part, attention) for part in parts], axis=-1)

    spec.weight = widened(_numpy(dense.kernel)).T
    if dense.use_bias:
        spec.bias = widened(_numpy(dense.bias))


def _set_from_heads(spec: Any, attention: SelfAttention | CrossAttention) -> None:
    """Sets the projection of all heads' values to D."""
    _set_dense(spec, attention.output_projection)
    spec.weight = _widened(spec.weight, attention)  # [D, H * max(K, U)]


def _widened(columns: Array, attention: SelfAttention | CrossAttention) -> Array:
    """Pads [..., H * K] or [..., H * U] to [..., H * max(K, U)] with zeros, which add nothing."""
    heads = columns.reshape(*columns.shape[:-1], attention.num_heads, -1)
    missing = max(attention.key_dim, attention.value_dim) - heads.shape[-1]
    heads = np.pad(heads, [(0, 0)] * (heads.ndim - 1) + [(0, missing)])
    return heads.reshape(*columns.shape[:-1], -1)


def _set_dense(spec: Any, dense: Any) -> None:
    spec.weight = _numpy(dense.kernel).T  # CTranslate2's matrices are [out, in]
    if dense.use_bias:
        spec.bias = _numpy(dense.bias)


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _numpy(norm.gain)
    spec.beta = _numpy(norm.bias)


def _numpy(variable: Any) -> Array:
    """Returns a copy: quantization works in place and must not change the model."""
    return np.array(ops.convert_to_numpy(variable), "float32")
