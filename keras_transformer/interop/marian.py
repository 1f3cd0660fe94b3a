"""Reads a model that Marian trained: an .npz file, its vocabularies, and decoder.yml beside them.

OPUS-MT publishes such models as zip archives, with source.spm and target.spm beside a vocabulary in
YAML. A vocabulary may also be a SentencePiece model itself, whose ids are then the model's.
"""

import io
import pathlib
import re
import zipfile
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.interop.files import (
    Array,
    Given,
    Tensors,
    map_file,
    read_json,
    read_text,
    refuse,
)
from keras_transformer.interop.foreign import ForeignModel, Layout
from keras_transformer.interop.vocabulary import (
    Symbols,
    make_vocabularies,
    read_spm,
    tokens_of_ids,
)

# The little YAML that Marian writes: options, lists of them, and tokens with their ids.

Options: TypeAlias = Mapping[str, "str | tuple[str, ...]"]

_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b",
    "f": "\f", "v": "\v", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*"|' + r"'(?:[^']|'')*')\s*:\s+(.*)")


def read_options(text: str) -> dict[str, str | tuple[str, ...]]:
    """Returns options by name, as text: a mapping whose values are numbers, words and lists."""
    options: dict[str, str | tuple[str, ...]] = {}
    name = ""
    for line in text.splitlines():
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        if line[0] not in " -" and ":" in content:
            name, _, value = (part.strip() for part in content.partition(":"))
            options[name] = _plain(value)
        elif content.startswith("- "):
            earlier = options.get(name)
            items = earlier if isinstance(earlier, tuple) else ()
            options[name] = (*items, _plain(content[2:].strip()))
        elif content == "[]":
            options[name] = ()
    return {key: () if value == "[]" else value for key, value in options.items()}


def read_yaml_ids(text: str, where: str) -> dict[str, int]:
    """Returns the ids of tokens, one to a line; all tokens are text, also on, no and yes.

    Raises:
        InputError: a line is something else, or a token occurs twice.
    """
    ids: dict[str, int] = {}
    key = None  # of a line "? key", whose id is in the next
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line == "---":
            continue
        if line.startswith("? "):
            key = _plain(line[2:].strip())
            continue
        if key is not None and line.startswith(": "):
            token, value = key, line[2:]
        elif match := _QUOTED.fullmatch(line):
            token, value = _plain(match[1]), match[2]
        else:
            token, _, value = line.rpartition(": ")
        key = None
        if not value.strip().isdecimal() or token in ids:
            raise InputError(
                f"line {number} of {where} is no token with an id of its own, {line[:40]!r}; give "
                "the model's own vocabulary"
            )
        ids[token] = int(value)
    return ids


