"""Reads and writes the folder of a MarianMTModel of Hugging Face's transformers.

config.json                     sizes and options
model.safetensors               weights, or pytorch_model.bin
source.spm, target.spm          SentencePiece models, which tokenize the text
vocab.json, target_vocab.json   ids of the tokens; the second one if the sides do not share them
generation_config.json          how it searches, if there is one

Shapes: D model dimension, V vocabulary.
"""

import dataclasses
import functools
import json
import os
import pathlib
from typing import Any

import numpy as np
from safetensors.numpy import save

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, SearchConfig, TransformerConfig
from keras_transformer.config.search import MAX_TOKENS
from keras_transformer.errors import InputError
from keras_transformer.files import local_path
from keras_transformer.interop.fairseq import LAYER_NAMES  # whose model this one descends from
from keras_transformer.interop.foreign import (
    UNUSED_BIAS,
    ForeignModel,
    ImportOptions,
    Layout,
    check_exportable,
    check_rows,
    export_folder,
    layer_tensors,
    missing_options,
    to_numpy,
    unsupported,
)
from keras_transformer.interop.reading import (
    Array,
    Options,
    Tensors,
    dropout_rate,
    ids_to_tokens,
    read_json,
    read_pytorch,
    read_safetensors,
    reject,
    torch_tensors,
)
from keras_transformer.interop.vocabularies import Symbols, code_of, save_tokenizer
from keras_transformer.models import Transformer
from keras_transformer.text import Vocabulary

_LAYOUT = Layout(names={part: f"model.{name}" for part, name in LAYER_NAMES.items()})
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
# Generation options that `SearchConfig` lacks, and the values that change nothing.
_OTHER_SEARCH: dict[str, Any] = {
    "begin_suppress_tokens": None, "constraints": None, "diversity_penalty": 0.0,
    "do_sample": False, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None, "force_words_ids": None,
    "forced_bos_token_id": None, "guidance_scale": 1.0, "max_time": None, "num_beam_groups": 1,
    "num_return_sequences": 1, "penalty_alpha": None, "sequence_bias": None, "stop_strings": None,
    "suppress_tokens": None,
}  # fmt: skip
# Of a source that is truncated, and of a translation, the start token included.
_MARIAN_MAX_TOKENS = 512
# Of `early_stopping`: True, "never", or False, which is the default.
_EARLY_STOP = {"True": "first", "never": "exact"}

REQUIRED_FILES = ("vocab.json", "source.spm", "target.spm")
OPTIONAL_FILES = ("target_vocab.json", "generation_config.json")


def is_transformers(folder: pathlib.Path) -> bool:
    """Whether a folder holds such a model."""
    return any((folder / name).is_file() for name in ("model.safetensors", "pytorch_model.bin"))


def read_transformers(folder: pathlib.Path, import_options: ImportOptions) -> ForeignModel:
    """Returns the model in a folder."""
    config = read_config(folder / "config.json")
    options = _options(config)
    tensors = _read_weights(folder)
    source_table, target_table, projection = _tables(tensors, config)
    tensors.ignore("model.*.embed_positions.weight")
    # As in transformers, config.json tells how to search only where there is no other file for it.
    path = folder / "generation_config.json"
    generation = Options(read_json(path), str(path)) if path.exists() else config
    source, target = _symbols(folder, config, generation)
    check_rows(len(target_table), target)
    spms = import_options.spms or (folder / "source.spm", folder / "target.spm")
    return ForeignModel(
        options=options,
        tensors=tensors,
        layout=_LAYOUT,
        source_table=source_table,
        target_table=target_table,
        projection=projection,
        output_bias=_output_bias(tensors, generation, target, projection),
        source=source,
        target=target,
        spms=spms,
        search=_search(generation, target),
        notes=_search_notes(generation, target),
    )


def read_config(path: pathlib.Path) -> Options:
    """Returns the options in config.json; `InputError` if it is of another model than Marian."""
    config = Options(read_json(path), str(path))
    model_type = config.get("model_type", str, "")
    if model_type != "marian":
        raise InputError(
            f"model_type is {model_type!r}, and of the models of transformers only 'marian' "
            f"(MarianMTModel) can be imported; see {path}"
        )
    return config


