"""Reads the folder of a MarianMTModel of Hugging Face's transformers.

config.json                     sizes and options
model.safetensors               weights, or pytorch_model.bin
source.spm, target.spm          SentencePiece models, which tokenize the text
vocab.json, target_vocab.json   ids of the tokens; the second one if the sides do not share them
generation_config.json          how it searches, if there is one
"""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.interop.fairseq import LAYER_NAMES  # whose model this one descends from
from keras_transformer.interop.foreign import (
    Array,
    ForeignModel,
    Given,
    Layout,
    Options,
    Symbols,
    Tensors,
    dropout_rate,
    ids_to_tokens,
    make_vocabularies,
    read_json,
    read_safetensors,
    reject,
)
from keras_transformer.interop.pytorch import read_pytorch, state_tensors
from keras_transformer.text import Vocabulary

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
# Generation options without a counterpart in `SearchConfig`, and the values that change nothing.
_OTHER_GENERATION_OPTIONS = {
    "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "exponential_decay_length_penalty": None, "force_words_ids": None,
    "forced_bos_token_id": None, "guidance_scale": None, "min_p": None, "penalty_alpha": None,
    "sequence_bias": None, "suppress_tokens": None, "begin_suppress_tokens": None,
    "typical_p": 1.0,
}  # fmt: skip


def is_transformers(folder: pathlib.Path) -> bool:
    """Whether a folder holds such a model."""
    weights = ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json")
    return any((folder / name).is_file() for name in weights)


def read_transformers(folder: pathlib.Path, given: Given) -> ForeignModel:
    """Returns the model in a folder."""
    path, generation = folder / "config.json", folder / "generation_config.json"
    values = read_json(path)
    config = Options(values, str(path), "transformers")
    options = _options(config, given.positions)
    path = folder / "model.safetensors"
    if (folder / "pytorch_model.bin").exists() and not path.exists():
        path = folder / "pytorch_model.bin"
        tensors = state_tensors(read_pytorch(path), path)
    else:
        tensors = read_safetensors(path)
    source_table, target_table, projection, notes = _tables(tensors, config)
    tensors.ignore("model.*.embed_positions.weight")
    source, target = _symbols(folder, config)
    spms = given.spms or (folder / "source.spm", folder / "target.spm")
    vocabularies = make_vocabularies((source, target), spms, str(folder))
    values |= read_json(generation) if generation.exists() else {}
    search, search_notes = _search(
        Options(values, str(folder), "transformers"), target, vocabularies[1]
    )
    return ForeignModel(
        options=options,
        tensors=tensors,
        layout=Layout(names={part: f"model.{name}" for part, name in LAYER_NAMES.items()}),
        source_table=source_table,
        target_table=target_table,
        projection=projection,
        output_bias=tensors.get("final_logits_bias", (len(target_table),)),
        source=source,
        target=target,
        vocabularies=vocabularies,
        search=search,
        notes=notes + search_notes + _language_codes(source),
    )


