"""Reads models of OpenNMT-py (a checkpoint .pt) and of eole, which came of it (a folder)."""

import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.interop.files import Array, Given, Tensors, rate, read_json, refuse
from keras_transformer.interop.foreign import ForeignModel, Layout
from keras_transformer.interop.pytorch import read_pytorch, state_tensors
from keras_transformer.interop.safetensors_file import read_safetensors
from keras_transformer.interop.vocabulary import Symbols, make_vocabularies

_ATTENTION = {
    "self.query": "{side}.LAYERS.{i}.self_attn.linear_query.{kind}",
    "self.key": "{side}.LAYERS.{i}.self_attn.linear_keys.{kind}",
    "self.value": "{side}.LAYERS.{i}.self_attn.linear_values.{kind}",
    "self.out": "{side}.LAYERS.{i}.self_attn.final_linear.{kind}",
    "cross.query": "{side}.LAYERS.{i}.context_attn.linear_query.{kind}",
    "cross.key": "{side}.LAYERS.{i}.context_attn.linear_keys.{kind}",
    "cross.value": "{side}.LAYERS.{i}.context_attn.linear_values.{kind}",
    "cross.out": "{side}.LAYERS.{i}.context_attn.final_linear.{kind}",
    "final.norm": "{side}.layer_norm.{kind}",
}
_OPENNMT = _ATTENTION | {
    "encoder.self.norm": "{side}.LAYERS.{i}.layer_norm.{kind}",
    "self.norm": "{side}.LAYERS.{i}.layer_norm_1.{kind}",
    "cross.norm": "{side}.LAYERS.{i}.layer_norm_2.{kind}",
    "ffn.inner": "{side}.LAYERS.{i}.feed_forward.w_1.{kind}",
    "ffn.outer": "{side}.LAYERS.{i}.feed_forward.w_2.{kind}",
    "ffn.norm": "{side}.LAYERS.{i}.feed_forward.layer_norm.{kind}",
}
_EOLE = _ATTENTION | {
    "self.norm": "{side}.LAYERS.{i}.input_layernorm.{kind}",
    "cross.norm": "{side}.LAYERS.{i}.precontext_layernorm.{kind}",
    "ffn.inner": "{side}.LAYERS.{i}.mlp.gate_up_proj.{kind}",
    "ffn.outer": "{side}.LAYERS.{i}.mlp.down_proj.{kind}",
    "ffn.norm": "{side}.LAYERS.{i}.post_attention_layernorm.{kind}",
}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "swish", "fast_gelu": "gelu_tanh"}
_SPECIAL = {"unk": "<unk>", "eos": "</s>", "pad": "<blank>"}
_EOLE_WEIGHTS = "model.00.safetensors"
_SEARCH = {"length_penalty": 0.0, "beam_size": 5}


def is_opennmt_py(path: pathlib.Path) -> bool:
    """Whether a folder or file may be a checkpoint of OpenNMT-py."""
    if path.is_dir():
        return any(path.glob("*.pt")) and not any(path.glob("dict.*.txt"))
    return path.suffix == ".pt" and not any(path.parent.glob("dict.*.txt"))


def is_eole(folder: pathlib.Path) -> bool:
    """Whether a folder holds a model of eole."""
    return (folder / _EOLE_WEIGHTS).is_file()


def read_opennmt_py(path: pathlib.Path, given: Given) -> ForeignModel:
    """Returns the model in a file, or in the only one of a folder."""
    files = sorted(path.glob("*.pt")) if path.is_dir() else [path]
    if len(files) != 1:
        raise InputError(f"{path} has {len(files)} checkpoints; name one file")
    (file,) = files
    state = read_pytorch(file)
    found = state if isinstance(state, dict) else {}
    parts = [found.get(name) for name in ("model", "generator", "opt", "vocab")]
    model, generator, opt, vocab = (part if isinstance(part, dict) else {} for part in parts)
    if not (model and generator and opt and vocab):
        raise InputError(
            f"{file} is no checkpoint of OpenNMT-py 3: it has no model, generator, opt and vocab; "
            "give a whole checkpoint"
        )
    weights = {**model, **{f"generator.{name}": value for name, value in generator.items()}}
    tensors = state_tensors(weights, file)
    tensors.ignore("*.make_embedding.pe.pe")
    table = "{}.embeddings.make_embedding.emb_luts.0.weight"
    names = (table.format("encoder"), table.format("decoder"))
    prefix = "generator.0." if "generator.0.weight" in tensors else "generator."
    old = "encoder.layer_norm.a_2" in tensors
    return _model(
        tensors,
        _opennmt_options(opt),
        Layout(
            names=_with_layers(_OPENNMT, "transformer"),
            gain="a_2" if old else "weight",
            offset="b_2" if old else "bias",
        ),
        names,
        prefix,
        _symbols(vocab, str(file)),
        given,
    )


def read_eole(folder: pathlib.Path, given: Given) -> ForeignModel:
    """Returns the model in a folder."""
    config = read_json(folder / "config.json")
    tensors = read_safetensors(folder / _EOLE_WEIGHTS)
    scalars = [name for name in tensors if name.endswith(".layer_scalar")]
    refuse({"layer_scalar": any((tensors.get(name) != 1).any() for name in scalars)})
    tensors.ignore("*_emb.pe.pe")
    vocab = read_json(folder / "vocab.json")
    return _model(
        tensors,
        _eole_options(config),
        Layout(names=_with_layers(_EOLE, "transformer_layers")),
        ("src_emb.embeddings.weight", "tgt_emb.embeddings.weight"),
        "generator.",
        _symbols(vocab, str(folder / "vocab.json")),
        given,
    )


