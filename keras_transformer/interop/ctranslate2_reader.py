"""Reads a CTranslate2 model folder.

model.bin                      options and weights
config.json                    names of the special tokens
shared_vocabulary.json         tokens, or source_vocabulary.json and target_vocabulary.json; or .txt
source.model, target.model     SentencePiece models, where the folder was written here
"""

import functools
import json
import math
import pathlib
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.errors import InputError
from keras_transformer.interop.ctranslate2_file import read_model_bin
from keras_transformer.interop.ctranslate2_specification import ACTIVATIONS
from keras_transformer.interop.foreign import ForeignModel, Layout
from keras_transformer.interop.model_files import Given, read_json, read_text, refuse
from keras_transformer.interop.symbols import Symbols, make_vocabularies
from keras_transformer.interop.tensors import Array, Tensors
from keras_transformer.layers import sinusoids

_NAMES = {
    "self.fused": "{side}/layer_{i}/self_attention/linear_0/{kind}",
    "self.out": "{side}/layer_{i}/self_attention/linear_1/{kind}",
    "self.norm": "{side}/layer_{i}/self_attention/layer_norm/{kind}",
    "cross.query": "{side}/layer_{i}/attention/linear_0/{kind}",
    "cross.fused": "{side}/layer_{i}/attention/linear_1/{kind}",
    "cross.out": "{side}/layer_{i}/attention/linear_2/{kind}",
    "cross.norm": "{side}/layer_{i}/attention/layer_norm/{kind}",
    "ffn.inner": "{side}/layer_{i}/ffn/linear_0/{kind}",
    "ffn.outer": "{side}/layer_{i}/ffn/linear_1/{kind}",
    "ffn.norm": "{side}/layer_{i}/ffn/layer_norm/{kind}",
    "final.norm": "{side}/layer_norm/{kind}",
    "embedding.norm": "{side}/layernorm_embedding/{kind}",
}
# Options that change nothing here, or are read by name.
_IGNORED = (
    "*/alignment_heads", "*/alignment_layer", "*/alibi_use_positive_positions", "*/scale_alibi",
    "*/embeddings_merge", "*/layer_norm_epsilon", "*weight_scale", "*/num_heads_kv", "*/head_dim",
    "*/queries_scale",
    "*/num_source_embeddings",
)  # fmt: skip


def is_ctranslate2(folder: pathlib.Path) -> bool:
    """Whether a folder holds such a model."""
    return (folder / "model.bin").is_file()


def read_ctranslate2(folder: pathlib.Path, given: Given) -> ForeignModel:
    """Returns the model in a folder, its weights in float32."""
    tensors = read_model_bin(folder / "model.bin")
    config = read_json(folder / "config.json")
    option = functools.partial(_option, tensors)
    options = _options(tensors, config)
    sides = _symbols(folder, config, bool(option("decoder/start_from_zero_embedding", 0)))
    source = tensors.get("encoder/embeddings_0/weight", (None, None))
    target = tensors.get("decoder/embeddings/weight", (None, None))
    source = target if np.array_equal(source, target) else source
    projection = tensors.get("decoder/projection/weight", target.shape)
    bias = "decoder/projection/bias"
    positions, table = _positions(tensors, target.shape[1], given)
    tensors.ignore(*_IGNORED)
    beside = (folder / "source.model", folder / "target.model")
    spms = given.spms or (beside if all(path.is_file() for path in beside) else ())
    return ForeignModel(
        options=options | positions,
        tensors=tensors,
        layout=Layout(names=_NAMES, gain="gamma", offset="beta"),
        source_table=source,
        target_table=target,
        projection=target if np.array_equal(projection, target) else projection,
        output_bias=tensors.get(bias, (len(target),)) if bias in tensors else None,
        position_table=table,
        source=sides[0],
        target=sides[1],
        vocabularies=make_vocabularies(sides, spms, str(folder)),
        search={
            "length_penalty": 1.0,
            "length_penalty_form": "power",
            "beam_size": 2,
            "early_stop": "first",
        },
    )


def _option(tensors: Tensors, name: str, default: float) -> float:
    return float(tensors.get(name).reshape(-1)[0]) if name in tensors else default


