"""A model of another toolkit, read from its files, and what becomes of it: a `Transformer`.

Each format describes its model as a `ForeignModel`: options, names of tensors, symbols. From there
all go the same way.

Shapes: V tokens of a vocabulary, D model dimension, F inner dimension of the feed-forward layers.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.config import BOS_ID, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.interop.files import Array, Tensors
from keras_transformer.interop.vocabulary import Symbols
from keras_transformer.models import Transformer
from keras_transformer.text import Vocabulary

# Output bias of a token that no translation may have: its probability is 0 in float32.
_IMPOSSIBLE = -100.0
_MOST_LAYERS = 1_000

SELF = ("self.query", "self.key", "self.value")
MEMORY = ("cross.key", "cross.value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """What a format calls its tensors.

    Attributes:
        names: templates by part, such as "self.query", or "decoder.self.norm" where encoder and
            decoder differ; with {side}, {i} and {n} for the layer from 0 and from 1, and {kind}.
            "self.fused" and "cross.fused" are queries, keys and values in one.
        kernel, bias, gain, offset: what {kind} is for the matrix and bias of a product and for the
            gain and bias of a norm.
        transposed: whether matrices are [out, in].
    """

    names: Mapping[str, str]
    kernel: str = "weight"
    bias: str = "bias"
    gain: str = "weight"
    offset: str = "bias"
    transposed: bool = True

    def name(self, part: str, side: str, layer: int, kind: str) -> str:
        """Returns the name of a tensor."""
        template = self.names.get(f"{side}.{part}") or self.names[part]
        return template.format(side=side, i=layer, n=layer + 1, kind=kind)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignModel:
    """A model as its files have it.

    Attributes:
        options: fields of `TransformerConfig`, without sizes that its tensors tell.
        tensors, layout: the layers' weights. The next ones are read already, in their order.
        source_table, target_table: embeddings [V, D]; the same object where they are shared.
        projection: [V, D], the target table itself where they are shared.
        output_bias: [V], None where there is none.
        position_table: of learned positions, from the first token's on.
        source, target: the symbols.
        vocabularies: of source and target, whose ids are `Symbols.order`.
        search: fields of `SearchConfig`, as its own toolkit would search.
        layer_numbers: the layers that the decoder's are copies of, where some are the same.
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
    position_table: Array | None = None
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layer_numbers: Sequence[int] = ()
    notes: Sequence[str] = ()

    def config(self) -> TransformerConfig:
        """Returns the hyperparameters of the model that it becomes.

        Raises:
            InputError: they do not fit each other.
        """
        is_tied = self.projection is self.target_table
        share = "target" if is_tied else "none"
        if is_tied and self.source_table is self.target_table and self.source == self.target:
            share = "all"
        sizes: dict[str, Any] = {"vocabulary_size": len(self.source.order)}
        if share != "all":
            sizes["target_vocabulary_size"] = len(self.target.order)
        if self.position_table is not None:
            sizes |= {"positions": "learned", "max_positions": len(self.position_table)}
        values = {**self.options, **sizes, "share_embeddings": share, "output_bias": True}
        for name in ("num_layers", "decoder_layers"):
            if type(values[name]) is not int or not 1 <= values[name] <= _MOST_LAYERS:
                raise InputError(f"{name} is {values[name]!r} in the model's configuration")
        numbers = self.layer_numbers
        if numbers and (len(numbers) != values["decoder_layers"] or min(numbers) < 1):
            raise InputError(
                f"of {values['decoder_layers']} decoder layers {len(numbers)} have a number, "
                f"{list(numbers)}"
            )
        layers = [("encoder", index) for index in range(values["num_layers"])]
        layers += [("decoder", index) for index in range(values["decoder_layers"])]
        biases = [self._name("self.out", *layer, self.layout.bias) for layer in layers]
        biases += [self._name(_first(self.layout, "self", SELF), *layer, self.layout.bias)
                   for layer in layers]  # fmt: skip
        return TransformerConfig(
            **values,
            model_dim=self.target_table.shape[1],
            feed_forward_dim=max(self._inner_dim(*layer) for layer in layers),
            attention_bias=any(name in self.tensors for name in biases),
        )

    def to_model(self) -> Transformer:
        """Returns the model, in float32; errors as in `config` and `fill`."""
        model = Transformer(self.config(), dtype="float32")
        self.fill(model)
        return model

    def fill(self, model: Any) -> None:
        """Sets the weights of a `Transformer` of this configuration.

        Raises:
            InputError: a tensor is missing, of another shape, or left over.
        """
        self._put_tables(model)
        for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            for index, layer in enumerate(stack.layers):
                self._put_layer(layer, side, index)
            if stack.final_norm is not None:
                self._put_norm(stack.final_norm, "final.norm", side, 0)
        if model.config.embedding_norm:
            self._put_norm(model.source_norm, "embedding.norm", "encoder", 0)
            self._put_norm(model.target_norm, "embedding.norm", "decoder", 0)
        self.tensors.check_all_used()

    def _put_tables(self, model: Any) -> None:
        model.source_embedding.table.assign(_rows(self.source_table, self.source))
        if model.target_embedding is not model.source_embedding:
            model.target_embedding.table.assign(_rows(self.target_table, self.target))
        if model.projection is not None:
            model.projection.kernel.assign(_rows(self.projection, self.target).T)
        bias = self.output_bias
        bias = np.zeros(len(self.target.tokens)) if bias is None else bias
        bias = _rows(bias, self.target, _IMPOSSIBLE)
        if not self.target.is_ours:
            bias[BOS_ID] = _IMPOSSIBLE  # a copy, whose original keeps its own
        model.output_bias.assign(bias)
        if self.position_table is not None:
            model.positions.table.assign(self.position_table)

    def _put_layer(self, layer: Any, side: str, index: int) -> None:
        dim = layer.self_attention_residual.norm.gain.shape[0]
        attention = layer.self_attention
        self._put_dense(attention.projection, "self", SELF, side, index)
        self._put_dense(attention.output_projection, "", ("self.out",), side, index)
        self._put_norm(layer.self_attention_residual.norm, "self.norm", side, index)
        if side == "decoder":
            attention = layer.cross_attention
            self._put_dense(attention.query_projection, "", ("cross.query",), side, index)
            self._put_dense(attention.memory_projection, "cross", MEMORY, side, index)
            self._put_dense(attention.output_projection, "", ("cross.out",), side, index)
            self._put_norm(layer.cross_attention_residual.norm, "cross.norm", side, index)
        self._put_norm(layer.feed_forward_residual.norm, "ffn.norm", side, index)
        inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
        # Zeros change nothing where one side's layers are narrower: every activation of 0 is 0.
        missing = layer.feed_forward.inner_dim - self._inner_dim(side, index)
        kernel, bias = self._product("ffn.inner", side, index, (dim, None))
        inner.kernel.assign(np.pad(kernel, [(0, 0), (0, missing)]))
        inner.bias.assign(np.pad(bias, [(0, missing)]))
        kernel, bias = self._product("ffn.outer", side, index, (None, dim))
        outer.kernel.assign(np.pad(kernel, [(0, missing), (0, 0)]))
        outer.bias.assign(bias)

    def _put_dense(
        self, dense: Any, fused: str, parts: Sequence[str], side: str, index: int
    ) -> None:
        """Sets a product to one of theirs, or to several side by side."""
        rows, columns = dense.kernel.shape
        if fused and f"{fused}.fused" in self.layout.names:
            parts = (f"{fused}.fused",)
        shape = (rows, columns // len(parts))
        pairs = [self._product(part, side, index, shape) for part in parts]
        dense.kernel.assign(np.concatenate([kernel for kernel, _ in pairs], axis=1))
        if dense.use_bias:
            dense.bias.assign(np.concatenate([bias for _, bias in pairs]))

    def _product(
        self, part: str, side: str, index: int, shape: tuple[int | None, int | None]
    ) -> tuple[Array, Array]:
        """Returns a matrix [in, out] and its bias, zeros where it has none."""
        name = self._name(part, side, index, self.layout.kernel)
        kernel = self.tensors.get(name, shape[::-1] if self.layout.transposed else shape)
        kernel = kernel.T if self.layout.transposed else kernel
        name = self._name(part, side, index, self.layout.bias)
        if name not in self.tensors:
            return kernel, np.zeros(kernel.shape[1], np.float32)
        return kernel, self.tensors.get(name, (kernel.shape[1],))

    def _put_norm(self, norm: Any, part: str, side: str, index: int) -> None:
        shape = tuple(norm.gain.shape)
        norm.gain.assign(self.tensors.get(self._name(part, side, index, self.layout.gain), shape))
        norm.bias.assign(self.tensors.get(self._name(part, side, index, self.layout.offset), shape))

    def _inner_dim(self, side: str, index: int) -> int:
        name = self._name("ffn.inner", side, index, self.layout.kernel)
        shape = self.tensors.get(name, (None, None)).shape
        return int(shape[0] if self.layout.transposed else shape[1])

    def _name(self, part: str, side: str, index: int, kind: str) -> str:
        if side == "decoder" and self.layer_numbers:
            index = self.layer_numbers[index] - 1
        return self.layout.name(part, side, index, kind)


def _first(layout: Layout, fused: str, parts: Sequence[str]) -> str:
    return f"{fused}.fused" if f"{fused}.fused" in layout.names else parts[0]


def _rows(table: Array, symbols: Symbols, missing: float = 0.0) -> Array:
    """Returns the rows of a matrix or bias in our order, with a constant where there is none.

    Raises:
        InputError: there are more or fewer rows than symbols.
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
