"""The options of a Marian model as those of a `TransformerConfig`, or what stands against it."""

import re
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.interop.flat_yaml import Options
from keras_transformer.interop.model_files import refuse

# What these options are in a plain Transformer; a tuple names several values.
_USUAL: dict[str, str | tuple[str, ...]] = {
    "type": "transformer",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-preprocess": ("", "n"),
    "transformer-postprocess": ("an", "dan", "a", "da"),
    "transformer-postprocess-top": ("", "d", "n", "nd"),
    "transformer-postprocess-emb": ("", "d", "n", "nd"),
    "transformer-ffn-depth": "2",
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-ffn-activation": ("relu", "swish", "gelu"),
    "transformer-no-projection": "false",
    "transformer-no-affine": "false",
    "transformer-pool": "false",
    "transformer-rnn-projection": "false",
    "transformer-alibi-shift": "false",
    "transformer-alibi-trainable": "false",
    "transformer-disable-position-embeddings": "false",
    "transformer-attention-mask": "default",
    "ulr": "false",
    "right-left": "false",
    "lemma-dependency": "",
    "factors-dim-emb": "0",
    "input-types": (),
}
_SINCE_ERF = (1, 12, 42)  # from this version on gelu is x Phi(x), before it x sigmoid(1.702 x)


def transformer_fields(options: Options) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` lists all that cannot be imported."""
    chosen = {name: options.get(name, "") for name in _USUAL}
    refused = {
        f"{name} {value or 'empty'}": not _is_usual(value, _USUAL[name])
        for name, value in chosen.items()
        if name in options
    }
    pre, post, top = (
        str(options.get(f"transformer-{name}", "")).replace("d", "")
        for name in ("preprocess", "postprocess", "postprocess-top")
    )
    is_pre = (pre, post, top) == ("n", "a", "n")
    if not any(refused.values()) and not is_pre and (pre, post, top) != ("", "an", ""):
        refused[f"norms {pre or 'none'} before, {post} after and {top or 'none'} at the end"] = True
    refuse(refused)
    activation = options.get("transformer-ffn-activation", "swish")
    if activation == "gelu" and _version(options) < _SINCE_ERF:
        activation = "gelu_sigmoid"
    return {
        "num_layers": number(options, "enc-depth"),
        "decoder_layers": number(options, "dec-depth"),
        "num_heads": number(options, "transformer-heads"),
        "activation": activation,
        "norm_position": "pre" if is_pre else "post",
        "norm_epsilon": 1e-6,
        "positions": "concatenated",
        "embedding_norm": "n" in str(options.get("transformer-postprocess-emb", "d")),
    }


def _is_usual(value: str | tuple[str, ...], usual: str | tuple[str, ...]) -> bool:
    return value == usual or (isinstance(usual, tuple) and value in usual)


def number(options: Options, name: str) -> int:
    """Returns an option that is a whole number."""
    value = options.get(name)
    if not isinstance(value, str) or not re.fullmatch(r"\d{1,6}", value):
        raise InputError(f"{name} is {value!r} in the model's options; give the model as it was")
    return int(value)


def _version(options: Options) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", str(options.get("version", "")).split(" ")[0])))
