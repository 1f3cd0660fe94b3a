"""Reads models of OpenNMT-py, a checkpoint .pt, and of its successor eole, a folder."""

import pathlib
from collections.abc import Mapping
from typing import Any, TypeVar

from keras_transformer.errors import InputError
from keras_transformer.interop.foreign import ForeignModel, ImportOptions, Layout
from keras_transformer.interop.pytorch import read_pytorch, state_tensors
from keras_transformer.interop.reading import (
    Options,
    Tensors,
    dropout_rate,
    read_json,
    read_safetensors,
    reject,
)
from keras_transformer.interop.vocabularies import Symbols, make_vocabularies

_ATTENTION = {
    "self.query": "{side}.transformer_layers.{i}.self_attn.linear_query.{kind}",
    "self.key": "{side}.transformer_layers.{i}.self_attn.linear_keys.{kind}",
    "self.value": "{side}.transformer_layers.{i}.self_attn.linear_values.{kind}",
    "self.out": "{side}.transformer_layers.{i}.self_attn.final_linear.{kind}",
    "cross.query": "{side}.transformer_layers.{i}.context_attn.linear_query.{kind}",
    "cross.key": "{side}.transformer_layers.{i}.context_attn.linear_keys.{kind}",
    "cross.value": "{side}.transformer_layers.{i}.context_attn.linear_values.{kind}",
    "cross.out": "{side}.transformer_layers.{i}.context_attn.final_linear.{kind}",
    "final.norm": "{side}.layer_norm.{kind}",
}
_OPENNMT_NAMES = _ATTENTION | {
    "self.norm": "{side}.transformer_layers.{i}.layer_norm_1.{kind}",
    "cross.norm": "{side}.transformer_layers.{i}.layer_norm_2.{kind}",
    "ffn.inner": "{side}.transformer_layers.{i}.feed_forward.w_1.{kind}",
    "ffn.outer": "{side}.transformer_layers.{i}.feed_forward.w_2.{kind}",
    "ffn.norm": "{side}.transformer_layers.{i}.feed_forward.layer_norm.{kind}",
}
_OPENNMT_NAMES |= {
    f"encoder.{part}": name.replace("transformer_layers", "transformer").replace(
        "layer_norm_1", "layer_norm"
    )
    for part, name in _OPENNMT_NAMES.items()
}
_EOLE_NAMES = _ATTENTION | {
    "self.norm": "{side}.transformer_layers.{i}.input_layernorm.{kind}",
    "cross.norm": "{side}.transformer_layers.{i}.precontext_layernorm.{kind}",
    "ffn.inner": "{side}.transformer_layers.{i}.mlp.gate_up_proj.{kind}",
    "ffn.outer": "{side}.transformer_layers.{i}.mlp.down_proj.{kind}",
    "ffn.norm": "{side}.transformer_layers.{i}.post_attention_layernorm.{kind}",
}
_T = TypeVar("_T")
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "swish", "fast_gelu": "gelu_tanh"}
_COMMON = {"norm_position": "pre", "positions": "sinusoidal", "source_eos": False}
# The defaults of OpenNMT-py and eole, whose length penalty "avg" divides by the length.
_SEARCH = {
    "beam_size": 5, "length_penalty": 1.0, "length_penalty_form": "power", "min_length": 0,
    "early_stop": "first", "max_length": 250, "max_extra_length": 250,
}  # fmt: skip
_EOLE_WEIGHTS = "model.00.safetensors"


def is_opennmt_py(path: pathlib.Path) -> bool:
    """Whether a folder or file may be a checkpoint of OpenNMT-py."""
    if path.is_dir():
        return any(path.glob("*.pt")) and not any(path.glob("dict.*.txt"))
    return path.suffix == ".pt" and not any(path.parent.glob("dict.*.txt"))


def is_eole(folder: pathlib.Path) -> bool:
    """Whether a folder holds a model of eole."""
    return (folder / _EOLE_WEIGHTS).is_file()


