"""Reads the folder of a MarianMTModel of Hugging Face's transformers.

config.json                     sizes and options
model.safetensors               weights, or pytorch_model.bin
source.spm, target.spm          SentencePiece models, which cut the text
vocab.json, target_vocab.json   ids of the tokens; the second one where the sides do not share them
generation_config.json          how it searches, where there is one
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.interop.files import Array, Given, Tensors, rate, read_json, refuse
from keras_transformer.interop.foreign import ForeignModel, Layout
from keras_transformer.interop.pytorch import read_pytorch, state_tensors
from keras_transformer.interop.safetensors_file import read_safetensors
from keras_transformer.interop.vocabulary import Symbols, make_vocabularies, tokens_of_ids

_ACTIVATIONS = {
    "relu": "relu",
    "swish": "swish",
    "silu": "swish",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_sigmoid",
}

# Of all models of this family, fairseq's included.
LAYER_NAMES = {
    "self.query": "{side}.layers.{i}.self_attn.q_proj.{kind}",
    "self.key": "{side}.layers.{i}.self_attn.k_proj.{kind}",
    "self.value": "{side}.layers.{i}.self_attn.v_proj.{kind}",
    "self.out": "{side}.layers.{i}.self_attn.out_proj.{kind}",
    "self.norm": "{side}.layers.{i}.self_attn_layer_norm.{kind}",
    "cross.query": "{side}.layers.{i}.encoder_attn.q_proj.{kind}",
    "cross.key": "{side}.layers.{i}.encoder_attn.k_proj.{kind}",
    "cross.value": "{side}.layers.{i}.encoder_attn.v_proj.{kind}",
    "cross.out": "{side}.layers.{i}.encoder_attn.out_proj.{kind}",
    "cross.norm": "{side}.layers.{i}.encoder_attn_layer_norm.{kind}",
    "ffn.inner": "{side}.layers.{i}.fc1.{kind}",
    "ffn.outer": "{side}.layers.{i}.fc2.{kind}",
    "ffn.norm": "{side}.layers.{i}.final_layer_norm.{kind}",
    "final.norm": "{side}.layer_norm.{kind}",
    "embedding.norm": "{side}.layernorm_embedding.{kind}",
}


def is_transformers(folder: pathlib.Path) -> bool:
    """Whether a folder holds such a model."""
    weights = ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json")
    return any((folder / name).is_file() for name in weights)


def read_transformers(folder: pathlib.Path, given: Given) -> ForeignModel:
    """Returns the model in a folder."""
    config = read_json(folder / "config.json")
    options = _options(config, given.positions)
    tensors = _tensors(folder)
    source_table, target_table, notes = _tables(tensors, config)
    tensors.ignore("model.*.embed_positions.weight")
    source, target = _symbols(folder, config)
    spms = given.spms or (folder / "source.spm", folder / "target.spm")
    notes += _codes(source)
    return ForeignModel(
        options=options,
        tensors=tensors,
        layout=Layout(names={part: f"model.{name}" for part, name in LAYER_NAMES.items()}),
        source_table=source_table,
        target_table=target_table,
        projection=_projection(tensors, config, target_table),
        output_bias=tensors.get("final_logits_bias", (len(target_table),)),
        source=source,
        target=target,
        vocabularies=make_vocabularies((source, target), spms, str(folder)),
        search=_search(folder, config),
        notes=notes,
    )


def _options(config: Mapping[str, Any], positions: str) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` lists all that cannot be imported."""
    if config.get("model_type") != "marian":
        raise InputError(
            f"model_type is {config.get('model_type')!r}, and of the models of transformers only "
            "'marian' (MarianMTModel) can be imported"
        )
    activation = config.get("activation_function", "gelu")
    heads = config.get("encoder_attention_heads", 16), config.get("decoder_attention_heads", 16)
    refuse(
        {
            f"activation_function {activation!r}": activation not in _ACTIVATIONS,
            f"heads {heads}": heads[0] != heads[1],
            "normalize_before": config.get("normalize_before", False),
            "normalize_embedding": config.get("normalize_embedding", False),
            "add_final_layer_norm": config.get("add_final_layer_norm", False),
            "static_position_embeddings false": not config.get("static_position_embeddings", True),
        }
    )
    return {
        "num_layers": config.get("encoder_layers", 12),
        "decoder_layers": config.get("decoder_layers", 12),
        "num_heads": heads[0],
        "activation": _ACTIVATIONS[activation],
        "dropout": rate(config.get("dropout", 0.1)),
        "norm_epsilon": 1e-5,
        "positions": "concatenated" if positions == "marian" else "halves",
        "scale_embeddings": bool(config.get("scale_embedding", False)),
    }


def _tensors(folder: pathlib.Path) -> Tensors:
    path = folder / "model.safetensors"
    if path.exists() or not (folder / "pytorch_model.bin").exists():
        return read_safetensors(path)
    path = folder / "pytorch_model.bin"
    return state_tensors(read_pytorch(path), path)


def _tables(tensors: Tensors, config: Mapping[str, Any]) -> tuple[Array, Array, list[str]]:
    """Returns the tables of source and target, and a note where copies differ."""
    names = [f"model.{name}.weight" for name in ("encoder.embed_tokens", "decoder.embed_tokens")]
    if not config.get("share_encoder_decoder_embeddings", True):
        return tensors.get(names[0], (None, None)), tensors.get(names[1], (None, None)), []
    table = tensors.get("model.shared.weight", (None, None))
    others = [name for name in names if name in tensors]
    if config.get("tie_word_embeddings", True) and "lm_head.weight" in tensors:
        others.append("lm_head.weight")
    different = [name for name in others if not np.array_equal(tensors.get(name), table)]
    notes = [f"{name} differs from model.shared.weight, which is taken." for name in different]
    return table, table, notes


def _projection(tensors: Tensors, config: Mapping[str, Any], target_table: Array) -> Array:
    if config.get("tie_word_embeddings", True):
        tensors.ignore("lm_head.weight")
        return target_table
    return tensors.get("lm_head.weight", (None, None))


def _symbols(folder: pathlib.Path, config: Mapping[str, Any]) -> tuple[Symbols, Symbols]:
    sides: list[Symbols] = []
    for name in ("vocab.json", "target_vocab.json"):
        path = folder / name
        if sides and config.get("share_encoder_decoder_embeddings", True):
            return sides[0], sides[0]
        tokens = tokens_of_ids(read_json(path), str(path))
        found = Symbols.find(tokens, str(path), unk="<unk>", eos="</s>", pad="<pad>")
        # Its row is zero in a model as Marian made it, and not in one that was trained further.
        start = config.get("decoder_start_token_id")
        sides.append(dataclasses.replace(found, start=found.pad if start is None else int(start)))
    return sides[0], sides[1]


def _codes(source: Symbols) -> list[str]:
    """Returns how a translator tells a model of several languages which one is meant."""
    codes = sorted(t for t in source.tokens if t.startswith(">>") and t.endswith("<<"))
    if not codes:
        return []
    named = ", ".join(codes[:8]) + (f" and {len(codes) - 8} others" if len(codes) > 8 else "")
    return [f"Begin a sentence with the code of a language and a space: {named}."]


def _search(folder: pathlib.Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how its own toolkit would search."""
    path = folder / "generation_config.json"
    values = {**config, **(read_json(path) if path.exists() else {})}
    search = {"length_penalty": values.get("length_penalty", 1.0), "length_penalty_form": "power"}
    if values.get("num_beams") is not None:
        search["beam_size"] = values["num_beams"]
    return search
