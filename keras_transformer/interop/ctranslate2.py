"""CTranslate2 model folders: the export of a model, and the import of one.

The export renames and transposes the weights: CTranslate2 computes the same log-probabilities in
float32. It writes

    model.bin, config.json         weights and tokens, as CTranslate2's Translator loads them
    shared_vocabulary.json         the pieces, or source_ and target_vocabulary.json
    source.model, target.model     SentencePiece models that turn text into pieces and back

Shapes: D model dimension, P positions.
"""

import functools
import itertools
import math
import os
import pathlib
import struct
from typing import Any

import ml_dtypes
import numpy as np

from keras_transformer.config import BOS_ID, EOS_ID, UNK_ID, TransformerConfig
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.files import local_path
from keras_transformer.interop.foreign import (
    ForeignModel,
    ImportOptions,
    Layout,
    check_exportable,
    export_folder,
    layer_tensors,
    to_numpy,
    unsupported,
)
from keras_transformer.interop.reading import (
    Array,
    Options,
    Tensors,
    map_file,
    read_json,
    reading,
    reject,
)
from keras_transformer.interop.vocabularies import Symbols, save_tokenizer
from keras_transformer.layers import sinusoids
from keras_transformer.models import Transformer
from keras_transformer.text import Vocabulary
from keras_transformer.text.sentencepiece_model import RESERVED_IDS

# Rows of the table of positions; CTranslate2 refuses longer sentences, and by default cuts them to
# half as many tokens (its `max_input_length`).
_NUM_POSITIONS = 2048

# Members of `ctranslate2.specs.Activation`.
_ACTIVATIONS = {"relu": 0, "gelu_tanh": 1, "swish": 2, "gelu": 3, "gelu_sigmoid": 4}
# Names of the weights in model.bin, and of the attributes of a specification.
_LAYOUT = Layout(
    names={
        "self.fused": "{side}/layer_{i}/self_attention/linear_0/{kind}",
        "self.out": "{side}/layer_{i}/self_attention/linear_1/{kind}",
        "self.norm": "{side}/layer_{i}/self_attention/layer_norm/{kind}",
        "cross.query": "{side}/layer_{i}/attention/linear_0/{kind}",
        "cross.fused": "{side}/layer_{i}/attention/linear_1/{kind}",
        "cross.out": "{side}/layer_{i}/attention/linear_2/{kind}",
        "cross.norm": "{side}/layer_{i}/attention/layer_norm/{kind}",
        "ffn.inner": "{side}/layer_{i}/ffn/linear_0/{kind}",
        "ffn.outer": "{side}/layer_{i}/ffn/linear_1/{kind}",
        "ffn.norm": "{side}/layer_{i}/ffn/layer_norm/{kind}",
        "final.norm": "{side}/layer_norm/{kind}",
        "embedding.norm": "{side}/layernorm_embedding/{kind}",
    },
    gain="gamma",
    offset="beta",
)


def export_ctranslate2(
    model: Transformer,
    source: Vocabulary,
    target: Vocabulary,
    folder: str | os.PathLike[str],
) -> pathlib.Path:
    """Writes the folder atomically and returns its path; weights are float32.

    CTranslate2 adds EOS to the source and begins with BOS by itself. It does not forbid padding and
    BOS as `Translator` does: a model that was trained here gives them next to no probability, an
    imported one of Marian none. Its length penalty is length ** alpha, EOS counted; it truncates
    translations at `max_decoding_length`. With `compute_type="int8"` it quantizes as it loads.

    Args:
        model: a single Transformer; a window, relative positions, and keys and values of different
            widths cannot be written.
        source, target: the vocabularies.
        folder: a path that does not exist.

    Raises:
        InputError: ctranslate2 is not installed; this export does not support the model; a
            vocabulary is not the model's; the folder exists or cannot be written.

    Example:
        >>> folder = export_ctranslate2(model, source, target, "exports/en-de")
        >>> encoder = sentencepiece.SentencePieceProcessor(f"{folder}/source.model")
        >>> decoder = sentencepiece.SentencePieceProcessor(f"{folder}/target.model")
        >>> pieces = encoder.encode(["two hundred"], out_type=str)
        >>> results = ctranslate2.Translator(str(folder)).translate_batch(pieces, beam_size=4)
        >>> decoder.decode([result.hypotheses[0] for result in results])
        ['zweihundert']
    """
    with needs_extra("ctranslate2"):
        from ctranslate2.specs import transformer_spec as specs
    check_exportable(model, (source, target), "CTranslate2", _obstacles)
    with export_folder(folder) as aside:
        spec = _specification(model, specs)
        # CTranslate2 has one name for each reserved token: both sides get the target's.
        reserved = target.pieces(RESERVED_IDS)
        spec.register_source_vocabulary(reserved + source.pieces(range(len(reserved), source.size)))
        spec.register_target_vocabulary(target.pieces(range(target.size)))
        spec.config.unk_token, spec.config.eos_token = reserved[UNK_ID], reserved[EOS_ID]
        spec.config.bos_token = spec.config.decoder_start_token = reserved[BOS_ID]
        spec.validate()
        spec.optimize()
        spec.save(str(aside))
        save_tokenizer(source, aside / "source.model")
        save_tokenizer(target, aside / "target.model")
    return local_path(folder)


