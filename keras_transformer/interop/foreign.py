"""What a format's reader gives, a `ForeignModel`, and the tools that read the format's files.

A reader tells three things: the fields of `TransformerConfig`, the tensors with a `Layout` of their
names, and the `Symbols` of both sides. `ForeignModel.to_model` builds the `Transformer` from them:
it permutes embeddings into this package's token order, transposes and joins matrices, and checks
that every tensor of the file is used.

In other toolkits a model has its own ids, beside a SentencePiece model with different ids, or
beside none at all. `make_vocabularies` rewrites the SentencePiece model so that its ids are those
of the model: the graph needs no table, and the rows of matrices are put into that order.

Shapes: V tokens of a vocabulary, D model dimension, F inner dimension of the feed-forward layers.
"""

import dataclasses
import fnmatch
import functools
import io
import itertools
import json
import mmap
import pathlib
import reprlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from safetensors import SafetensorError, safe_open
from sentencepiece import SentencePieceProcessor

from keras_transformer.config import BOS_ID, WORD_START, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer
from keras_transformer.text import Vocabulary
from keras_transformer.text.vocabulary import (
    CONTROL,
    NORMAL,
    RESERVED_IDS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    model_message,
)

Array = npt.NDArray[Any]
_T = TypeVar("_T")

# Output bias of a token that no translation may contain: its probability is 0 in float32.
_IMPOSSIBLE = -100.0
_MAX_LAYERS = 1_000
# What reading a damaged binary file raises; zipfile also knows unknown versions and encryption.
DAMAGED = (
    ValueError, EOFError, struct.error, zlib.error, zipfile.BadZipFile, NotImplementedError,
    RuntimeError,
)  # fmt: skip
_SAFETENSORS_FLOATS = ("F64", "F32", "F16", "BF16")

# Sums of scores that are multiples of it are exact in float32 up to 2**24 / 8192 = 2,048, which is
# a text of 150 tokens or more: SentencePiece and its copy in TensorFlow Text then choose the same
# of two segmentations that are almost equal. A coarser grid moves the scores so far that another
# segmentation wins. Of 112,743 lines of captions, news and law, 4 differ from MarianTokenizer with
# 1/1024 and one with this grid; with unrounded scores Python and the graph differ in three.
_SCORE_STEP = 1 / 8192
_SINGLE_CHARACTER = -10.0  # added to the lowest score for a character that SentencePiece lacks
_NEVER = -1e6  # added to the lowest score for tokens that are never to be chosen
_WORDS = 3  # model_type of SentencePiece
_SPECIAL = ("<s>", "</s>", "<pad>", "<blank>", "<unk>")  # never words of a text


class Given(NamedTuple):
    """What the user tells about a model besides its path.

    Attributes:
        vocabularies: of source and target, where they are not beside the model; else empty.
        spms: SentencePiece models of source and target; else empty.
        num_heads: attention heads, where the files do not tell.
        positions: "as_stored", the encoding that the folder's own software computes, or "marian",
            the one that Marian trains with, from which other software differs a little.
    """

    vocabularies: tuple[pathlib.Path, ...] = ()
    spms: tuple[pathlib.Path, ...] = ()
    num_heads: int | None = None
    positions: str = "as_stored"


