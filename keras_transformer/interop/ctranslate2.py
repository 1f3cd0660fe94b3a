"""Writes a model as a CTranslate2 model folder, for where TensorFlow does not fit.

The weights are renamed and transposed, not approximated: CTranslate2 computes the same
log-probabilities in float32.

    model.bin, config.json         weights and tokens, as CTranslate2's Translator loads them
    shared_vocabulary.json         the pieces, or source_ and target_vocabulary.json
    source.model, target.model     SentencePiece models that turn text into pieces and back

Shapes: D model dimension, H heads, K and U key and value dimension of a head, P positions.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from keras import ops

from keras_transformer.atomic_folders import atomic_folder
from keras_transformer.config import BOS_ID, EOS_ID, UNK_ID, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.layers import CrossAttention, SelfAttention, sinusoids
from keras_transformer.models import Transformer
from keras_transformer.text import Vocabulary
from keras_transformer.text.vocabulary import RESERVED_IDS

Array = npt.NDArray[Any]

# Rows of the table of positions; CTranslate2 refuses longer sentences, and by default cuts them to
# half as many tokens (its `max_input_length`).
NUM_POSITIONS = 2048


def export_ctranslate2(
    model: Transformer,
    source: Vocabulary,
    target: Vocabulary,
    folder: str | os.PathLike[str],
    *,
    quantization: str | None = None,
) -> pathlib.Path:
    """Writes the folder atomically and returns its path.

    CTranslate2 adds EOS to the source and begins with BOS by itself. Unlike `Translator` it can
    generate padding and BOS, to which a trained model gives next to no probability; its length
    penalty is length ** alpha, EOS not counted; it cuts translations at `max_decoding_length`.

    Args:
        model: a single Transformer; only `norm_form` "sigma" cannot be written.
        source, target: the vocabularies.
        folder: a path that does not exist.
        quantization: how weights are stored: None or "float32" as they are, or "int8", "int16",
            "float16", "bfloat16" (which needs PyTorch), "int8_float16" and their like.

    Raises:
        InputError: ctranslate2 is not installed, cannot express the model, or does not know the
            quantization; a vocabulary is not the model's; the folder exists or cannot be written.

    Example:
        >>> folder = export_ctranslate2(model, source, target, "exports/en-de")
        >>> encoder = sentencepiece.SentencePieceProcessor(f"{folder}/source.model")
        >>> decoder = sentencepiece.SentencePieceProcessor(f"{folder}/target.model")
        >>> pieces = encoder.encode(["two hundred"], out_type=str)
        >>> results = ctranslate2.Translator(str(folder)).translate_batch(pieces, beam_size=4)
        >>> decoder.decode([result.hypotheses[0] for result in results])
        ['zweihundert']
    """
    try:
        from ctranslate2.specs import transformer_spec as specs
    except ImportError as error:
        raise InputError(
            "this export needs the package ctranslate2; "
            'pip install "keras_transformer[ctranslate2]" or pip install ctranslate2'
        ) from error
    _check(model, source, target)
    path = pathlib.Path(folder)
    if path.exists():
        raise InputError(f"export folder {path} exists already; give a path that does not")
    spec = _specification(model, specs)
    _register(spec, source, target)
    spec.validate()
    try:
        spec.optimize(quantization=quantization)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"quantization {quantization!r} cannot be used ({error})") from error
    try:
        with atomic_folder(path) as aside:
            spec.save(str(aside))
            source.save(aside / "source.model")
            target.save(aside / "target.model")
    except OSError as error:
        raise InputError(f"cannot write the export to {path} ({error.strerror})") from error
    return path


def _check(model: Any, source: Vocabulary, target: Vocabulary) -> None:
    if not isinstance(model, Transformer):
        name = type(model).__name__
        raise InputError(
            f"CTranslate2 can have a single Transformer, got {name}; export it as a SavedModel"
        )
    config = model.config
    if config.norm_form != "variance":
        raise InputError(
            f"CTranslate2 has no layer normalization of norm_form {config.norm_form!r}; "
            "export the model as a SavedModel, or train one with norm_form 'variance'"
        )
    sizes = (config.vocabulary_size, config.target_size)
    for side, size, vocabulary in zip(("source", "target"), sizes, (source, target), strict=True):
        if vocabulary.size != size:
            raise InputError(
                f"the model has {size} {side} tokens and the {side} vocabulary {vocabulary.size}; "
                "give the vocabularies that it was trained with"
            )


def _register(spec: Any, source: Vocabulary, target: Vocabulary) -> None:
    """Registers the pieces; both sides must have the same ones for the reserved tokens."""
    reserved = target.pieces(RESERVED_IDS)
    spec.register_source_vocabulary(reserved + source.pieces(range(len(reserved), source.size)))
    spec.register_target_vocabulary(target.pieces(range(target.size)))
    spec.config.unk_token = reserved[UNK_ID]
    spec.config.bos_token = spec.config.decoder_start_token = reserved[BOS_ID]
    spec.config.eos_token = reserved[EOS_ID]
    spec.config.add_source_eos = True


def _specification(model: Transformer, specs: Any) -> Any:
    """Returns a `TransformerSpec` with the model's weights."""
    config = model.config
    attention = model.decoder.layers[0].self_attention
    options = {
        "pre_norm": config.norm_position == "pre",
        # CTranslate2's keys and values have one width: the narrower ones are padded with zeros.
        "head_dim": max(attention.key_dim, attention.value_dim),
    }
    encoder = specs.TransformerEncoderSpec(config.num_layers, config.num_heads, **options)
    decoder = specs.TransformerDecoderSpec(
        config.num_layers,
        config.num_heads,
        # Attention on request is the mean of the last layer's heads.
        alignment_heads=config.num_heads,
        **options,
    )
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = config.norm_epsilon

    encoder.embeddings[0].weight = _numpy(model.source_embedding.table)
    decoder.embeddings.weight = _numpy(model.target_embedding.table)
    # Equal weights are stored once.
    encoder.position_encodings.encodings = _positions(model.positions.table, config)
    decoder.position_encodings.encodings = encoder.position_encodings.encodings
    for layer_spec, layer in zip(encoder.layer, model.encoder.layers, strict=True):
        _set_layer(layer_spec, layer)
    for layer_spec, layer in zip(decoder.layer, model.decoder.layers, strict=True):
        _set_layer(layer_spec, layer)
        _set_cross_attention(layer_spec.attention, layer.cross_attention)
        _set_norm(layer_spec.attention.layer_norm, layer.cross_attention_residual.norm)
    if config.norm_position == "pre":
        _set_norm(encoder.layer_norm, model.encoder.final_norm)
        _set_norm(decoder.layer_norm, model.decoder.final_norm)

    decoder.projection.weight = decoder.embeddings.weight
    if model.projection is not None:
        _set_dense(decoder.projection, model.projection)
    if model.output_bias is not None:
        decoder.projection.bias = _numpy(model.output_bias)
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