def _plain(text: str) -> str:
    """Returns a value without its quotes."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _ESCAPED.sub(_unescaped, text[1:-1])
    return text


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, code)


# The options of a Marian model as those of a `TransformerConfig`, or what stands against it.

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


_NAMES = {
    "self.query": "{side}_l{n}_self_{kind}q",
    "self.key": "{side}_l{n}_self_{kind}k",
    "self.value": "{side}_l{n}_self_{kind}v",
    "self.out": "{side}_l{n}_self_{kind}o",
    "self.norm": "{side}_l{n}_self_Wo_ln_{kind}",
    "cross.query": "{side}_l{n}_context_{kind}q",
    "cross.key": "{side}_l{n}_context_{kind}k",
    "cross.value": "{side}_l{n}_context_{kind}v",
    "cross.out": "{side}_l{n}_context_{kind}o",
    "cross.norm": "{side}_l{n}_context_Wo_ln_{kind}",
    "ffn.inner": "{side}_l{n}_ffn_{kind}1",
    "ffn.outer": "{side}_l{n}_ffn_{kind}2",
    "ffn.norm": "{side}_l{n}_ffn_ffn_ln_{kind}",
    "final.norm": "{side}_top_ln_{kind}",
    "embedding.norm": "{side}_emb_ln_{kind}_pre",
}
_OPTIONS = "special:model.yml"
_SPECIAL = {"unk": "<unk>", "eos": "</s>"}


def is_marian(path: pathlib.Path) -> bool:
    """Whether a folder or file is such a model."""
    if path.is_dir():
        return any(path.glob("*.npz")) or any(path.glob("*decoder.yml"))
    return path.suffix == ".npz" or path.name.endswith("decoder.yml")


def read_marian(path: pathlib.Path, given: Given) -> ForeignModel:
    """Returns the model in a folder, or in an .npz file."""
    path, decoder, vocabularies = _files(path, given)
    arrays = _arrays(path)
    options = read_options(arrays.pop(_OPTIONS).tobytes().replace(b"\0", b"").decode())
    tensors = Tensors(arrays, str(path))
    tensors.ignore("special:*", "decoder_c_tt")
    fields = transformer_fields(options)
    is_pre = fields["norm_position"] == "pre"
    suffix = "_pre" if is_pre else ""
    names = {
        part: name + suffix if part in ("self.norm", "cross.norm", "ffn.norm") else name
        for part, name in _NAMES.items()
    }
    source_table, target_table = _tables(tensors)
    sides = (_symbols(vocabularies[0]), _symbols(vocabularies[1]))
    spms = given.spms or _spms(vocabularies)
    positions = tensors.get("Wpos", (None, None)) if "Wpos" in tensors else None
    return ForeignModel(
        options=fields,
        tensors=tensors,
        layout=Layout(
            names=names, kernel="W", bias="b", gain="scale", offset="bias", transposed=False
        ),
        source_table=source_table,
        target_table=target_table,
        projection=_projection(tensors, target_table),
        output_bias=_output_bias(tensors, len(target_table)),
        position_table=positions,
        source=sides[0],
        target=sides[1],
        vocabularies=make_vocabularies(sides, spms, str(vocabularies[0])),
        search=_search(decoder),
        layer_numbers=tuple(map(int, options.get("transformer-tied-layers", ()) or ())),
    )


def _files(
    path: pathlib.Path, given: Given
) -> tuple[pathlib.Path, Options, tuple[pathlib.Path, ...]]:
    """Returns the .npz file, the options of translation, and both vocabularies."""
    folder = path if path.is_dir() else path.parent
    decoders = [path] if path.suffix == ".yml" else sorted(folder.glob("*decoder.yml"))
    models = [path] if path.suffix == ".npz" else sorted(folder.glob("*.npz"))
    options: Options = read_options(read_text(decoders[0])) if decoders else {}
    named = {key: options.get(key, ()) for key in ("models", "vocabs")}
    if path.suffix != ".npz" and isinstance(named["models"], tuple) and named["models"]:
        models = [folder / pathlib.Path(name).name for name in named["models"]]
    if len(models) != 1:
        raise InputError(
            f"{path} has {len(models)} models; name one .npz file (several runs translate together "
            "with --run_dir=one,other)"
        )
    names = named["vocabs"] if isinstance(named["vocabs"], tuple) else ()
    vocabularies = given.vocabularies or tuple(folder / pathlib.Path(name).name for name in names)
    if len(vocabularies) != 2:
        raise InputError(
            f"no decoder.yml beside {models[0]} names the vocabularies of source and target; name "
            "them with --source_vocabulary and --target_vocabulary"
        )
    return models[0], options, vocabularies


def _arrays(path: pathlib.Path) -> dict[str, Array]:
    """Returns the arrays of an .npz file by name, the model's options among them."""
    content = map_file(path)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            arrays = {key: _array(archive.read(name)) for key, name in names.items()}
    except Exception as error:  # whatever a damaged file leads to
        raise InputError(
            f"{path} is not an .npz file, or a damaged one ({type(error).__name__}: {error}); "
            "download it again"
        ) from error
    if _OPTIONS not in arrays:
        raise InputError(
            f"{path} is no model of Marian: it lacks {_OPTIONS}; give the .npz file of a model"
        )
    return arrays


def _array(content: bytes) -> Array:
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


def _tables(tensors: Tensors) -> tuple[Array, Array]:
    if "Wemb" in tensors:
        table = tensors.get("Wemb", (None, None))
        return table, table
    return tensors.get("encoder_Wemb", (None, None)), tensors.get("decoder_Wemb", (None, None))


def _projection(tensors: Tensors, target_table: Array) -> Array:
    if "decoder_ff_logit_out_Wt" in tensors:
        return tensors.get("decoder_ff_logit_out_Wt", target_table.shape)
    if "decoder_ff_logit_out_W" in tensors:
        return tensors.get("decoder_ff_logit_out_W", target_table.shape[::-1]).T
    return target_table


def _output_bias(tensors: Tensors, size: int) -> Array | None:
    name = "decoder_ff_logit_out_b"
    return tensors.get(name, (size,)) if name in tensors else None


def _symbols(path: pathlib.Path) -> Symbols:
    if path.suffix in (".yml", ".yaml"):
        tokens = tokens_of_ids(read_yaml_ids(read_text(path), str(path)), str(path))
    elif path.suffix == ".json":
        tokens = tokens_of_ids(read_json(path), str(path))
    elif path.suffix == ".spm":
        tokens = [piece.piece for piece in read_spm(path).pieces]
    else:
        raise InputError(
            f"vocabulary {path} is neither .yml, .json nor .spm; factored and other vocabularies "
            "cannot be imported"
        )
    return Symbols.find(tokens, str(path), **_SPECIAL)


def _spms(vocabularies: tuple[pathlib.Path, ...]) -> tuple[pathlib.Path, ...]:
    """Returns the SentencePiece models: the vocabularies themselves, or files beside them."""
    if all(path.suffix == ".spm" for path in vocabularies):
        return vocabularies
    beside = tuple(vocabularies[0].parent / f"{side}.spm" for side in ("source", "target"))
    return beside if all(path.is_file() for path in beside) else ()


def _search(options: Options) -> dict[str, Any]:
    """Returns how Marian would search: it chooses the unknown token only where it is told to."""
    search: dict[str, Any] = {"length_penalty_form": "power", "length_penalty": 0.0}
    search["forbid_unknown"] = options.get("allow-unk") != "true"
    if "normalize" in options:
        search["length_penalty"] = float(str(options["normalize"]) or 0)
    if "beam-size" in options:
        search["beam_size"] = number(options, "beam-size")
    return search