@dataclasses.dataclass(frozen=True)
class Symbols:
    """The tokens of one side in the toolkit's order.

    Attributes:
        tokens: by id.
        unk, eos: ids of the unknown token and of the one that ends a sentence.
        pad: id of padding, None if there is none.
        start: id of the token that the decoder starts with, None if it starts with a zero vector.
    """

    tokens: Sequence[str]
    unk: int
    eos: int
    pad: int | None = None
    start: int | None = None

    def __post_init__(self) -> None:
        for name in ("unk", "eos", "pad", "start"):
            id_ = getattr(self, name)
            if id_ is not None and not 0 <= id_ < len(self.tokens):
                raise InputError(f"the id of {name} is {id_}, of {len(self.tokens):,} tokens")

    @classmethod
    def find(cls, tokens: Sequence[str], where: str, **names: str) -> "Symbols":
        """Returns symbols whose special ids are found by name, such as `eos="</s>"`.

        Raises:
            InputError: one is missing, or a token occurs twice.
        """
        ids = {token: id_ for id_, token in enumerate(tokens)}
        if missing := [name for name in names.values() if name not in ids]:
            raise InputError(f"{where} lacks {', '.join(missing)}; give the model's own vocabulary")
        if len(ids) < len(tokens):
            twice = next(token for id_, token in enumerate(tokens) if ids[token] != id_)
            raise InputError(f"{where} has {twice!r} twice; give the model's own vocabulary")
        return cls(tokens, **{key: ids[name] for key, name in names.items()})

    @property
    def is_ours(self) -> bool:
        """Whether the reserved ids are those of this package, which then wrote the model."""
        return (self.pad, self.unk, self.start, self.eos) == RESERVED_IDS

    @property
    def order(self) -> list[int | None]:
        """The toolkit's id of each of our ids; None for PAD or BOS if the toolkit has none.

        PAD, UNK, BOS and EOS come first, then all others in their order. The start token may also
        be generated: it keeps its place, and BOS is a copy, unless the model `is_ours`.
        """
        return [self.pad, self.unk, self.start, self.eos, *self._other_ids]

    @property
    def others(self) -> list[str]:
        """The tokens after the reserved ones, in our order."""
        return [self.tokens[id_] for id_ in self._other_ids]

    @property
    def _other_ids(self) -> list[int]:
        reserved = {self.pad, self.unk, self.eos, self.start if self.is_ours else None}
        return [id_ for id_ in range(len(self.tokens)) if id_ not in reserved]


class Tensors:
    """The tensors of a file by name, which records those that were read.

    Args:
        arrays: the tensors, or functions that read them.
        where: names the file in errors.
    """

    def __init__(self, arrays: Mapping[str, Array | Callable[[], Array]], where: str) -> None:
        self._arrays = arrays
        self._used: set[str] = set()
        self.where = where

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def get(self, name: str, shape: tuple[int | None, ...] | None = None) -> Array:
        """Returns a tensor in float32.

        Args:
            name: of the tensor.
            shape: the expected one, None for any size; additional axes of length 1 are removed.

        Raises:
            InputError: it is missing, has another shape, or an entry that is not finite.
        """
        if name not in self._arrays:
            raise InputError(
                f"{self.where} lacks the tensor {name}; give the whole model, after training"
            )
        self._used.add(name)
        array = _as_stored(self._arrays[name]).astype(np.float32, copy=False)
        if shape is not None:
            if array.ndim != len(shape):
                array = array.reshape([size for size in array.shape if size != 1] or [1])
            if array.ndim != len(shape) or any(
                size not in (None, found) for size, found in zip(shape, array.shape, strict=True)
            ):
                expected = " x ".join("any" if size is None else str(size) for size in shape)
                raise InputError(
                    f"tensor {name} of {self.where} is {' x '.join(map(str, array.shape))} instead "
                    f"of {expected}; the file and its configuration do not belong together"
                )
        if not np.isfinite(array).all():
            raise InputError(
                f"tensor {name} of {self.where} is not finite; take an earlier checkpoint"
            )
        return array

    def is_integer(self, name: str) -> bool:
        """Returns whether a tensor is stored as integers."""
        return _as_stored(self._arrays[name]).dtype.kind in "iu"

    def split(self, name: str, parts: Sequence[str]) -> None:
        """Replaces a tensor by the equal parts of its first axis, under their names."""

        def read(index: int) -> Array:
            return np.array_split(_as_stored(whole), len(parts))[index]

        whole = self._arrays[name]
        others = {each: array for each, array in self._arrays.items() if each != name}
        self._arrays = others | {
            part: functools.partial(read, index) for index, part in enumerate(parts)
        }

    def find(self, name: str, shape: tuple[int | None, ...]) -> Array | None:
        """Returns a tensor as `get` does, or None if the file has none of this name."""
        return self.get(name, shape) if name in self else None

    def count(self, template: str) -> int:
        """Returns how many tensors have consecutive numbers, from 0, at the {} of a template."""
        return next(n for n in itertools.count() if template.format(n) not in self._arrays)

    def ignore(self, *patterns: str) -> None:
        """Marks the tensors whose names match as used, without reading them."""
        for pattern in patterns:
            self._used.update(fnmatch.filter(self._arrays, pattern))

    def check_all_used(self) -> None:
        """Raises `InputError` if a tensor was never read: the model computes something else."""
        if left := sorted(set(self._arrays) - self._used):
            more = f" and {len(left) - 3} others" if len(left) > 3 else ""
            raise InputError(
                f"{self.where} has tensors that this package does not support: "
                f"{', '.join(left[:3])}{more}; such a model cannot be imported"
            )