def _with_layers(names: Mapping[str, str], encoder: str) -> dict[str, str]:
    """Returns templates with what the encoder and the decoder call their layers."""
    of_encoder = {f"encoder.{part}": name for part, name in names.items()}
    of_encoder |= {part: name for part, name in names.items() if part.startswith("encoder.")}
    layers = {part: name.replace("LAYERS", encoder) for part, name in of_encoder.items()}
    of_decoder = {
        part: name.replace("LAYERS", "transformer_layers") for part, name in names.items()
    }
    return of_decoder | layers


def _model(
    tensors: Tensors,
    options: Mapping[str, Any],
    layout: Layout,
    tables: tuple[str, str],
    generator: str,
    sides: tuple[Symbols, Symbols],
    given: Given,
) -> ForeignModel:
    """Returns the model of either."""
    target = tensors.get(tables[1], (None, None))
    source = tensors.get(tables[0], (None, None))
    projection = tensors.get(f"{generator}weight", target.shape)
    bias = f"{generator}bias"
    return ForeignModel(
        options=options,
        tensors=tensors,
        layout=layout,
        source_table=_shared(source, target),
        target_table=target,
        projection=_shared(projection, target),
        output_bias=tensors.get(bias, (len(target),)) if bias in tensors else None,
        source=sides[0],
        target=sides[1],
        vocabularies=make_vocabularies(sides, given.spms, tensors.where),
        search=_SEARCH,
    )


def _shared(table: Array, target: Array) -> Array:
    is_same = table.shape == target.shape and bool((table == target).all())
    return target if is_same else table


def _opennmt_options(opt: Mapping[str, Any]) -> dict[str, Any]:
    activation = opt.get("pos_ffn_activation_fn", "relu")
    position = opt.get("position_encoding_type")
    refuse(
        {
            f"{side}_type {opt.get(f'{side}_type')}": opt.get(f"{side}_type") != "transformer"
            for side in ("encoder", "decoder")
        }
        | {f"pos_ffn_activation_fn {activation}": activation not in _ACTIVATIONS}
        | {
            f"self_attn_type {opt.get('self_attn_type')}": "average"
            in str(opt.get("self_attn_type"))
        }
        | {"relative positions": opt.get("max_relative_positions") or 0}
        | {f"position_encoding_type {position}": position not in (None, "SinusoidalInterleaved")}
        | {"generator_function sparsemax": opt.get("generator_function") == "sparsemax"}
        | {"no position_encoding": not opt.get("position_encoding")}
        | {"layer_norm rms": opt.get("layer_norm") == "rms", "multiquery": opt.get("multiquery")}
        | {"parallel_residual": opt.get("parallel_residual"), "copy_attn": opt.get("copy_attn")}
        | {"features": opt.get("feat_merge_size") or opt.get("n_src_feats")}
    )
    layers = opt.get("layers")
    return {
        "num_layers": opt.get("enc_layers") or layers,
        "decoder_layers": opt.get("dec_layers") or layers,
        "num_heads": opt.get("heads"),
        "activation": _ACTIVATIONS[activation],
        "dropout": rate(_first(opt.get("dropout"))),
        "norm_epsilon": opt.get("norm_eps") or 1e-6,
    } | _COMMON


def _eole_options(config: Mapping[str, Any]) -> dict[str, Any]:
    model = config.get("model")
    if not isinstance(model, dict):
        raise InputError("config.json of eole has no model; give the folder of a whole model")
    activation = model.get("mlp_activation_fn", "relu")
    kinds = {part: model.get(part) or {} for part in ("encoder", "decoder", "embeddings")}
    position = model.get("position_encoding_type") or kinds["embeddings"].get(
        "position_encoding_type"
    )
    refuse(
        {
            f"{side}_type {kinds[side].get(f'{side}_type')}": kinds[side].get(f"{side}_type")
            != "transformer"
            for side in ("encoder", "decoder")
        }
        | {f"mlp_activation_fn {activation}": activation not in _ACTIVATIONS}
        | {f"position_encoding_type {position}": position != "SinusoidalInterleaved"}
        | {"layer_norm rms": model.get("layer_norm", "standard") != "standard"}
        | {"parallel_residual": model.get("parallel_residual")}
        | {"generator_function sparsemax": model.get("generator_function") == "sparsemax"}
        | {"num_kv heads": model.get("heads_kv") not in (None, model.get("heads"))}
    )
    training = config.get("training") or {}
    return {
        "num_layers": kinds["encoder"].get("layers", model.get("layers")),
        "decoder_layers": kinds["decoder"].get("layers", model.get("layers")),
        "num_heads": model.get("heads"),
        "activation": _ACTIVATIONS[activation],
        "dropout": rate(_first(training.get("dropout"))),
        "norm_epsilon": model.get("norm_eps") or 1e-5,
    } | _COMMON


_COMMON = {"norm_position": "pre", "positions": "sinusoidal", "source_eos": False}


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _symbols(vocab: Mapping[str, Any], where: str) -> tuple[Symbols, Symbols]:
    start = vocab.get("decoder_start_token", "<s>")

    def find(tokens: Any) -> Symbols:
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise InputError(f"{where} has no lists of tokens, src and tgt; give the whole model")
        return Symbols.find(tokens, where, **_SPECIAL, start=start)

    return find(vocab.get("src")), find(vocab.get("tgt"))