def _options(tensors: Tensors, config: dict[str, Any]) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` lists all that cannot be imported."""
    option = functools.partial(_option, tensors)
    activations = {number: name for name, number in ACTIVATIONS.items()}
    both = {
        name: [option(f"{side}/{name}", default) for side in ("encoder", "decoder")]
        for name, default in (("num_heads", 0), ("pre_norm", 1), ("activation", 0))
    }
    scales = [
        _scale(option(f"{side}/scale_embeddings", 1), tensors) for side in ("encoder", "decoder")
    ]
    refuse(
        {f"{name} {values[0]:g} and {values[1]:g}": values[0] != values[1]
         for name, values in both.items()}
        | {f"activation {both['activation'][0]:g}": both["activation"][0] not in activations}
        | {"embeddings scaled by another number": None in scales or scales[0] != scales[1]}
        | {"multi_query_attention": option("encoder/multi_query_attention", 0)}
        | {"alibi": option("decoder/alibi", 0)}
        | {"add_source_bos": config.get("add_source_bos")}
        | {"queries_scale of another head_dim": _is_scaled_otherwise(tensors, both["num_heads"][0])}
    )  # fmt: skip
    starts_from_zero = bool(option("decoder/start_from_zero_embedding", 0))
    norms = [f"{side}/layernorm_embedding/gamma" in tensors for side in ("encoder", "decoder")]
    return {
        "num_layers": tensors.count("encoder/layer_{}/ffn/linear_0/weight"),
        "decoder_layers": tensors.count("decoder/layer_{}/ffn/linear_0/weight"),
        "num_heads": int(both["num_heads"][0]),
        "activation": activations[int(both["activation"][0])],
        "norm_position": "pre" if both["pre_norm"][0] else "post",
        "norm_epsilon": config.get("layer_norm_epsilon") or 1e-5,
        "embedding_norm": norms[0] and norms[1],
        "scale_embeddings": scales[0],
        "source_eos": starts_from_zero or bool(config.get("add_source_eos", False)),
    }


def _is_scaled_otherwise(tensors: Tensors, num_heads: float) -> bool:
    """Whether queries are multiplied by another number than the root of 1 / (D / H)."""
    model_dim = tensors.get("decoder/embeddings/weight", (None, None)).shape[1]
    scales = (_option(tensors, name, 0) for name in tensors if name.endswith("/queries_scale"))
    own = math.sqrt(max(num_heads, 1) / model_dim)
    return any(not math.isclose(scale, own, rel_tol=1e-4) for scale in scales)


def _scale(value: float, tensors: Tensors) -> bool | None:
    """Returns whether embeddings are multiplied by the root of their width; None: by another."""
    root = math.sqrt(tensors.get("decoder/embeddings/weight", (None, None)).shape[1])
    if value in (0, 1):
        return value == 1
    return True if math.isclose(value, root, rel_tol=1e-4) else None


def _positions(
    tensors: Tensors, model_dim: int, given: Given
) -> tuple[dict[str, Any], Array | None]:
    """Returns fields of `TransformerConfig`, and the table where the positions are learned."""
    names = [f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")]
    if given.positions == "marian":
        tensors.ignore(*names)
        return {"positions": "concatenated", "first_position": 0}, None
    if names[0] not in tensors or names[1] not in tensors:
        refuse({"relative or rotary positions": _has_no_positions(tensors)})
        return {"positions": "concatenated", "first_position": 1}, None
    table, other = (tensors.get(name, (None, model_dim)) for name in names)
    refuse({"positions that differ between encoder and decoder": not np.array_equal(table, other)})
    for kind in ("sinusoidal", "concatenated", "halves"):
        for first in range(3):
            formula = sinusoids(np.arange(len(table)) + first, model_dim, kind)
            if np.allclose(table, ops.convert_to_numpy(formula), atol=2e-3):
                return {"positions": kind, "first_position": first}, None
    return {}, table


def _has_no_positions(tensors: Tensors) -> bool:
    return any("relative" in name or "rotary" in name for name in tensors)


def _symbols(
    folder: pathlib.Path, config: dict[str, Any], starts_from_zero: bool
) -> tuple[Symbols, Symbols]:
    unk, start, eos = (
        config.get(f"{name}_token", default)
        for name, default in (("unk", "<unk>"), ("decoder_start", "<s>"), ("eos", "</s>"))
    )

    def find(path: pathlib.Path, side: str) -> Symbols:
        tokens, names = _tokens(path), {"unk": unk, "eos": eos}
        if tokens[1:4] == [unk, start, eos] and tokens[0].strip("<>") == "pad":  # written here
            names |= {"pad": tokens[0], "start": start}
        elif side == "target" and not starts_from_zero:
            names["start"] = start
        return Symbols.find(tokens, str(path), **names)

    if (shared := _vocabulary_path(folder, "shared")) is not None:
        symbols = find(shared, "target")
        return symbols, symbols
    source, target = (
        find(_vocabulary_path(folder, side) or folder / f"{side}_vocabulary.json", side)
        for side in ("source", "target")
    )
    return source, target


def _vocabulary_path(folder: pathlib.Path, side: str) -> pathlib.Path | None:
    paths = (folder / f"{side}_vocabulary{ending}" for ending in (".json", ".txt"))
    return next((path for path in paths if path.is_file()), None)


def _tokens(path: pathlib.Path) -> list[str]:
    if path.suffix == ".txt":
        return read_text(path).removesuffix("\n").split("\n")
    try:
        tokens = json.loads(read_text(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON, or damaged ({error}); convert it again") from error
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{path} is no list of tokens; convert the model again")
    return tokens