def read_opennmt_py(path: pathlib.Path, import_options: ImportOptions) -> ForeignModel:
    """Returns the model in a file, or in the only one of a folder."""
    files = sorted(path.glob("*.pt")) if path.is_dir() else [path]
    if len(files) != 1:
        raise InputError(f"{path} has {len(files)} checkpoints; name one file")
    (file,) = files
    state = read_pytorch(file)
    entries = state if isinstance(state, dict) else {}
    parts = [entries.get(name) for name in ("model", "generator", "opt", "vocab")]
    model, generator, opt, vocab = (part if isinstance(part, dict) else {} for part in parts)
    if not (model and generator and opt and vocab):
        raise InputError(
            f"{file} is not a checkpoint of OpenNMT-py 3: it has no model, generator, opt and "
            "vocab; give a whole checkpoint"
        )
    weights = {**model, **{f"generator.{name}": value for name, value in generator.items()}}
    tensors = state_tensors(weights, file)
    tensors.ignore("*.make_embedding.pe.pe")
    options = opennmt_py_fields(Options(opt, str(file), "opennmt_py"))
    is_old = "encoder.layer_norm.a_2" in tensors
    layout = Layout(
        names=_OPENNMT_NAMES, gain="a_2" if is_old else "weight", offset="b_2" if is_old else "bias"
    )
    tables = [
        f"{side}.embeddings.make_embedding.emb_luts.0.weight" for side in ("encoder", "decoder")
    ]
    output = "generator.0" if "generator.0.weight" in tensors else "generator"
    symbols = _symbols(vocab, str(file), "opennmt_py")
    return _model(options, tensors, layout, tables, f"{output}.weight", symbols, import_options)


def read_eole(folder: pathlib.Path, import_options: ImportOptions) -> ForeignModel:
    """Returns the model in a folder."""
    config = read_json(folder / "config.json")
    options = eole_fields(config, str(folder / "config.json"))
    tensors = read_safetensors(folder / _EOLE_WEIGHTS)
    scalars = [name for name in tensors if name.endswith(".layer_scalar")]
    reject({"layer_scalar": any((tensors.get(name) != 1).any() for name in scalars)})
    tensors.ignore("*_emb.pe.pe")
    tables = ["src_emb.embeddings.weight", "tgt_emb.embeddings.weight"]
    output = "generator.weight"
    # A matrix that several layers share is stored once.
    if config["model"].get("share_embeddings") is True and tables[1] not in tensors:
        tables[1] = tables[0]
    if config["model"].get("share_decoder_embeddings") is True and output not in tensors:
        output = tables[1]
    path = folder / "vocab.json"
    symbols = _symbols(read_json(path), str(path), "eole")
    return _model(
        options, tensors, Layout(names=_EOLE_NAMES), tables, output, symbols, import_options
    )


def _model(
    options: Mapping[str, Any],
    tensors: Tensors,
    layout: Layout,
    tables: list[str],
    output: str,
    symbols: tuple[Symbols, Symbols],
    import_options: ImportOptions,
) -> ForeignModel:
    """Returns the model of either toolkit; `tables` and `output` name [V, D] tensors."""
    target_table = tensors.get(tables[1], (None, None))
    return ForeignModel(
        options=options,
        tensors=tensors,
        layout=layout,
        source_table=tensors.get(tables[0], (None, None)),
        target_table=target_table,
        projection=tensors.get(output, target_table.shape),
        output_bias=tensors.find(
            "generator.0.bias" if output.startswith("generator.0") else "generator.bias",
            (len(target_table),),
        ),
        source=symbols[0],
        target=symbols[1],
        vocabularies=make_vocabularies(symbols, import_options.spms, tensors.where),
        search=_SEARCH,
    )