def _as_stored(tensor: Array | Callable[[], Array]) -> Array:
    """Returns a tensor, or what a function reads, in its own type."""
    return np.asarray(tensor() if callable(tensor) else tensor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """What a format calls its tensors.

    Attributes:
        names: templates by part, such as "self.query", or "decoder.self.norm" where encoder and
            decoder differ; with {side}, {i} and {n} for the layer counted from 0 and from 1, and
            {kind}. "self.fused" is query, key and value in one matrix, "cross.fused" key and value.
        kernel, bias: {kind} of the matrix and the bias of a linear layer.
        gain, offset: {kind} of the scale and the bias of a layer normalization.
        transposed: whether matrices are [out, in].
    """

    names: Mapping[str, str]
    kernel: str = "weight"
    bias: str = "bias"
    gain: str = "weight"
    offset: str = "bias"
    transposed: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignModel:
    """A model as its files describe it.

    Attributes:
        options: fields of `TransformerConfig`, without the sizes that the tensors tell.
        tensors, layout: the weights of the layers. Those below are read already.
        source_table, target_table: embeddings [V, D], in the order of `source` and `target`.
        projection: [V, D]. Equal tables become one shared table.
        output_bias: [V], None if there is none.
        position_tables: [P, D] of learned positions, from the first token's on: none, one, or one
            for encoder and decoder each.
        source, target: the symbols.
        vocabularies: of source and target; their ids are in the order of `Symbols.order`.
        search: fields of `SearchConfig`: how the toolkit itself searches.
        layer_numbers: for each decoder layer the number, from 1, of the layer whose weights it
            has; empty if each has its own.
        notes: lines for the user.
    """

    options: Mapping[str, Any]
    tensors: Tensors
    layout: Layout
    source_table: Array
    target_table: Array
    projection: Array
    source: Symbols
    target: Symbols
    vocabularies: tuple[Vocabulary, Vocabulary]
    output_bias: Array | None = None
    position_tables: Sequence[Array] = ()
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layer_numbers: Sequence[int] = ()
    notes: Sequence[str] = ()

    @functools.cached_property
    def config(self) -> TransformerConfig:
        """The hyperparameters of the `Transformer`; `InputError` if they do not fit together."""
        sizes: dict[str, Any] = {"vocabulary_size": len(self.source.order)}
        share = "none"
        if np.array_equal(self.projection, self.target_table):
            share = "target"
            if self.source == self.target and np.array_equal(self.source_table, self.target_table):
                share = "all"
        if share != "all":
            sizes["target_vocabulary_size"] = len(self.target.order)
        if self.position_tables:
            rows = [len(table) for table in self.position_tables]
            sizes |= {"positions": "learned", "max_positions": max(rows)}
            sizes["share_positions"] = len(rows) == 1
        values = {**self.options, **sizes, "share_embeddings": share, "output_bias": True}
        for name in ("num_layers", "decoder_layers"):
            if type(values[name]) is not int or not 1 <= values[name] <= _MAX_LAYERS:
                raise InputError(f"{name} is {values[name]!r} in the model's configuration")
        numbers = self.layer_numbers
        if numbers and (len(numbers) != values["decoder_layers"] or min(numbers) < 1):
            raise InputError(
                f"of {values['decoder_layers']} decoder layers {len(numbers)} have a number, "
                f"{list(numbers)}"
            )
        layers = [("encoder", index) for index in range(values["num_layers"])]
        layers += [("decoder", index) for index in range(values["decoder_layers"])]
        query = "self.fused" if "self.fused" in self.layout.names else "self.query"
        return TransformerConfig(
            **values,
            model_dim=self.target_table.shape[1],
            feed_forward_dim=max(self._inner_dim(*layer) for layer in layers),
            attention_bias=any(
                self._name(part, *layer, self.layout.bias) in self.tensors
                for part in ("self.out", query)
                for layer in layers
            ),
        )

    def to_model(self) -> Transformer:
        """Returns the model, in float32; errors as in `config` and `fill`."""
        model = Transformer(self.config, dtype="float32")
        self.fill(model)
        return model

    def fill(self, model: Any) -> None:
        """Sets the weights of a `Transformer` of this configuration.

        Raises:
            InputError: a tensor is missing, has another shape, or is left over.
        """
        self._fill_tables(model)
        for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            for index, layer in enumerate(stack.layers):
                self._fill_layer(layer, side, index)
            if stack.final_norm is not None:
                self._fill_norm(stack.final_norm, "final.norm", side, 0)
        if model.config.embedding_norm:
            self._fill_norm(model.source_norm, "embedding.norm", "encoder", 0)
            self._fill_norm(model.target_norm, "embedding.norm", "decoder", 0)
        self.tensors.check_all_used()

    def _fill_tables(self, model: Any) -> None:
        model.source_embedding.table.assign(_our_rows(self.source_table, self.source))
        if model.target_embedding is not model.source_embedding:
            model.target_embedding.table.assign(_our_rows(self.target_table, self.target))
        if model.projection is not None:
            model.projection.kernel.assign(_our_rows(self.projection, self.target).T)
        bias = self.output_bias
        bias = np.zeros(len(self.target.tokens)) if bias is None else bias
        bias = _our_rows(bias, self.target, _IMPOSSIBLE)
        if not self.target.is_ours:
            bias[BOS_ID] = _IMPOSSIBLE  # a copy; the original keeps its own bias
        model.output_bias.assign(bias)
        # Positions beyond the end of the shorter table share its last row.
        for layer, table in zip(
            (model.positions, model.target_positions), self.position_tables, strict=False
        ):
            missing = model.config.max_positions - len(table)
            layer.table.assign(np.pad(table, [(0, missing), (0, 0)], mode="edge"))

    def _fill_layer(self, layer: Any, side: str, index: int) -> None:
        dense = functools.partial(self._fill_dense, side=side, index=index)
        norm = functools.partial(self._fill_norm, side=side, index=index)
        attention = layer.self_attention
        dense(attention.projection, "self.query", "self.key", "self.value")
        dense(attention.output_projection, "self.out")
        norm(layer.self_attention_residual.norm, "self.norm")
        if side == "decoder":
            attention = layer.cross_attention
            dense(attention.query_projection, "cross.query")
            dense(attention.memory_projection, "cross.key", "cross.value")
            dense(attention.output_projection, "cross.out")
            norm(layer.cross_attention_residual.norm, "cross.norm")
        norm(layer.feed_forward_residual.norm, "ffn.norm")
        inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
        # If one side's layers are narrower, zeros fill up: every activation maps 0 to 0.
        dim, missing = inner.kernel.shape[0], inner.kernel.shape[1] - self._inner_dim(side, index)
        kernel, bias = self._linear("ffn.inner", side, index, (dim, None))  # [D, F], [F]
        inner.kernel.assign(np.pad(kernel, [(0, 0), (0, missing)]))
        inner.bias.assign(np.pad(bias, [(0, missing)]))
        kernel, bias = self._linear("ffn.outer", side, index, (None, dim))  # [F, D], [D]
        outer.kernel.assign(np.pad(kernel, [(0, missing), (0, 0)]))
        outer.bias.assign(bias)

    def _fill_dense(self, dense: Any, *parts: str, side: str, index: int) -> None:
        """Sets a linear layer to several of the toolkit's, joined along the output."""
        fused = f"{parts[0].partition('.')[0]}.fused"
        if len(parts) > 1 and fused in self.layout.names:
            parts = (fused,)
        rows, columns = dense.kernel.shape
        shape = (rows, columns // len(parts))
        pairs = [self._linear(part, side, index, shape) for part in parts]
        dense.kernel.assign(np.concatenate([kernel for kernel, _ in pairs], axis=1))
        if dense.use_bias:
            dense.bias.assign(np.concatenate([bias for _, bias in pairs]))

    def _fill_norm(self, norm: Any, part: str, side: str, index: int) -> None:
        shape = tuple(norm.gain.shape)
        norm.gain.assign(self.tensors.get(self._name(part, side, index, self.layout.gain), shape))
        norm.bias.assign(self.tensors.get(self._name(part, side, index, self.layout.offset), shape))

    def _linear(
        self, part: str, side: str, index: int, shape: tuple[int | None, int | None]
    ) -> tuple[Array, Array]:
        """Returns a matrix [in, out] and its bias [out], zeros if there is none."""
        name = self._name(part, side, index, self.layout.kernel)
        kernel = self.tensors.get(name, shape[::-1] if self.layout.transposed else shape)
        kernel = kernel.T if self.layout.transposed else kernel
        name = self._name(part, side, index, self.layout.bias)
        bias = self.tensors.find(name, (kernel.shape[1],))
        return kernel, np.zeros(kernel.shape[1], np.float32) if bias is None else bias

    def _inner_dim(self, side: str, index: int) -> int:
        name = self._name("ffn.inner", side, index, self.layout.kernel)
        shape = self.tensors.get(name, (None, None)).shape
        return int(shape[0] if self.layout.transposed else shape[1])

    def _name(self, part: str, side: str, index: int, kind: str) -> str:
        """Returns the name of a tensor in the file."""
        if side == "decoder" and self.layer_numbers:
            index = self.layer_numbers[index] - 1
        template = self.layout.names.get(f"{side}.{part}") or self.layout.names[part]
        return template.format(side=side, i=index, n=index + 1, kind=kind)


class Options:
    """The options of a model by name, each of the expected type.

    Args:
        values: the options.
        where: names the file in errors.
        format_name: the format that the file should have.
    """

    def __init__(self, values: Mapping[str, Any], where: str, format_name: str) -> None:
        self._values = values
        self._where = where
        self._format_name = format_name

    def is_set(self, name: str) -> bool:
        """Whether an option is there and neither None, 0, False nor empty."""
        return bool(self._values.get(name))

    def get(self, name: str, kind: type[_T], default: _T) -> _T:
        """Returns an option, the default if it is missing or None.

        Raises:
            InputError: its type is not `kind`, or it is a whole number of ten digits or more. A
                whole number is also a float and a bool.
        """
        value = self._values.get(name)
        if value is None:
            return default
        widened: dict[Any, Any] = {float: (float, int), bool: (bool, int)}
        kinds = widened.get(kind, kind)
        is_kind = isinstance(value, kinds) and not (type(value) is bool and kind in (int, float))
        if not is_kind or (type(value) is int and abs(value) >= 10**9):
            # A damaged file may hold containers whose full text has no end.
            shown = type(value).__name__ if type(value) is int else reprlib.repr(value)[:200]
            raise InputError(
                f"option {name} {shown} of {self._where} has an unexpected value for "
                f"{self._format_name}; give the model as its toolkit wrote it"
            )
        return cast(_T, value if kind is object else kind(value))  # type: ignore[call-arg]


def reject(problems: Mapping[str, Any]) -> None:
    """Raises `InputError` that lists all options whose value is true: the model cannot be read."""
    if names := [name for name, is_there in problems.items() if is_there]:
        raise InputError(
            f"the model has {', '.join(names)}, which this package does not support; translate "
            "with the model's own toolkit, or train a model here on its translations"
        )


def dropout_rate(value: Any) -> float:
    """Returns a dropout rate of a configuration, the usual 0.1 if it is not one."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else 0.1


def map_file(path: pathlib.Path) -> memoryview:
    """Returns a file's bytes, mapped into memory.

    Raises:
        InputError: it cannot be read, is empty, or is the pointer of a Git LFS file.
    """
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; give the folder of a whole model") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path} ({error}); download it again") from error
    if bytes(content[:40]).startswith(b"version https://git-lfs"):
        raise InputError(f"{path} is the pointer of a Git LFS file; run git lfs pull")
    return content


def read_text(path: pathlib.Path) -> str:
    """Returns a file's text; `InputError` if it cannot be read or is not UTF-8."""
    try:
        return bytes(map_file(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text; download it again") from error


def read_json(path: pathlib.Path, kind: type = dict) -> Any:
    """Returns the object, or the list, in a JSON file; `InputError` if it holds something else."""
    text = read_text(path)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON, or damaged ({error}); download it again") from error
    if not isinstance(values, kind):
        name = "object" if kind is dict else kind.__name__
        raise InputError(f"{path} does not hold a JSON {name}; download it again")
    return values


def open_zip(content: memoryview) -> zipfile.ZipFile:
    """Returns a zip archive.

    Raises:
        ValueError: all members together unpack to much more than weights would; or another error
            of `DAMAGED`.
    """
    archive = zipfile.ZipFile(io.BytesIO(content))
    for member in archive.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename[:100]!r} is compressed in an unknown way")
    size = sum(member.file_size for member in archive.infolist())
    if size > 10 * len(content):
        raise ValueError(f"it would unpack to {size:,} bytes, from {len(content):,}")
    return archive


def read_safetensors(path: pathlib.Path) -> Tensors:
    """Returns the tensors of a safetensors file; each is read when it is used.

    Raises:
        InputError: the file is missing, cut short, or not of this format; or, when a tensor is
            used, it holds whole numbers.
    """
    map_file(path)
    try:
        file: Any = safe_open(path, framework="numpy")
        types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is not a safetensors file, or a damaged one ({error}); download it again"
        ) from error

    def read(name: str) -> Array:
        if types[name] not in _SAFETENSORS_FLOATS:
            raise InputError(
                f"tensor {name} of {path} is of type {types[name]}; give a model that is not "
                "quantized"
            )
        array: Array = file.get_tensor(name)
        return array

    return Tensors({name: functools.partial(read, name) for name in types}, str(path))


def ids_to_tokens(ids: Mapping[str, Any], where: str) -> list[str]:
    """Returns the tokens of a mapping from tokens to ids, in the order of their ids.

    Raises:
        InputError: the ids are not 0, 1, 2 and so on.
    """
    numbers = [value for value in ids.values() if type(value) is int]
    if sorted(numbers) != list(range(len(ids))):
        raise InputError(
            f"the ids in {where} are not the numbers from 0 to {len(ids) - 1}, each once; "
            "give the model's own vocabulary"
        )
    return sorted(ids, key=ids.__getitem__)


def sentencepiece_vocabulary(
    path: pathlib.Path, symbols: Symbols, side: Literal["source", "target"]
) -> Vocabulary:
    """Returns the vocabulary whose ids are `symbols.order` and which cuts text as `path` does.

    A token that the SentencePiece model lacks can only be generated, unless it is a single
    character or, as `>>deu<<` in front of a source, a code of a language. A piece that is no token
    still takes part when text is cut, and is the unknown token.

    Args:
        path: the SentencePiece model.
        symbols: the model's tokens.
        side: of the model.
    """
    model = read_spm(path)
    by_name = {piece.piece: piece for piece in model.pieces}
    lowest = min((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)
    pieces = _reserved_pieces(symbols)
    for token in symbols.others:
        if token in by_name:
            piece = by_name.pop(token)
            kind = CONTROL if piece.type == UNKNOWN else piece.type
            pieces.append((token, _rounded(piece.score), kind))
        elif side == "source" and token.startswith(">>") and token.endswith("<<"):
            pieces.append((WORD_START + token, 0.0, USER_DEFINED))
        elif len(token) == 1:
            pieces.append((token, _rounded(lowest + _SINGLE_CHARACTER), NORMAL))
        elif side == "source":
            pieces.append((token, 0.0, CONTROL))
        else:
            pieces.append((token, _rounded(lowest + _NEVER), UNUSED))
    num_tokens = len(pieces)
    taken = {name for name, _, _ in pieces}
    pieces += [
        (name, _rounded(piece.score), piece.type)
        for name, piece in by_name.items()
        if piece.type not in (UNKNOWN, CONTROL, UNUSED) and name not in taken
    ]
    return _vocabulary(model, pieces, num_tokens)


def check_vocabulary_sizes(
    config: TransformerConfig, source: Vocabulary, target: Vocabulary
) -> None:
    """Raises `InputError` if a vocabulary is not of the size that a model has."""
    sizes = (config.vocabulary_size, config.target_size)
    for side, size, vocabulary in zip(("source", "target"), sizes, (source, target), strict=True):
        if vocabulary.size != size:
            raise InputError(
                f"the model has {size} {side} tokens and the {side} vocabulary {vocabulary.size}; "
                "give the vocabularies that it was trained with"
            )


def make_vocabularies(
    sides: tuple[Symbols, Symbols], spms: Sequence[pathlib.Path], where: str
) -> tuple[Vocabulary, Vocabulary]:
    """Returns the vocabularies of source and target.

    Args:
        sides: the symbols of both.
        spms: their SentencePiece models; empty where text is tokens separated by spaces.
        where: names the model in errors.
    """
    if not spms:
        return word_vocabulary(sides[0], where), word_vocabulary(sides[1], where)
    source, target = spms
    return (
        sentencepiece_vocabulary(source, sides[0], "source"),
        sentencepiece_vocabulary(target, sides[1], "target"),
    )


def word_vocabulary(symbols: Symbols, where: str) -> Vocabulary:
    """Returns a vocabulary for text that is tokens separated by spaces.

    Args:
        symbols: the model's tokens.
        where: names their file in errors.

    Raises:
        InputError: the tokens are pieces of a SentencePiece model, which is not given.
    """
    if any(token.startswith("Ġ") for token in symbols.others):  # a space of GPT-2's
        raise InputError(
            f"the tokens of {where} are pairs of bytes, which this package does not support; "
            "translate with the model's own toolkit"
        )
    if any(token.startswith(WORD_START) for token in symbols.others):
        raise InputError(
            f"the tokens of {where} are pieces of a SentencePiece model, and there is none beside "
            "it; name it with --source_spm and --target_spm"
        )
    pieces = [
        (token, 0.0, CONTROL) if token in _SPECIAL else (WORD_START + token, 0.0, NORMAL)
        for token in symbols.others
    ]
    model = model_message()()
    model.trainer_spec.model_type = _WORDS
    model.cuts_words_apart = True
    model.trainer_spec.unk_surface = " ⁇"
    model.normalizer_spec.name = "identity"
    reserved = _reserved_pieces(symbols)
    return _vocabulary(model, reserved + pieces, len(reserved) + len(pieces))


def read_spm(path: pathlib.Path) -> Any:
    """Returns a SentencePiece model; `InputError` where the file is none."""
    content = bytes(map_file(path))
    damaged = InputError(
        f"{path} is not a SentencePiece model, or a damaged one; download it again"
    )
    try:
        model = model_message().FromString(content)
        SentencePieceProcessor(model_proto=content)
    except (DecodeError, RuntimeError) as error:
        raise damaged from error
    if not model.pieces or any(type(piece.piece) is not str for piece in model.pieces):
        raise damaged  # a piece of bytes is not UTF-8
    return model


def _reserved_pieces(symbols: Symbols) -> list[tuple[str, float, int]]:
    """Returns the pieces of the ids 0 to 3, under names that no token has."""
    taken = set(symbols.others)

    def free(name: str) -> str:
        while name in taken:
            name = f"<{name}>"
        return name

    pad, unk, bos, eos = map(free, ("<pad>", "<unk>", "<s>", "</s>"))
    return [(pad, 0.0, CONTROL), (unk, 0.0, UNKNOWN), (bos, 0.0, CONTROL), (eos, 0.0, CONTROL)]


def _rounded(score: float) -> float:
    return round(score / _SCORE_STEP) * _SCORE_STEP


def _vocabulary(
    model: Any, pieces: Sequence[tuple[str, float, int]], num_tokens: int
) -> Vocabulary:
    del model.pieces[:]
    for name, score, kind in pieces:
        model.pieces.add(piece=name, score=score, type=kind)
    spec = model.trainer_spec
    names = [name for name, _, _ in pieces[: len(RESERVED_IDS)]]
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = RESERVED_IDS
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = names
    spec.vocab_size = num_tokens
    model.num_tokens = num_tokens
    model.ClearField("self_test_data")
    return Vocabulary(model.SerializeToString())


def _our_rows(table: Array, symbols: Symbols, missing: float = 0.0) -> Array:
    """Returns the rows of a matrix or bias in our order, with a constant where there is none.

    Raises:
        InputError: the numbers of rows and symbols differ.
    """
    if len(table) != len(symbols.tokens):
        raise InputError(
            f"the model has {len(table):,} tokens and its vocabulary {len(symbols.tokens):,}; give "
            "the vocabulary that it was trained with"
        )
    order = symbols.order
    rows = table[[0 if id_ is None else id_ for id_ in order]].astype(np.float32)
    rows[[id_ is None for id_ in order]] = missing
    return rows
