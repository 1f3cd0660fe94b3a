"""Reads a checkpoint of fairseq and the dictionaries beside it, dict.LANGUAGE.txt.

Every format is imported in the same steps, of which fairseq's are the plainest:

1. Read the file: the options of training under "args" or "cfg", the tensors under "model".
2. Make fields of `TransformerConfig` of the options; one error names all that are not supported.
3. Read the matrices that models share in different ways: embeddings, output projection, learned
   positions. A `Layout` describes all other tensors: their names by part of a layer.
4. Read the dictionaries: the tokens in fairseq's order, and which ids are padding, end and so on.
5. Make SentencePiece vocabularies whose ids are in this package's order.

`ForeignModel.to_model` then builds the `Transformer`.
"""

import argparse
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.interop.foreign import ForeignModel, ImportOptions, Layout
from keras_transformer.interop.reading import (
    Array,
    Options,
    Tensors,
    dropout_rate,
    read_pytorch,
    read_token_lines,
    reject,
    torch_tensors,
)
from keras_transformer.interop.vocabularies import Symbols

# {side} is encoder or decoder, {i} the layer from 0, {kind} "weight" or "bias".
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
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "swish",
}
# The first ids, before the lines of a dictionary. Position 1 is that of padding, sentences begin
# at 2, and the decoder starts with "</s>".
_RESERVED = ("<s>", "<pad>", "</s>", "<unk>")
_FIRST_POSITION = 2
# Version 0.12 saves stale copies of the encoder's weights under names without a dot.
_IGNORED = (
    "*.version", "*._float_tensor", "encoder.layers.*.in_proj_weight",
    "encoder.layers.*.in_proj_bias", "encoder.layers.*.out_proj_weight",
    "encoder.layers.*.out_proj_bias", "encoder.layers.*.fc[12]_weight",
    "encoder.layers.*.fc[12]_bias",
)  # fmt: skip


def is_fairseq(path: pathlib.Path) -> bool:
    """Whether a folder or file is such a model."""
    folder = path if path.is_dir() else path.parent
    return any(folder.glob("dict.*.txt")) and bool(_checkpoints(path))


def read_fairseq(path: pathlib.Path, import_options: ImportOptions) -> ForeignModel:
    """Returns the model in a folder, of its best checkpoint, or in a file."""
    checkpoints = _checkpoints(path)
    if len(checkpoints) != 1:
        raise InputError(f"{path} has {len(checkpoints)} checkpoints; name one file")
    (file,) = checkpoints
    state = read_pytorch(file)
    args = _training_options(state, file)
    options = _config_fields(args)
    tensors = torch_tensors(_with_split_projections(state.get("model") or {}), str(file))
    tensors.ignore(*_IGNORED)
    target_table = tensors.get("decoder.embed_tokens.weight", (None, None))  # [V, D]
    source_table = tensors.get("encoder.embed_tokens.weight", (None, None))
    if args.get("share_all_embeddings", bool, False):
        source_table = target_table
    source, target = _symbols(file, args, import_options)
    return ForeignModel(
        options=options,
        tensors=tensors,
        layout=Layout(names=LAYER_NAMES),
        source_table=source_table,
        target_table=target_table,
        projection=_projection(tensors, args, target_table),
        source=source,
        target=target,
        spms=import_options.spms,
        # The defaults of fairseq-generate.
        search={
            "beam_size": 5,
            "length_penalty": 1.0,
            "length_penalty_form": "power",
            "min_length": 1,
            "early_stop": "first",
            "max_length": 200,
            "max_extra_length": 200,  # of any source
            "max_source_length": max(1, args.get("max_source_positions", int, 1024) - 1),
        },
    )