def _options(config: Options) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` lists all that cannot be imported."""
    activation = config.get("activation_function", str, "gelu")
    heads = tuple(config.get(f"{side}_attention_heads", int, 16) for side in ("encoder", "decoder"))
    has_sinusoids = config.get("static_position_embeddings", bool, True)
    unsupported = ("normalize_before", "normalize_embedding", "add_final_layer_norm")
    reject(
        {
            f"activation_function {activation}": activation not in _ACTIVATIONS,
            f"heads {heads}": heads[0] != heads[1],
            "static_position_embeddings false": not has_sinusoids,
        }
        | {name: config.is_set(name) for name in unsupported}
    )
    return {
        "num_layers": config.get("encoder_layers", int, 12),
        "decoder_layers": config.get("decoder_layers", int, 12),
        "num_heads": heads[0],
        "activation": _ACTIVATIONS[activation],
        "dropout": dropout_rate(config.get("dropout", float, 0.1)),
        "norm_epsilon": 1e-5,
        "positions": "halves",
        "scale_embeddings": config.get("scale_embedding", bool, False),
    }


def _read_weights(folder: pathlib.Path) -> Tensors:
    path = folder / "pytorch_model.bin"
    if (folder / "model.safetensors").exists() or not path.exists():
        return read_safetensors(folder / "model.safetensors")
    return torch_tensors(read_pytorch(path), str(path))


def _tables(tensors: Tensors, config: Options) -> tuple[Array, Array, Array]:
    """Returns the tables of source and target, and the projection.

    Tables that are equal are stored under one of their names, whichever wrote the file.
    """
    is_tied = config.get("tie_word_embeddings", bool, True)
    is_shared = config.get("share_encoder_decoder_embeddings", bool, True)
    encoder, decoder = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
    names = ["model.shared.weight", encoder, decoder] if is_shared else [decoder]
    names += ["lm_head.weight"] if is_tied else []
    target = tensors.get(next((name for name in names if name in tensors), names[0]), (None, None))
    tensors.ignore(*names)  # copies of it
    source = target if is_shared else tensors.get(encoder, (None, None))
    projection = target if is_tied else tensors.get("lm_head.weight", (None, None))
    return source, target, projection


def _output_bias(
    tensors: Tensors, generation: Options, target: Symbols, projection: Array
) -> Array:
    """Returns the bias of the logits [V], which removes padding that the model never learned.

    The softmax that Marian trains with has no padding. The conversion to transformers adds a row of
    zeros, whose logit, 0, is often among the largest; transformers masks it before the softmax with
    `renormalize_logits`, and before August 2023 did so without this option. The models of this
    package were trained with a row for padding.
    """
    stored = tensors.find("final_logits_bias", (len(projection),))
    bias = np.zeros(len(projection), np.float32) if stored is None else np.array(stored)
    is_zero = not projection[target.pad].any() and bias[target.pad] == 0
    is_banned = [target.pad] in generation.get("bad_words_ids", list, []) and not target.is_ours
    if is_zero or is_banned or generation.is_set("renormalize_logits"):
        bias[target.pad] = UNUSED_BIAS
    return bias


def _symbols(folder: pathlib.Path, config: Options, generation: Options) -> tuple[Symbols, Symbols]:
    def read(path: pathlib.Path) -> Symbols:
        tokens = ids_to_tokens(read_json(path), str(path))
        symbols = Symbols.find(tokens, str(path), unk="<unk>", eos="</s>", pad="<pad>")
        # Its row is zero in a model that Marian trained, and not in one that was trained further.
        start = config.get("decoder_start_token_id", int, symbols.pad or 0)
        start = generation.get("decoder_start_token_id", int, start)
        return dataclasses.replace(symbols, start=start)

    source = read(folder / "vocab.json")
    if config.get("share_encoder_decoder_embeddings", bool, True):
        return source, source
    return source, read(folder / "target_vocab.json")


def _search(options: Options, target: Symbols) -> dict[str, Any]:
    """Returns fields of `SearchConfig`, of the generation options that it has."""
    search: dict[str, Any] = {
        "beam_size": options.get("num_beams", int, 1) or 1,
        "early_stop": _EARLY_STOP.get(str(options.values.get("early_stopping")), "current"),
        "length_penalty": options.get("length_penalty", float, 1.0),
        "length_penalty_form": "power",
        # Lengths of transformers count the start token, and max_length EOS; ours count neither.
        "min_length": max(
            options.get("min_length", int, 0) - 1, options.get("min_new_tokens", int, 0), 0
        ),
        "max_source_length": _MARIAN_MAX_TOKENS - 1,  # and EOS
        "no_repeat_ngram": options.get("no_repeat_ngram_size", int, 0),
        "repetition_penalty": options.get("repetition_penalty", float, 1.0) or 1.0,
        "forbid_unknown": [target.unk] in options.get("bad_words_ids", list, []),
    }
    if options.is_set("max_new_tokens") or options.is_set("max_length"):
        longest = options.get("max_new_tokens", int, options.get("max_length", int, 0) - 1)
        # Of any source: without a limit relative to it.
        search["max_length"] = search["max_extra_length"] = min(max(longest - 1, 1), MAX_TOKENS)
    return search


def _search_notes(options: Options, target: Symbols) -> list[str]:
    """Returns notes on generation options that are not taken over, or act otherwise here."""
    # Padding and the start token are never generated.
    never = ([target.pad], [target.unk], [target.start])
    bad_words = [bad for bad in options.get("bad_words_ids", list, []) if bad not in never]
    ends = options.values.get("eos_token_id")
    others = [f"bad_words_ids {bad_words}"] * bool(bad_words)
    if ends not in (target.eos, [target.eos], None):
        others.append(f"eos_token_id {ends}, but {target.eos}")
    others += [
        f"{name} {options.values[name]}"
        for name, neutral in _OTHER_SEARCH.items()
        if options.values.get(name, neutral) not in (neutral, None)
    ]
    notes = missing_options(others)
    if options.get("repetition_penalty", float, 1.0) != 1 and options.get("num_beams", int, 1) > 1:
        notes.append(
            "repetition_penalty changes logits here, and with a beam log-probabilities in "
            "transformers: translations may differ."
        )
    return notes


# The export.

_NORM_EPSILON = 1e-5  # of PyTorch's LayerNorm, which MarianMT does not change
_MAX_POSITIONS = 1024  # rows of the table of positions, which transformers computes by itself


def export_transformers(
    model: Transformer, source: Vocabulary, target: Vocabulary, folder: str | os.PathLike[str]
) -> pathlib.Path:
    """Writes the folder of a MarianMTModel atomically and returns its path; weights are float32.

    Ids stay as they are. Interleaved sinusoids become those of transformers by a permutation of the
    model dimension, in all weights. transformers normalizes with an epsilon of 1e-5, from which
    that of the model may differ by as much: scores of sentences then differ by less than 1e-3.

    Args:
        model: a single Transformer with `norm_position` "post", `positions` "sinusoidal" or
            "halves" from 0 on, and keys and values of model_dim / num_heads.
        source, target: the vocabularies.
        folder: a path that does not exist.

    Raises:
        InputError: MarianMT cannot hold the model, for all the reasons that the message lists; a
            vocabulary is not the model's; the folder exists or cannot be written.

    Example:
        >>> folder = export_transformers(model, source, target, "exports/en-de")
        >>> tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        >>> marian = transformers.MarianMTModel.from_pretrained(folder)
        >>> ids = marian.generate(**tokenizer(["two hundred"], return_tensors="pt"))
        >>> tokenizer.batch_decode(ids, skip_special_tokens=True)
        ['zweihundert']
    """
    obstacles = functools.partial(_obstacles, source, target)
    check_exportable(model, (source, target), "MarianMT of transformers", obstacles)
    is_shared, search = model.config.share_embeddings == "all", SearchConfig()
    # Half of UNUSED_BIAS, since training with label smoothing raises the bias a little.
    bias: Any = model.output_bias
    has_no_padding = bias is not None and bool(bias[PAD_ID] < UNUSED_BIAS / 2)
    files: dict[str, Any] = {
        "config.json": _marian_config(model),
        "generation_config.json": {
            "bad_words_ids": [[PAD_ID], [BOS_ID]],
            "decoder_start_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "forced_eos_token_id": EOS_ID,
            "max_length": _MARIAN_MAX_TOKENS,
            "min_new_tokens": search.min_length,
            "num_beams": search.beam_size,
            "pad_token_id": PAD_ID,
            # An imported model has no padding in its softmax; that of this package's models has.
            "renormalize_logits": has_no_padding,
        },
        "tokenizer_config.json": {
            "clean_up_tokenization_spaces": False,
            "eos_token": "</s>",
            "model_max_length": _MARIAN_MAX_TOKENS,
            "pad_token": "<pad>",
            "separate_vocabs": not is_shared,
            "tokenizer_class": "MarianTokenizer",
            "unk_token": "<unk>",
        },
        "vocab.json": {token: id_ for id_, token in enumerate(_tokens(source))},
    }
    if not is_shared:
        files["target_vocab.json"] = {token: id_ for id_, token in enumerate(_tokens(target))}
    with export_folder(folder) as aside:
        for name, values in files.items():
            text = json.dumps(values, ensure_ascii=False, indent=2)
            (aside / name).write_text(text + "\n", encoding="utf-8")
        # Without the format transformers rejects the file.
        weights = save(_marian_tensors(model), metadata={"format": "pt"})
        (aside / "model.safetensors").write_bytes(weights)
        save_tokenizer(source, aside / "source.spm")
        save_tokenizer(target, aside / "target.spm")
    return local_path(folder)


def _obstacles(
    source: Vocabulary, target: Vocabulary, config: TransformerConfig
) -> dict[str, bool]:
    """Maps each feature that MarianMT lacks to whether this model uses it."""
    head_dim = config.model_dim / config.num_heads
    sides = {"source": _tokens(source), "target": _tokens(target)}
    repeated = [side for side, tokens in sides.items() if len(set(tokens)) < len(tokens)]
    is_shared = config.share_embeddings == "all"
    return unsupported(
        config,
        norm_position=["post"],
        positions=["sinusoidal", "halves"],
        first_position=[0],
        key_dim=[None, head_dim],
        value_dim=[None, head_dim],
        encoder_attention_window=[None],
        decoder_attention_window=[None],
        decoder_mixer=["attention"],
        embedding_norm=[False],
        source_eos=[True],
    ) | {
        f"norm_epsilon {config.norm_epsilon}": config.norm_epsilon > 2 * _NORM_EPSILON,
        "words without a SentencePiece model": source.cuts_words_apart or target.cuts_words_apart,
        "one table for two vocabularies": is_shared and sides["source"] != sides["target"],
        f"two tokens of one name in the vocabulary of {' and '.join(repeated)}": bool(repeated),
    }


def _tokens(vocabulary: Vocabulary) -> list[str]:
    """Returns the tokens by id, under the names that MarianTokenizer and the import look for."""
    tokens = [code_of(token) or token for token in vocabulary.pieces(range(vocabulary.size))]
    tokens[: EOS_ID + 1] = ["<pad>", "<unk>", tokens[BOS_ID], "</s>"]
    return tokens


def _marian_config(model: Transformer) -> dict[str, Any]:
    config = model.config
    sizes: dict[str, Any] = {}
    for side, layers in (("encoder", model.encoder.layers), ("decoder", model.decoder.layers)):
        sizes |= {
            f"{side}_attention_heads": config.num_heads,
            f"{side}_ffn_dim": config.feed_forward_dim,
            f"{side}_layers": len(layers),
        }
    return sizes | {
        "activation_dropout": config.feed_forward_dropout,
        "activation_function": next(
            theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation
        ),
        "architectures": ["MarianMTModel"],
        "attention_dropout": config.attention_dropout,
        "d_model": config.model_dim,
        "decoder_start_token_id": BOS_ID,
        "decoder_vocab_size": config.target_size,
        "dropout": config.dropout,
        "eos_token_id": EOS_ID,
        "forced_eos_token_id": EOS_ID,
        "max_position_embeddings": _MAX_POSITIONS,
        "model_type": "marian",
        "pad_token_id": PAD_ID,
        "scale_embedding": config.scale_embeddings,
        "share_encoder_decoder_embeddings": config.share_embeddings == "all",
        "tie_word_embeddings": config.share_embeddings != "none",
        "vocab_size": config.vocabulary_size,
    }


def _marian_tensors(model: Transformer) -> dict[str, Array]:
    """Returns the weights under the names of transformers, matrices [out, in]."""
    config = model.config
    order = np.arange(config.model_dim)  # our dimension of each of theirs
    if config.positions == "sinusoidal":
        order = np.concatenate([order[::2], order[1::2]])  # sines first, then cosines
    tensors = dict(layer_tensors(model, _LAYOUT, order))
    for name in [*tensors]:  # MarianMT has biases everywhere
        bias_name = name.replace("weight", "bias")
        tensors.setdefault(bias_name, np.zeros(len(tensors[name]), "float32"))
    source, target = (
        to_numpy(embedding.table)[:, order]
        for embedding in (model.source_embedding, model.target_embedding)
    )
    if config.share_embeddings == "all":
        tensors["model.shared.weight"] = source
    else:
        tensors["model.encoder.embed_tokens.weight"] = source
        tensors["model.decoder.embed_tokens.weight"] = target
    if model.projection is not None:
        tensors["lm_head.weight"] = to_numpy(model.projection.kernel)[order].T
    bias = model.output_bias
    bias = np.zeros(config.target_size, "float32") if bias is None else to_numpy(bias)
    tensors["final_logits_bias"] = bias[None]  # [1, V]
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