def _obstacles(config: TransformerConfig) -> dict[str, bool]:
    head_dim = config.model_dim // config.num_heads
    widths = (config.key_dim or head_dim, config.value_dim or head_dim)
    return unsupported(
        config,
        encoder_attention_window=[None],
        decoder_attention_window=[None],
        decoder_mixer=["attention"],
        positions=["sinusoidal", "halves", "concatenated", "learned"],
    ) | {f"key_dim {widths[0]} and value_dim {widths[1]}": widths[0] != widths[1]}


def _specification(model: Transformer, specs: Any) -> Any:
    """Returns a `TransformerSpec` with the weights of a model; `specs` is CTranslate2's module."""
    config = model.config
    head_dim = model.decoder.layers[0].self_attention.key_dim
    options = {
        "pre_norm": config.norm_position == "pre",
        "activation": _ACTIVATIONS[config.activation],
        "layernorm_embedding": config.embedding_norm,
        "head_dim": head_dim,
    }
    encoder = specs.TransformerEncoderSpec(config.num_layers, config.num_heads, **options)
    decoder = specs.TransformerDecoderSpec(
        config.decoder_layers or config.num_layers,
        config.num_heads,
        # Attention on request is the mean of the last layer's heads.
        alignment_layer=-1,
        alignment_heads=config.num_heads,
        **options,
    )
    encoder.scale_embeddings = decoder.scale_embeddings = config.scale_embeddings
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.config.add_source_eos = config.source_eos

    # The weights. Equal ones are stored once.
    encoder.embeddings[0].weight = to_numpy(model.source_embedding.table)
    decoder.embeddings.weight = to_numpy(model.target_embedding.table)
    encoder.position_encodings.encodings = _positions(model.positions, config)
    decoder.position_encodings.encodings = encoder.position_encodings.encodings
    for path, array in layer_tensors(model, _LAYOUT):
        *names, kind = path.split("/")
        setattr(functools.reduce(_child, names, spec), kind, array)
    for layer in (*encoder.layer, *decoder.layer):
        layer.self_attention.queries_scale = head_dim**-0.5
    for layer in decoder.layer:
        layer.attention.queries_scale = head_dim**-0.5
    decoder.projection.weight = decoder.embeddings.weight
    if model.projection is not None:
        decoder.projection.weight = to_numpy(model.projection.kernel).T
    if model.output_bias is not None:
        decoder.projection.bias = to_numpy(model.output_bias)
    return spec


def _positions(layer: Any, config: TransformerConfig) -> Array:
    """Returns the positions of a sentence's tokens, float32 [P, D]."""
    positions = np.arange(_NUM_POSITIONS) + config.first_position
    if layer.table is not None:
        return to_numpy(layer.table)[np.minimum(positions, config.max_positions - 1)]
    return to_numpy(sinusoids(positions, config.model_dim, config.positions))


def _child(spec: Any, name: str) -> Any:
    """Returns a part of a specification; "layer_0" is the first of `layer`."""
    if hasattr(spec, name):
        return getattr(spec, name)
    name, _, number = name.rpartition("_")
    return getattr(spec, name)[int(number)]


# The reader.
#
# model.bin, little-endian: u32 version, name of the model, u32 revision, u32 count; for each array
# its name, u8 rank, u32 sizes, u8 type, u32 bytes and these; u32 count of aliases, for each its
# name and that of the array. Text is u16 length, bytes and a NUL. Weights of int8 or int16 are
# multiplied by a scale, one for each row or one in all.