def _checkpoints(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns the checkpoint to read, or all candidates."""
    if not path.is_dir():
        return [path] if path.suffix == ".pt" else []
    for name in ("checkpoint_best.pt", "model.pt", "checkpoint_last.pt"):
        if (path / name).is_file():
            return [path / name]
    return sorted(path.glob("*.pt"))


def _with_split_projections(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns tensors by name; in older files one matrix makes queries, keys and values."""
    tensors = dict(model)
    for name in model:
        if match := re.fullmatch(r"(.+_attn)\.in_proj_(weight|bias)", name):
            for part, third in zip("qkv", tensors.pop(name).chunk(3), strict=True):
                tensors[f"{match[1]}.{part}_proj.{match[2]}"] = third
    return tensors


def _training_options(state: Mapping[str, Any], file: pathlib.Path) -> Options:
    """Returns the options that the model was trained with: of the model, then of its task."""
    args, config = state.get("args"), state.get("cfg")
    if isinstance(args, argparse.Namespace):
        return Options(vars(args), str(file))
    if not isinstance(config, dict):
        raise InputError(f"{file} is not a checkpoint of fairseq: it has no options")
    options: dict[str, Any] = {}
    for part in (config.get("task"), config.get("model")):
        values = vars(part) if isinstance(part, argparse.Namespace) else part or {}
        options |= {name: value for name, value in values.items() if value is not None}
    return Options(options, str(file))


def _config_fields(args: Options) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` lists all that cannot be imported."""
    arch = args.get("arch", str, "") or args.get("_name", str, "transformer")
    activation = args.get("activation_fn", str, "relu")
    heads, layers = (
        [args.get(f"{side}_{name}", int, 0) for side in ("encoder", "decoder")]
        for name in ("attention_heads", "layers")
    )
    pre_norm = [
        args.get(f"{side}_normalize_before", bool, False) for side in ("encoder", "decoder")
    ]
    # Others show in the names of the tensors. In tasks of several languages a token of the language
    # begins source or target.
    unsupported = (
        "no_token_positional_embeddings", "encoder_learned_pos", "decoder_learned_pos",
        "encoder_langtok", "decoder_langtok",
    )  # fmt: skip
    langtoks = args.get("langtoks", dict, {})  # by data set, a token of each side or None
    reject(
        {
            f"arch {arch}": not arch.startswith("transformer"),
            f"activation_fn {activation}": activation not in _ACTIVATIONS,
            f"attention_heads {heads[0]} and {heads[1]}": heads[0] != heads[1],
            f"normalize_before {pre_norm[0]} and {pre_norm[1]}": pre_norm[0] != pre_norm[1],
        }
        | {name: args.is_set(name) for name in unsupported}
        | {"langtoks": any(pair not in (None, (None, None)) for pair in langtoks.values())}
    )
    return {
        "num_layers": layers[0],
        "decoder_layers": layers[1],
        "num_heads": heads[0],
        "activation": _ACTIVATIONS[activation],
        "dropout": dropout_rate(args.get("dropout", float, 0.1)),
        "norm_position": "pre" if pre_norm[0] else "post",
        "norm_epsilon": 1e-5,  # PyTorch's
        "positions": "concatenated",  # all sines, then all cosines
        "first_position": _FIRST_POSITION,
        "embedding_norm": args.get("layernorm_embedding", bool, False),
        "scale_embeddings": not args.get("no_scale_embedding", bool, False),
    }


def _projection(tensors: Tensors, args: Options, target_table: Array) -> Array:
    names = ("decoder.output_projection.weight", "decoder.embed_out")  # of new and old versions
    tensors.ignore(*names)
    tied = ("share_decoder_input_output_embed", "share_all_embeddings")
    if any(args.get(name, bool, False) for name in tied):
        return target_table
    name = next((name for name in names if name in tensors), names[0])
    return tensors.get(name, target_table.shape)


def _symbols(
    file: pathlib.Path, args: Options, import_options: ImportOptions
) -> tuple[Symbols, Symbols]:
    languages = [args.get(f"{side}_lang", str, "") for side in ("source", "target")]
    paths: Sequence[pathlib.Path] = import_options.vocabularies
    if not paths and all(languages):
        paths = [file.parent / f"dict.{language}.txt" for language in languages]
    elif not paths:
        paths = sorted(file.parent.glob("dict.*.txt")) * 2
    if len(paths) != 2 or not all(path.is_file() for path in paths):
        raise InputError(
            f"the dictionaries of {file}, {' and '.join(languages)}, are not beside it; give "
            "--source_vocabulary and --target_vocabulary of keras-transformer import_model"
        )
    source, target = map(_read_dictionary, paths)
    return source, target


def _read_dictionary(path: pathlib.Path) -> Symbols:
    """Reads lines of a token and its count."""
    tokens = list(_RESERVED)
    for line in read_token_lines(path):
        token, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not count.isdecimal():
            raise InputError(f"{path} has the line {line[:40]!r}, which is not a token and a count")
        tokens.append(token)
    return Symbols.find(tokens, str(path), unk="<unk>", eos="</s>", pad="<pad>", start="</s>")
