"""A model of another toolkit as its reader describes it, and as a `Transformer`.

A reader tells three things: the fields of `TransformerConfig`, the tensors with a `Layout` of their
names, and the `Symbols` of both sides. `ForeignModel.to_model` builds the `Transformer` from them:
it permutes embeddings into this package's token order, transposes and joins matrices, and checks
that every tensor of the file is used. Exports write the layers with the same `Layout`: `weights_of`
is the way in both directions.

Shapes: V tokens of a vocabulary, D model dimension, F inner dimension of the feed-forward layers.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.config import BOS_ID, TransformerConfig
from keras_transformer.errors import InputError, writing
from keras_transformer.files import atomic_folder, local_path
from keras_transformer.inference.model_functions import check_sizes
from keras_transformer.interop.reading import Array, Tensors, reject
from keras_transformer.interop.vocabularies import Symbols, make_vocabularies
from keras_transformer.models import Transformer
from keras_transformer.text import Vocabulary

# Output bias of a row that is no token: its probability is 0 in float32. Finite, so that the model
# can be trained further with label smoothing.
UNUSED_BIAS = -100.0
_MAX_LAYERS = 1_000


class ImportOptions(NamedTuple):
    """Facts about a model that its files do not state.

    Attributes:
        vocabularies: of source and target, where they are not beside the model; else empty.
        spms: SentencePiece models of source and target; else empty.
        num_heads: attention heads, where the files do not tell.
    """

    vocabularies: tuple[pathlib.Path, ...] = ()
    spms: tuple[pathlib.Path, ...] = ()
    num_heads: int | None = None


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

    def name(self, part: str, side: str, index: int, kind: str) -> str:
        """Returns the name of a tensor in the file."""
        template = self.names.get(f"{side}.{part}") or self.names[part]
        return template.format(side=side, i=index, n=index + 1, kind=kind)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignModel:
    """A model as its files describe it.

    Attributes:
        options: fields of `TransformerConfig`, without the sizes that the tensors tell.
        tensors, layout: the weights of the layers. Those below are read already.
        source_table, target_table: embeddings [V, D], in the order of `source` and `target`.
        projection: [V, D]. Equal tables become one shared table.
        output_bias: [V], None if there is none.
        source, target: the symbols.
        spms: SentencePiece models of source and target; none for text of tokens between spaces.
        search: fields of `SearchConfig`: how the toolkit itself searches.
        origin: format, name and revision, without folders of this machine.
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
    spms: Sequence[pathlib.Path] = ()
    output_bias: Array | None = None
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Those of source and target; their ids are in the order of `Symbols.order`."""
        return make_vocabularies((self.source, self.target), self.spms, self.tensors.where)

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
        values = {**self.options, **sizes, "share_embeddings": share, "output_bias": True}
        for name in ("num_layers", "decoder_layers"):
            if type(values[name]) is not int or not 1 <= values[name] <= _MAX_LAYERS:
                raise InputError(f"{name} is {values[name]!r} in the model's configuration")
        inner = self.tensors.get(
            self.layout.name("ffn.inner", "encoder", 0, self.layout.kernel), (None, None)
        )
        query = "self.fused" if "self.fused" in self.layout.names else "self.query"
        return TransformerConfig(
            **values,
            model_dim=self.target_table.shape[1],
            feed_forward_dim=inner.shape[0 if self.layout.transposed else 1],
            attention_bias=any(
                self.layout.name(part, "encoder", 0, self.layout.bias) in self.tensors
                for part in ("self.out", query)
            ),
        )

    def to_model(self, dtype: str = "float32") -> Transformer:
        """Returns the model in a dtype policy; errors as in `config` and `fill`."""
        model = Transformer(self.config, dtype=dtype)
        self.fill(model)
        return model

    def fill(self, model: Any) -> None:
        """Sets the weights of a `Transformer` of this configuration.

        Raises:
            InputError: a tensor is missing, has another shape, or is left over.
        """
        self._fill_tables(model)
        for weight in weights_of(model, self.layout):
            *rows, columns = weight.variable.shape
            shape = (*rows, columns // len(weight.names))
            arrays = [self._read(name, shape, weight.is_optional) for name in weight.names]
            weight.variable.assign(np.concatenate(arrays, axis=-1))
        self.tensors.check_all_used()

    def _fill_tables(self, model: Any) -> None:
        model.source_embedding.table.assign(_our_rows(self.source_table, self.source))
        if model.target_embedding is not model.source_embedding:
            model.target_embedding.table.assign(_our_rows(self.target_table, self.target))
        if model.projection is not None:
            model.projection.kernel.assign(_our_rows(self.projection, self.target).T)
        bias = self.output_bias
        bias = np.zeros(len(self.target.tokens)) if bias is None else bias
        bias = _our_rows(bias, self.target, UNUSED_BIAS)
        if not self.target.is_ours:
            bias[BOS_ID] = UNUSED_BIAS  # a copy; the original keeps its own bias
        model.output_bias.assign(bias)

    def _read(self, name: str, shape: tuple[int, ...], is_optional: bool) -> Array:
        """Returns a weight of this shape; a bias that the file lacks is zeros."""
        if is_optional and name not in self.tensors:
            return np.zeros(shape, np.float32)
        is_transposed = self.layout.transposed and len(shape) == 2
        array = self.tensors.get(name, shape[::-1] if is_transposed else shape)
        return array.T if is_transposed else array


class Weight(NamedTuple):
    """A variable of a `Transformer` and the tensors of a format that hold its values.

    Attributes:
        variable: [in, out] or [out].
        names: of the tensors: several that are joined along the last axis, or one.
        model_axes: axes of the variable that are the model dimension.
        is_optional: whether a file may lack it: a bias of zeros.
    """

    variable: Any
    names: tuple[str, ...]
    model_axes: tuple[int, ...]
    is_optional: bool = False


def weights_of(model: Any, layout: Layout) -> Iterator[Weight]:
    """Yields the weights of all `transformer_parts` with their names in a format."""
    for side, index, names, layer in transformer_parts(model):
        fused = f"{names[0].partition('.')[0]}.fused"
        parts = (fused,) if len(names) > 1 and fused in layout.names else names
        gain, offset, kernel, bias = (
            tuple(layout.name(part, side, index, kind) for part in parts)
            for kind in (layout.gain, layout.offset, layout.kernel, layout.bias)
        )
        if names[0].endswith("norm"):
            yield Weight(layer.gain, gain, (0,))
            yield Weight(layer.bias, offset, (0,))
            continue
        writes_model_dim = names[0] in ("self.out", "cross.out", "ffn.outer")
        yield Weight(layer.kernel, kernel, (1,) if writes_model_dim else (0,))
        if layer.use_bias:
            bias_axes = (0,) if writes_model_dim else ()
            yield Weight(layer.bias, bias, bias_axes, is_optional=True)


def transformer_parts(model: Any) -> Iterator[tuple[str, int, tuple[str, ...], Any]]:
    """Yields the linear layers and norms of a `Transformer`, but for the output projection.

    Each comes with its side, the number of its layer (0 for parts that a stack has once) and its
    names in a `Layout`: several where one matrix computes them all.
    """
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for index, layer in enumerate(stack.layers):
            attention = layer.self_attention
            if layer.mixer == "ssru":
                yield side, index, ("ssru.candidate",), attention.candidate
                yield side, index, ("ssru.forget",), attention.forget_gate
            else:
                query_key_value = ("self.query", "self.key", "self.value")
                yield side, index, query_key_value, attention.projection
                yield side, index, ("self.out",), attention.output_projection
            yield side, index, ("self.norm",), layer.self_attention_norm
            if side == "decoder":
                attention = layer.cross_attention
                yield side, index, ("cross.query",), attention.query_projection
                yield side, index, ("cross.key", "cross.value"), attention.memory_projection
                yield side, index, ("cross.out",), attention.output_projection
                yield side, index, ("cross.norm",), layer.cross_attention_norm
            yield side, index, ("ffn.inner",), layer.feed_forward.inner
            yield side, index, ("ffn.outer",), layer.feed_forward.outer
            yield side, index, ("ffn.norm",), layer.feed_forward_norm
        if stack.final_norm is not None:
            yield side, 0, ("final.norm",), stack.final_norm
    if model.config.embedding_norm:
        yield "encoder", 0, ("embedding.norm",), model.source_norm
        yield "decoder", 0, ("embedding.norm",), model.target_norm


def missing_options(options: Iterable[str]) -> list[str]:
    """Returns a note on search options of the files that `SearchConfig` lacks, if there are any."""
    names = ", ".join(options)
    return [f"Search options that this package does not have: {names}."] if names else []


def check_rows(rows: int, symbols: Symbols) -> None:
    """Raises `InputError` if a table has not as many rows as there are symbols."""
    if rows != len(symbols.tokens):
        raise InputError(
            f"the model has {rows:,} tokens and its vocabulary {len(symbols.tokens):,}; give "
            "the vocabulary that it was trained with"
        )


def _our_rows(table: Array, symbols: Symbols, missing: float = 0.0) -> Array:
    """Returns rows of a matrix or bias in our order, with a constant where there is none."""
    check_rows(len(table), symbols)
    ours = table[[id_ or 0 for id_ in symbols.order]].astype(np.float32, copy=False)
    ours[[id_ is None for id_ in symbols.order]] = missing
    return ours


# What exports have in common.


def layer_tensors(
    model: Any, layout: Layout, order: Array | None = None
) -> Iterator[tuple[str, Array]]:
    """Yields the tensors of `weights_of` a Transformer with their names in a format.

    For each entry of the model dimension in the format, `order` has the one of the model.
    """
    for weight in weights_of(model, layout):
        array = to_numpy(weight.variable)
        if order is not None:
            for axis in weight.model_axes:
                array = array.take(order, axis)
        is_transposed = layout.transposed and array.ndim == 2
        arrays = np.split(array, len(weight.names), axis=-1)
        for name, each in zip(weight.names, arrays, strict=True):
            yield name, each.T if is_transposed else each


def check_exportable(
    model: Any,
    vocabularies: tuple[Vocabulary, Vocabulary],
    toolkit: str,
    obstacles: Callable[[TransformerConfig], Mapping[str, Any]],
) -> None:
    """Raises `InputError` that lists all that a toolkit does not support of a model.

    `obstacles` returns what that is, with whether a configuration has it. The vocabularies must
    have the model's sizes.
    """
    if type(model) is Transformer:
        layers = model._flatten_layers()
        is_quantized = any(getattr(layer, "quantization_mode", None) for layer in layers)
        reasons = {**obstacles(model.config), "quantized layers": is_quantized}
    else:
        reasons = {f"a model of class {type(model).__name__}": True}
    reject(reasons, f"the export to {toolkit} does not support {{}}; export a SavedModel instead")
    check_sizes(model.config, vocabularies)


def unsupported(config: TransformerConfig, **supported: Sequence[Any]) -> dict[str, bool]:
    """Returns, for `obstacles`, whether a field of a configuration has none of some values."""
    values = {name: getattr(config, name) for name in supported}
    return {f"{name} {value}": value not in supported[name] for name, value in values.items()}


@contextlib.contextmanager
def export_folder(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields an empty folder, renamed to `path`, which must be free, when the block has ended."""
    path = local_path(path)
    if path.exists():
        raise InputError(f"export folder {path} exists already; give a path that does not")
    with writing(f"the export to {path}"), atomic_folder(path) as aside:
        yield aside


def to_numpy(variable: Any) -> Array:
    """Returns a copy of a weight in float32: exports change it in place."""
    return np.array(ops.convert_to_numpy(variable), "float32")