_DTYPES = {
    0: np.dtype("<f4"), 1: np.dtype("i1"), 2: np.dtype("<i2"), 3: np.dtype("<i4"),
    4: np.dtype("<f2"), 5: np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
# Options that change nothing here, or that `_options` reads.
_IGNORED = (
    "*/alignment_heads", "*/alignment_layer", "*/alibi_use_positive_positions", "*/scale_alibi",
    "*/embeddings_merge", "*/layer_norm_epsilon", "*weight_scale", "*/num_heads_kv", "*/head_dim",
    "*/queries_scale", "*/num_source_embeddings",
)  # fmt: skip


def is_ctranslate2(folder: pathlib.Path) -> bool:
    """Whether a folder holds such a model."""
    return (folder / "model.bin").is_file()


def read_ctranslate2(folder: pathlib.Path, import_options: ImportOptions) -> ForeignModel:
    """Returns the model in a folder, its weights in float32.

    The folder has model.bin (options and weights), config.json (names of the special tokens),
    shared_vocabulary.json, or source_ and target_vocabulary.json, and, if this package wrote it,
    source.model and target.model.
    """
    path = folder / "model.bin"
    content = map_file(path)
    with reading(path, "a CTranslate2 model"):
        tensors = Tensors(_ModelBin(content).arrays(), str(path))
    config = Options(read_json(folder / "config.json"), str(folder / "config.json"))
    starts_from_zero = bool(_option(tensors, "decoder/start_from_zero_embedding", 0))
    options = _options(tensors, config, starts_from_zero)
    source, target = _symbols(folder, config, starts_from_zero)
    target_table = tensors.get("decoder/embeddings/weight", (None, None))
    positions = _read_positions(tensors, target_table.shape[1])
    tensors.ignore(*_IGNORED)
    beside = (folder / "source.model", folder / "target.model")
    spms = import_options.spms or (beside if all(path.is_file() for path in beside) else ())
    return ForeignModel(
        options=options | positions,
        tensors=tensors,
        layout=_LAYOUT,
        source_table=tensors.get("encoder/embeddings_0/weight", (None, None)),
        target_table=target_table,
        projection=tensors.get("decoder/projection/weight", target_table.shape),
        output_bias=tensors.find("decoder/projection/bias", (len(target_table),)),
        source=source,
        target=target,
        spms=spms,
        search={  # the defaults of `Translator.translate_batch`
            "length_penalty": 1.0,
            "length_penalty_form": "power",
            "beam_size": 2,
            "early_stop": "first",
            "min_length": 1,
            "max_length": 256,
            "max_extra_length": 256,  # of any source
            "max_source_length": 1024 - options["source_eos"],
        },
    )


class _ModelBin:
    """Reads the entries of model.bin one after the other."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._place = 0

    def arrays(self) -> dict[str, Array]:
        """Returns the arrays by name; integers that have scales are divided by them."""
        version, name = self._number("<I"), self._text()
        if version != 6 or name != "TransformerSpec":
            raise ValueError(f"it is {name[:40]!r} of version {version}, not TransformerSpec 6")
        self._number("<I")  # revision
        stored = dict(self._entry() for _ in range(self._number("<I")))
        arrays = {
            name: _dequantize(array, stored.get(f"{name}_scale")) for name, array in stored.items()
        }
        for _ in range(self._number("<I")):
            alias, name = self._text(), self._text()
            if name not in arrays:
                raise ValueError(f"{alias[:40]!r} is an alias of nothing")
            arrays[alias] = arrays[name]
        return arrays

    def _entry(self) -> tuple[str, Array]:
        name, rank = self._text(), self._number("<B")
        shape = [self._number("<I") for _ in range(rank)]
        kind, size = self._number("<B"), self._number("<I")
        if kind not in _DTYPES:
            raise ValueError(f"{name[:40]!r} has the unknown type {kind}")
        return name, np.frombuffer(self._bytes(size), _DTYPES[kind]).reshape(shape)

    def _bytes(self, size: int) -> memoryview:
        start, self._place = self._place, self._place + size
        if self._place > len(self._content):
            raise ValueError("it is cut short")
        return self._content[start : self._place]

    def _number(self, form: str) -> int:
        (value,) = struct.unpack(form, self._bytes(struct.calcsize(form)))
        return int(value)

    def _text(self) -> str:
        return bytes(self._bytes(self._number("<H"))).rstrip(b"\0").decode()


def _dequantize(array: Array, scale: Array | None) -> Array:
    if scale is None:
        return array
    if scale.shape not in ((), array.shape[:1]) or not np.all(scale):
        raise InputError("a scale of the model does not fit its weights; convert it again")
    return array.astype(np.float32) / (scale[:, None] if scale.ndim else scale)


def _option(tensors: Tensors, name: str, default: float) -> float:
    return float(tensors.get(name, (1,))[0]) if name in tensors else default


def _embedding_scale(tensors: Tensors, name: str, model_dim: int) -> float:
    """Returns the factor of embeddings: an integer is a flag, another number the factor itself."""
    value = _option(tensors, name, 1)
    if name in tensors and not tensors.is_integer(name):
        return value
    return math.sqrt(model_dim) if value else 1.0


def _options(tensors: Tensors, config: Options, starts_from_zero: bool) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` lists all that cannot be imported."""
    sides = ("encoder", "decoder")
    model_dim = tensors.get("decoder/embeddings/weight", (None, None)).shape[1]
    both = {
        name: [_option(tensors, f"{side}/{name}", default) for side in sides]
        for name, default in {"num_heads": 0, "pre_norm": 1, "activation": 0}.items()
    }
    both["scale_embeddings"] = [
        _embedding_scale(tensors, f"{side}/scale_embeddings", model_dim) for side in sides
    ]
    num_heads, pre_norm, activation, scale = (values[0] for values in both.values())
    activations = {number: name for name, number in _ACTIVATIONS.items()}
    is_close = functools.partial(math.isclose, rel_tol=1e-4)
    query_scale = math.sqrt(max(num_heads, 1) / model_dim)
    query_scales = [_option(tensors, name, 0) for name in tensors if name.endswith("queries_scale")]
    reject(
        {f"{name} {one:g} and {other:g}": one != other for name, (one, other) in both.items()}
        | {
            f"activation {activation:g}": activation not in activations,
            f"scale_embeddings {scale:g}": not (
                is_close(scale, 1) or is_close(scale, math.sqrt(model_dim))
            ),
            "queries_scale of another head_dim": not all(
                is_close(scale, query_scale) for scale in query_scales
            ),
            "multi_query_attention": _option(tensors, "encoder/multi_query_attention", 0),
            "alibi": _option(tensors, "decoder/alibi", 0),
            "add_source_bos": config.is_set("add_source_bos"),
            "no decoder_start_token": not starts_from_zero
            and config.values.get("decoder_start_token", "<s>") is None,
            "relative or rotary positions": any(
                "relative" in name or "rotary" in name for name in tensors
            ),
        }
    )
    return {
        "num_layers": tensors.count("encoder/layer_{}/ffn/linear_0/weight"),
        "decoder_layers": tensors.count("decoder/layer_{}/ffn/linear_0/weight"),
        "num_heads": int(num_heads),
        "activation": activations[int(activation)],
        "norm_position": "pre" if pre_norm else "post",
        "norm_epsilon": config.get("layer_norm_epsilon", float, 1e-5) or 1e-5,
        "embedding_norm": "encoder/layernorm_embedding/gamma" in tensors,
        "scale_embeddings": not is_close(scale, 1),
        "source_eos": config.is_set("add_source_eos") or starts_from_zero,
    }


def _read_positions(tensors: Tensors, model_dim: int) -> dict[str, Any]:
    """Returns fields of `TransformerConfig`; `InputError` if the positions are learned."""
    names = [f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")]
    if not all(name in tensors for name in names):
        return {"positions": "concatenated", "first_position": 1}
    source, target = (tensors.get(name, (None, model_dim)) for name in names)
    found = [
        {"positions": kind, "first_position": first}
        for kind, first in itertools.product(("sinusoidal", "concatenated", "halves"), range(3))
        if np.allclose(
            source, to_numpy(sinusoids(np.arange(len(source)) + first, model_dim, kind)), atol=2e-3
        )
    ]
    reject({"learned positions": not found or not np.array_equal(source, target)})
    return found[0]


def _symbols(
    folder: pathlib.Path, config: Options, starts_from_zero: bool
) -> tuple[Symbols, Symbols]:
    names = {"unk": config.get("unk_token", str, "<unk>")}
    names["eos"] = config.get("eos_token", str, "</s>")
    start = config.get("decoder_start_token", str, "<s>")

    def read(side: str) -> Symbols | None:
        path = folder / f"{side}_vocabulary.json"
        if not path.is_file():
            return None
        tokens = list(map(str, read_json(path, list)))
        # This package wrote a vocabulary that begins so.
        is_ours = tokens[1:4] == [names["unk"], start, names["eos"]]
        if is_ours and tokens[0].strip("<>") == "pad":
            return Symbols.find(tokens, str(folder), **names, pad=tokens[0], start=start)
        if side == "source" or starts_from_zero:
            return Symbols.find(tokens, str(folder), **names)
        return Symbols.find(tokens, str(folder), **names, start=start)

    if shared := read("shared"):
        return shared, shared
    source, target = read("source"), read("target")
    if source is None or target is None:
        raise InputError(f"{folder} lacks a vocabulary of source or target; give the whole model")
    return source, target
