"""Reads a model that Marian trained: a .npz or .bin file, its vocabularies, and decoder.yml.

OPUS-MT publishes such models as zip archives, with source.spm and target.spm beside a vocabulary in
YAML. A vocabulary may also be a SentencePiece model itself, whose ids are then the model's.
Firefox's are binary files, with vocab.<languages>.spm beside them.
"""

import pathlib
import re
import zipfile
import zlib
from typing import Any

import numpy as np
import yaml

from keras_transformer.errors import InputError
from keras_transformer.interop.foreign import (
    ForeignModel,
    ImportOptions,
    Layout,
    missing_options,
)
from keras_transformer.interop.marian_binary import is_binary, read_binary
from keras_transformer.interop.reading import (
    Array,
    Options,
    Tensors,
    ids_to_tokens,
    map_file,
    read_text,
    reading,
    reject,
)
from keras_transformer.interop.vocabularies import Symbols, read_spm

# {side} is encoder or decoder, {n} the layer from 1, {kind} W or b, or that of a norm.
_NAMES = {
    "self.query": "{side}_l{n}_self_{kind}q",
    "self.key": "{side}_l{n}_self_{kind}k",
    "self.value": "{side}_l{n}_self_{kind}v",
    "self.out": "{side}_l{n}_self_{kind}o",
    "self.norm": "{side}_l{n}_self_Wo_ln_{kind}",
    "ssru.candidate": "{side}_l{n}_rnn_{kind}",
    "ssru.forget": "{side}_l{n}_rnn_{kind}f",
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
# The values of options that a plain Transformer has; others show in the names of the tensors.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-preprocess": ("", "n"),
    "transformer-postprocess": ("an", "dan", "a", "da"),
    "transformer-postprocess-top": ("", "d", "n", "nd"),
    "transformer-postprocess-emb": ("", "d", "n", "nd"),
    "transformer-ffn-activation": ("relu", "swish", "gelu"),
    "transformer-pool": ("false",),
    "transformer-alibi-shift": ("false",),
    "transformer-alibi-trainable": ("false",),
    "transformer-disable-position-embeddings": ("false",),
    "transformer-attention-mask": ("default",),
    "right-left": ("false",),
    "input-types": ([],),
}
_SINCE_ERF = (1, 12, 42)  # from this version on gelu is x Phi(x), before it x sigmoid(1.702 x)
# Options of decoder.yml that change translations and that `SearchConfig` lacks.
_OTHER_SEARCH = (
    "word-penalty", "max-length-factor", "output-sampling", "shortlist", "force-decode",
    "word-scores-threshold", "allow-special",
)  # fmt: skip
_FIREFOX = {"beam-size": "1", "normalize": "1.0"}  # how it searches
_OPTIONS = "special:model.yml"


def is_marian(path: pathlib.Path) -> bool:
    """Whether a folder or file is such a model."""
    files = path.iterdir() if path.is_dir() else [path]
    return any(_is_model(file) or file.name.endswith("decoder.yml") for file in files)


def _is_model(path: pathlib.Path) -> bool:
    return path.suffix == ".npz" or is_binary(path)


def read_marian(path: pathlib.Path, import_options: ImportOptions) -> ForeignModel:
    """Returns the model in a folder, or in an .npz or .bin file."""
    path, decoder, vocabularies = _files(path, import_options)
    tensors = Tensors(read_binary(path) if is_binary(path) else _read_npz(path), str(path))
    if _OPTIONS not in tensors:
        raise InputError(
            f"{path} is not a model of Marian: it lacks {_OPTIONS}; give the file of a model"
        )
    text = tensors.get(_OPTIONS).astype(np.int8).tobytes().decode("utf-8", "replace")
    fields = model_fields(Options(_read_yaml(text, path), str(path)))
    # Multipliers of activations, which are for integers, are ignored too.
    tensors.ignore("special:*", "decoder_c_tt", "*_QuantMultA")
    suffix = "_pre" if fields["norm_position"] == "pre" else ""
    names = {
        part: name + suffix if part in ("self.norm", "cross.norm", "ffn.norm") else name
        for part, name in _NAMES.items()
    }
    if fields["decoder_mixer"] == "ssru":  # whose norm has one of two names
        names["decoder.self.norm"] = (
            f"{{side}}_l{{n}}_rnn{'' if suffix else '_ffn'}_ln_{{kind}}{suffix}"
        )
    shared = tensors.find("Wemb", (None, None))
    source_table, target_table = (
        tensors.get(f"{side}_Wemb", (None, None)) if shared is None else shared
        for side in ("encoder", "decoder")
    )
    projection = tensors.find("decoder_ff_logit_out_Wt", target_table.shape)  # [V, D]
    kernel = tensors.find("decoder_ff_logit_out_W", target_table.shape[::-1])  # [D, V]
    if kernel is not None:
        projection = kernel.T
    source, target = map(_read_symbols, vocabularies)
    return ForeignModel(
        options=fields,
        tensors=tensors,
        layout=Layout(
            names=names, kernel="W", bias="b", gain="scale", offset="bias", transposed=False
        ),
        source_table=source_table,
        target_table=target_table,
        projection=target_table if projection is None else projection,
        output_bias=tensors.find("decoder_ff_logit_out_b", (len(target_table),)),
        source=source,
        target=target,
        spms=import_options.spms or _find_spms(vocabularies),
        search=search_fields(decoder),
        notes=missing_options(
            f"{name} {decoder.values[name]}"
            for name in _OTHER_SEARCH
            if decoder.values.get(name) not in (None, "", "0", "0.0", "false", [])
        )
        + [
            f"The shortlist {file.name} is left out: any token may come next."
            for file in path.parent.glob("lex*.bin")
        ],
    )