def _options(config: Options, positions: str) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` lists all that cannot be imported."""
    model_type = config.get("model_type", str, "")
    if model_type != "marian":
        raise InputError(
            f"model_type is {model_type!r}, and of the models of transformers only 'marian' "
            "(MarianMTModel) can be imported"
        )
    activation = config.get("activation_function", str, "gelu")
    heads = tuple(config.get(f"{side}_attention_heads", int, 16) for side in ("encoder", "decoder"))
    reject(
        {
            f"activation_function {activation}": activation not in _ACTIVATIONS,
            f"heads {heads}": heads[0] != heads[1],
            "normalize_before": config.is_set("normalize_before"),
            "normalize_embedding": config.is_set("normalize_embedding"),
            "add_final_layer_norm": config.is_set("add_final_layer_norm"),
            "static_position_embeddings false": not config.get(
                "static_position_embeddings", bool, True
            ),
        }
    )
    return {
        "num_layers": config.get("encoder_layers", int, 12),
        "decoder_layers": config.get("decoder_layers", int, 12),
        "num_heads": heads[0],
        "activation": _ACTIVATIONS[activation],
        "dropout": dropout_rate(config.get("dropout", float, 0.1)),
        "norm_epsilon": 1e-5,
        "positions": "concatenated" if positions == "marian" else "halves",
        "scale_embeddings": config.get("scale_embedding", bool, False),
    }


def _tables(tensors: Tensors, config: Options) -> tuple[Array, Array, Array, list[str]]:
    """Returns the tables of source and target, the projection, and notes where copies differ."""
    names = [f"model.{name}.weight" for name in ("encoder.embed_tokens", "decoder.embed_tokens")]
    is_tied = config.get("tie_word_embeddings", bool, True)
    if not config.get("share_encoder_decoder_embeddings", bool, True):
        source, target = (tensors.get(name, (None, None)) for name in names)
        copies = []
    else:
        source = target = tensors.get("model.shared.weight", (None, None))
        copies = [*names, *(["lm_head.weight"] if is_tied else [])]
    projection = target if is_tied else tensors.get("lm_head.weight", (None, None))
    tensors.ignore("lm_head.weight")
    different = [
        name for name in copies if name in tensors and not np.array_equal(tensors.get(name), target)
    ]
    notes = [f"{name} differs from model.shared.weight, which is taken." for name in different]
    return source, target, projection, notes


def _symbols(folder: pathlib.Path, config: Options) -> tuple[Symbols, Symbols]:
    def read(path: pathlib.Path) -> Symbols:
        tokens = ids_to_tokens(read_json(path), str(path))
        found = Symbols.find(tokens, str(path), unk="<unk>", eos="</s>", pad="<pad>")
        # Its row is zero in a model that Marian trained, and not in one that was trained further.
        start = config.get("decoder_start_token_id", int, found.pad or 0)
        return dataclasses.replace(found, start=start)

    source = read(folder / "vocab.json")
    if config.get("share_encoder_decoder_embeddings", bool, True):
        return source, source
    return source, read(folder / "target_vocab.json")


def _search(
    options: Options, target: Symbols, vocabulary: Vocabulary
) -> tuple[dict[str, Any], list[str]]:
    """Returns fields of `SearchConfig`, and a note on generation options that it lacks."""
    search: dict[str, Any] = {
        "length_penalty": options.get("length_penalty", float, 1.0),
        "length_penalty_form": "power",
        # Lengths of transformers count the start token, and max_length EOS; ours count neither.
        "min_length": max(
            options.get("min_length", int, 0) - 1, options.get("min_new_tokens", int, 0), 0
        ),
    }
    for theirs, ours, kind in (
        ("num_beams", "beam_size", int),
        ("num_return_sequences", "num_translations", int),
        ("no_repeat_ngram_size", "no_repeat_ngram", int),
        ("repetition_penalty", "repetition_penalty", float),
    ):
        if options.is_set(theirs):
            search[ours] = options.get(theirs, kind, 0)
    if options.is_set("max_new_tokens") or options.is_set("max_length"):
        longest = options.get("max_new_tokens", int, options.get("max_length", int, 0) - 1)
        search["max_length"] = min(max(longest - 1, 1), 100_000)
    if options.get("do_sample", bool, False):
        search["method"] = "sampling"
        search["temperature"] = options.get("temperature", float, 1.0)
        search["top_k"] = options.get("top_k", int, 50)
        search["top_p"] = options.get("top_p", float, 1.0)
    else:
        if options.get("early_stopping", object, False) is True:
            search["early_stop"] = "first"
        if options.get("num_beam_groups", int, 1) > 1:
            search["beam_groups"] = options.get("num_beam_groups", int, 1)
            search["diversity_penalty"] = options.get("diversity_penalty", float, 0.0)
    ignored = [
        f"{name} {options.get(name, object, neutral)}"
        for name, neutral in _OTHER_GENERATION_OPTIONS.items()
        if options.get(name, object, neutral) != neutral
    ]
    our_ids = {id_: place for place, id_ in enumerate(target.order)}
    banned = []
    for bad in options.get("bad_words_ids", list, []):
        if bad == [target.unk]:
            search["forbid_unknown"] = True
        elif bad != [target.pad]:  # which is never generated
            ids = [our_ids.get(id_, 1) for id_ in bad] if isinstance(bad, list) else []
            text = vocabulary.decode([ids])[0]
            if ids and text.strip() and vocabulary.encode([text]) == [ids]:
                banned.append(text)
            else:
                ignored.append(f"bad_words_ids {bad}")
    if banned:
        search["banned_phrases"] = tuple(banned)
    if not ignored:
        return search, []
    return search, [f"Search options that this package does not have: {', '.join(ignored)}."]


def _language_codes(source: Symbols) -> list[str]:
    """Returns how a user of a multilingual model selects the target language."""
    codes = sorted(t for t in source.tokens if t.startswith(">>") and t.endswith("<<"))
    if not codes:
        return []
    named = ", ".join(codes[:8]) + (f" and {len(codes) - 8} others" if len(codes) > 8 else "")
    return [f"Begin a sentence with the code of a language and a space: {named}."]