def opennmt_py_fields(opt: Options) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` lists all that cannot be imported."""
    activation = opt.get("pos_ffn_activation_fn", str, "relu")
    position = opt.get("position_encoding_type", str, "SinusoidalInterleaved")
    types = {name: opt.get(name, str, "None") for name in ("encoder_type", "decoder_type")}
    self_attention = opt.get("self_attn_type", str, "scaled-dot")
    reject(
        {f"{name} {value}": value != "transformer" for name, value in types.items()}
        | {
            f"pos_ffn_activation_fn {activation}": activation not in _ACTIVATIONS,
            f"self_attn_type {self_attention}": "average" in self_attention,
            "relative positions": opt.is_set("max_relative_positions"),
            f"position_encoding_type {position}": position != "SinusoidalInterleaved",
            "generator_function sparsemax": opt.get("generator_function", str, "") == "sparsemax",
            "no position_encoding": not opt.is_set("position_encoding"),
            "layer_norm rms": opt.get("layer_norm", str, "") == "rms",
            "sliding_window": opt.is_set("sliding_window"),
            "features": opt.is_set("feat_merge_size") or opt.is_set("n_src_feats"),
        }
        | {name: opt.is_set(name) for name in ("multiquery", "parallel_residual", "copy_attn")}
    )
    layers = opt.get("layers", int, 0)
    return _COMMON | {
        "num_layers": opt.get("enc_layers", int, 0) or layers,
        "decoder_layers": opt.get("dec_layers", int, 0) or layers,
        "num_heads": opt.get("heads", int, 8),
        "activation": _ACTIVATIONS[activation],
        "dropout": _dropout(opt),
        "norm_epsilon": opt.get("norm_eps", float, 1e-6),
    }


def eole_fields(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` lists all that cannot be imported."""
    model = Options(config, where, "eole").get("model", dict, {})
    if not model:
        raise InputError(f"{where} has no model; give the folder of a whole model")
    options = Options(model, where, "eole")
    encoder, decoder, embeddings = (
        Options(options.get(part, dict, {}), where, "eole")
        for part in ("encoder", "decoder", "embeddings")
    )

    def both(name: str, kind: type[_T], default: _T) -> tuple[_T, _T]:
        """Returns an option of encoder and decoder, which may be that of the whole model."""
        default = options.get(name, kind, default)
        return encoder.get(name, kind, default), decoder.get(name, kind, default)

    options_of_sides: dict[str, tuple[Any, Any]] = {
        "mlp_activation_fn": both("mlp_activation_fn", str, "relu"),
        "heads": both("heads", int, 8),
        "norm_eps": both("norm_eps", float, 1e-5),
        "layer_norm": both("layer_norm", str, "standard"),
    }
    activation, heads, norm_eps, norm = (one for one, _ in options_of_sides.values())
    position = options.get("position_encoding_type", str, "") or embeddings.get(
        "position_encoding_type", str, "None"
    )
    types = {
        "encoder_type": encoder.get("encoder_type", str, "None"),
        "decoder_type": decoder.get("decoder_type", str, "None"),
    }
    scale = embeddings.get("embed_scale", float, 1.0)
    reject(
        {f"{name} {value}": value != "transformer" for name, value in types.items()}
        | {f"{name} {one} and {two}": one != two for name, (one, two) in options_of_sides.items()}
        | {
            name: any(part.is_set(name) for part in (options, encoder, decoder))
            for name in ("parallel_residual", "sliding_window", "attn_scaling")
        }
        | {
            f"mlp_activation_fn {activation}": activation not in _ACTIVATIONS,
            f"position_encoding_type {position}": position != "SinusoidalInterleaved",
            # Both multiply the sum of embedding and position.
            "embeddings.normalize": embeddings.is_set("normalize"),
            f"embeddings.embed_scale {scale:g}": scale != 1,
            f"layer_norm {norm}": norm not in ("standard", "standardFP32"),
            "generator_function sparsemax": options.get("generator_function", str, "")
            == "sparsemax",
            "heads_kv": {number or heads for number in both("heads_kv", int, 0)} != {heads},
        }
    )
    num_layers, decoder_layers = both("layers", int, 2)
    return _COMMON | {
        "num_layers": num_layers,
        "decoder_layers": decoder_layers,
        "num_heads": heads,
        "activation": _ACTIVATIONS[activation],
        "dropout": _dropout(
            Options(Options(config, where, "eole").get("training", dict, {}), where, "eole")
        ),
        "norm_epsilon": norm_eps,
    }


def _dropout(options: Options) -> float:
    value = options.get("dropout", object, None)  # one for each stage of training
    return dropout_rate(value[0] if isinstance(value, list) and value else value)


def _symbols(vocab: Mapping[str, Any], where: str, format_name: str) -> tuple[Symbols, Symbols]:
    start = Options(vocab, where, format_name).get("decoder_start_token", str, "<s>")
    sides = vocab.get("src"), vocab.get("tgt")
    for tokens in sides:
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise InputError(f"{where} has no lists of tokens, src and tgt; give the whole model")
    source, target = (
        Symbols.find(tokens, where, unk="<unk>", eos="</s>", pad="<blank>", start=start)
        for tokens in sides
        if tokens is not None
    )
    return source, target