def model_fields(options: Options) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` lists all that cannot be imported."""
    pre, post, top = (
        options.get(f"transformer-{name}", str, "").replace("d", "")  # without dropout
        for name in ("preprocess", "postprocess", "postprocess-top")
    )
    is_pre = (pre, post, top) == ("n", "a", "n")
    are_usual = is_pre or (pre, post, top) == ("", "an", "")
    is_recurrent = options.get("transformer-decoder-autoreg", str, "") == "rnn"
    cell = options.values.get("dec-cell")
    reject(
        {
            f"{name} {options.values[name] or 'empty'}": options.values[name] not in supported
            for name, supported in _SUPPORTED.items()
            if name in options.values
        }
        | {
            f"norms {pre!r} before, {post!r} after and {top!r} at the end": not are_usual,
            f"dec-cell {cell}": is_recurrent and cell != "ssru",
        }
    )
    activation = options.get("transformer-ffn-activation", str, "swish")
    version = options.get("version", str, "").split(" ")[0]
    if activation == "gelu" and tuple(map(int, re.findall(r"\d+", version))) < _SINCE_ERF:
        activation = "gelu_sigmoid"
    return {
        "num_layers": options.get("enc-depth", int, 0),
        "decoder_layers": options.get("dec-depth", int, 0),
        "num_heads": options.get("transformer-heads", int, 0),
        "activation": activation,
        "norm_position": "pre" if is_pre else "post",
        "norm_epsilon": 1e-6,
        "positions": "concatenated",
        "embedding_norm": "n" in options.get("transformer-postprocess-emb", str, "d"),
        "decoder_mixer": "ssru" if is_recurrent else "attention",
    }


def search_fields(decoder: Options) -> dict[str, Any]:
    """Returns fields of `SearchConfig`, of the options in decoder.yml."""
    return {
        "beam_size": decoder.get("beam-size", int, 12),
        "length_penalty_form": "power",
        "length_penalty": decoder.get("normalize", float, 0.0),
        "forbid_unknown": decoder.get("allow-unk", str, "").lower() not in ("true", "yes"),
        "min_length": 0,
        "early_stop": "narrow",
    }


def _read_yaml(text: str, path: pathlib.Path) -> dict[str, Any]:
    """Returns a mapping whose values are text, also on, no and yes, or lists of text."""
    with reading(path, "a YAML file", yaml.YAMLError):  # RecursionError is a RuntimeError
        # Marian ends its options with NULs, which no YAML has.
        values = yaml.load(text.replace("\0", ""), _LOADER) or {}
        if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
            raise ValueError("it is not a mapping of names to values")
    return values


# The loader in C, which PyYAML has where libyaml was there, reads vocabularies ten times as fast.
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def _files(
    path: pathlib.Path, import_options: ImportOptions
) -> tuple[pathlib.Path, Options, tuple[pathlib.Path, ...]]:
    """Returns the model's file, the options of decoder.yml, and both vocabularies."""
    folder = path if path.is_dir() else path.parent
    decoders = [path] if path.suffix == ".yml" else sorted(folder.glob("*decoder.yml"))
    values = _read_yaml(read_text(decoders[0]), decoders[0]) if decoders else {}
    options = Options(values, str(decoders[0]) if decoders else "")

    def named(key: str) -> list[pathlib.Path]:
        return [folder / pathlib.Path(str(name)).name for name in options.get(key, list, [])]

    models = (
        [path]
        if _is_model(path)
        else named("models") or sorted(filter(_is_model, folder.iterdir()))
    )
    if len(models) != 1:
        raise InputError(f"{path} has {len(models)} models; name one .npz or .bin file")
    if not decoders and is_binary(models[0]):
        options = Options(_FIREFOX, "")
    vocabularies = import_options.vocabularies or tuple(named("vocabs") or _by_name(folder))
    if len(vocabularies) != 2:
        raise InputError(
            f"no decoder.yml beside {models[0]} names the vocabularies of source and target, and "
            "there is no vocab.*.spm; give --source_vocabulary and --target_vocabulary of "
            "keras-transformer import_model"
        )
    return models[0], options, vocabularies


def _read_npz(path: pathlib.Path) -> dict[str, Array]:
    """Returns the arrays of an .npz file by name, the model's options among them."""
    map_file(path)
    errors = (zipfile.BadZipFile, zlib.error, SyntaxError)  # a header is a Python literal
    with reading(path, "an .npz file", *errors), np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _read_symbols(path: pathlib.Path) -> Symbols:
    if path.suffix == ".spm":
        tokens = [piece.piece for piece in read_spm(path).pieces]
    elif path.suffix in (".yml", ".yaml", ".json"):  # JSON is YAML
        ids = _read_yaml(read_text(path), path)
        numbers = {token: int(id_) if str(id_).isdecimal() else None for token, id_ in ids.items()}
        tokens = ids_to_tokens(numbers, str(path))
    else:
        raise InputError(f"the vocabulary {path} must be .yml, .json or .spm; others are not read")
    return Symbols.find(tokens, str(path), unk="<unk>", eos="</s>")


def _by_name(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns vocabularies with the names of Firefox's: one for both sides, or one for each."""
    shared = sorted(folder.glob("vocab*.spm"))
    return 2 * shared or [*folder.glob("srcvocab*.spm"), *folder.glob("trgvocab*.spm")]


def _find_spms(vocabularies: tuple[pathlib.Path, ...]) -> tuple[pathlib.Path, ...]:
    """Returns the SentencePiece models: the vocabularies themselves, or files beside them."""
    if all(path.suffix == ".spm" for path in vocabularies):
        return vocabularies
    beside = tuple(vocabularies[0].parent / f"{side}.spm" for side in ("source", "target"))
    return beside if all(path.is_file() for path in beside) else ()
