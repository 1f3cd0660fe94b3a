"""Reads a checkpoint of fairseq with the dictionaries beside it: dict.LANGUAGE.txt."""

import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.interop.files import Given, Tensors, rate, read_text, refuse
from keras_transformer.interop.foreign import ForeignModel, Layout
from keras_transformer.interop.pytorch import read_pytorch, state_tensors
from keras_transformer.interop.transformers import LAYER_NAMES
from keras_transformer.interop.vocabulary import Symbols, make_vocabularies

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "swish",
}
_RESERVED = ("<s>", "<pad>", "</s>", "<unk>")
_FIRST_POSITION = 2  # after that of padding
# Copies of the encoder's weights that version 0.12 leaves behind, and notes of no use.
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


def _checkpoints(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns the checkpoint that is meant, or all that could be."""
    if not path.is_dir():
        return [path] if path.suffix == ".pt" else []
    for name in ("checkpoint_best.pt", "model.pt", "checkpoint_last.pt"):
        if (path / name).is_file():
            return [path / name]
    return sorted(path.glob("*.pt"))


def read_fairseq(path: pathlib.Path, given: Given) -> ForeignModel:
    """Returns the model in a folder, of its best checkpoint, or in a file."""
    checkpoints = _checkpoints(path)
    if len(checkpoints) != 1:
        raise InputError(f"{path} has {len(checkpoints)} checkpoints; name one file")
    (file,) = checkpoints
    state = read_pytorch(file)
    args = _arguments(state, file)
    tensors = state_tensors(state.get("model"), file)
    options = _options(args)
    tensors.ignore(*_IGNORED)
    target_table = tensors.get("decoder.embed_tokens.weight", (None, None))
    source_table = tensors.get("encoder.embed_tokens.weight", (None, None))
    if args.get("share_all_embeddings"):
        source_table = target_table
    sides = _symbols(file, args, given)
    return ForeignModel(
        options=options,
        tensors=tensors,
        layout=Layout(names=LAYER_NAMES),
        source_table=source_table,
        target_table=target_table,
        projection=_projection(tensors, args, target_table),
        source=sides[0],
        target=sides[1],
        vocabularies=make_vocabularies(sides, given.spms, f"the dictionaries of {file}"),
        search={
            "length_penalty": 1.0,
            "length_penalty_form": "power",
            "beam_size": 5,
            "early_stop": "first",
        },
    )


def _arguments(state: Any, file: pathlib.Path) -> Mapping[str, Any]:
    """Returns the options that the model was trained with."""
    found = None
    if isinstance(state, dict):
        found, config = state.get("args"), state.get("cfg")
        if not found and isinstance(config, dict) and isinstance(config.get("model"), dict):
            languages = {k: v for k, v in dict(config.get("task") or {}).items() if v is not None}
            found = {**config["model"], **languages}
    if not isinstance(found, dict):
        raise InputError(f"{file} is no checkpoint of fairseq: it has no options; give a whole one")
    return found


def _options(args: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` lists all that cannot be imported."""
    activation = args.get("activation_fn") or "relu"
    both = {
        name: [args.get(f"{side}_{name}") for side in ("encoder", "decoder")]
        for name in ("attention_heads", "normalize_before", "embed_dim", "learned_pos")
    }
    names = (
        "no_token_positional_embeddings", "no_cross_attention", "cross_self_attention",
        "adaptive_input", "adaptive_softmax_cutoff", "no_decoder_final_norm",
    )  # fmt: skip
    arch = str(args.get("arch") or args.get("_name") or "transformer")
    refuse(
        {f"arch {arch}": not arch.startswith("transformer")}
        | {f"activation_fn {activation}": activation not in _ACTIVATIONS}
        | {f"{name} {one} and {other}": one != other for name, (one, other) in both.items()}
        | {name: args.get(name) for name in names}
        | {"learned positions, a table for each side": both["learned_pos"][0]}
    )
    return {
        "num_layers": args.get("encoder_layers"),
        "decoder_layers": args.get("decoder_layers"),
        "num_heads": both["attention_heads"][0],
        "activation": _ACTIVATIONS[activation],
        "dropout": rate(args.get("dropout")),
        "norm_position": "pre" if both["normalize_before"][0] else "post",
        "norm_epsilon": 1e-5,
        "positions": "concatenated",
        "first_position": _FIRST_POSITION,
        "embedding_norm": bool(args.get("layernorm_embedding")),
        "scale_embeddings": not args.get("no_scale_embedding"),
    }


def _projection(tensors: Tensors, args: Mapping[str, Any], target_table: Any) -> Any:
    names = ("decoder.output_projection.weight", "decoder.embed_out")
    tensors.ignore(*names)
    if args.get("share_decoder_input_output_embed") or args.get("share_all_embeddings"):
        return target_table
    name = next((name for name in names if name in tensors), names[0])
    return tensors.get(name, target_table.shape)


def _symbols(file: pathlib.Path, args: Mapping[str, Any], given: Given) -> tuple[Symbols, Symbols]:
    paths = given.vocabularies
    if not paths:
        languages = [args.get(f"{side}_lang") for side in ("source", "target")]
        found = sorted(file.parent.glob("dict.*.txt"))
        if not all(languages) and len(found) != 1:
            raise InputError(
                f"{file} does not name its languages; name the dictionaries with "
                "--source_vocabulary and --target_vocabulary"
            )
        named = [file.parent / f"dict.{language}.txt" for language in languages]
        paths = tuple(named if all(languages) else found * 2)
    source, target = map(_read_dictionary, paths)
    return source, target


def _read_dictionary(path: pathlib.Path) -> Symbols:
    if not path.is_file():
        raise InputError(
            f"{path} is missing; name both dictionaries with --source_vocabulary and "
            "--target_vocabulary"
        )
    tokens = list(_RESERVED)
    for line in read_text(path).removesuffix("\n").split("\n"):
        token, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not count.isdecimal():
            raise InputError(f"{path} has the line {line[:40]!r}, which is no token and count")
        tokens.append(token)
    special = {"unk": "<unk>", "eos": "</s>", "pad": "<pad>", "start": "</s>"}
    return Symbols.find(tokens, str(path), **special)
