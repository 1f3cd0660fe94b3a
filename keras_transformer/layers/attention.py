"""Multi-head scaled dot-product attention (Vaswani et al. 2017, 3.2), whole and cached.

`SelfAttention` and `CrossAttention` are the layers of the models. `call` attends to a whole
sequence. `step` decodes: it reads one token of each hypothesis, and finds keys and values of the
earlier tokens in a cache (`kv_cache.py`).

Shapes: B batch, T queries, S keys, D model dimension, H heads, K key dimension of a head,
U value dimension of a head; while decoding, W hypotheses a sentence, whose newest tokens take the
place of the T queries, and t tokens read so far.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.base import Layer, ReadsMemory, full_precision, softmax
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import relative_scores, relative_values
from keras_transformer.layers.kv_cache import KeysValues, KVCache, empty_slots
from keras_transformer.layers.masks import causal_mask, combine_masks, hide


def attention_weights(query: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """Returns softmax(query keys^T + bias) as [..., H, T, S], the softmax in float32 at least.

    The query [..., H, T, K] is scaled by 1/sqrt(K) already.
    """
    scores = ops.matmul(query, ops.swapaxes(keys, -1, -2))  # [..., H, T, S]
    scores = ops.cast(scores, full_precision(query.dtype))
    if bias is not None:
        scores = scores + ops.cast(bias, scores.dtype)
    return ops.cast(softmax(scores), query.dtype)


def split_heads(x: Tensor, num_heads: int, length: int | Tensor | None = None) -> Tensor:
    """Turns [B, T, H * K], or rows [B * T, H * K] with T = `length`, into [B, H, T, K]."""
    if length is None:
        length = ops.shape(x)[1]
    return ops.swapaxes(ops.reshape(x, (-1, length, num_heads, x.shape[-1] // num_heads)), 1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Turns [B, H, T, U] into [B, T, H * U]."""
    batch, num_heads, length, width = ops.shape(x)
    return ops.reshape(ops.swapaxes(x, 1, 2), (batch, length, num_heads * width))


def merge_heads_to_rows(x: Tensor) -> Tensor:
    """Turns [B, H, T, U] into rows [B * T, H * U]."""
    return ops.reshape(ops.swapaxes(x, 1, 2), (-1, x.shape[1] * x.shape[3]))


class ScaledDotProductAttention(Layer):
    """The base of self-attention and cross-attention: several heads of equation 1.

    Args:
        num_heads: H.
        key_dim: width of a head's queries and keys, K = d_k.
        value_dim: width of a head's values, U = d_v.
        dropout: rate on the attention weights.
        use_bias: whether the projections have a bias.
    """

    relative_keys: Any
    relative_values: Any

    def __init__(
        self,
        *,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        dropout: float = 0.0,
        use_bias: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.input_spec = keras.layers.InputSpec(ndim=3)  # vectors, not ids [B, T]
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.use_bias = use_bias
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def _dense(
        self, units: int | None, name: str, input_shape: Any, **options: Any
    ) -> keras.layers.Dense:
        return super()._dense(units, name, input_shape, use_bias=self.use_bias, **options)

    def _attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor | None,
        training: bool | None,
        distances: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """softmax(Q K^T / sqrt(d_k)) V (3.2.1, eq. 1), of all heads or, in a window, of some.

        With distances, [T, S] or [S], relative positions add a vector for each to keys and values.

        Returns:
            The heads [..., H, T, U] and the attention weights [..., H, T, S].
        """
        query = query * self.key_dim**-0.5
        if distances is not None:
            scores = relative_scores(query, self.relative_keys, distances)
            bias = scores if bias is None else scores + ops.cast(bias, scores.dtype)
        weights = attention_weights(query, keys, bias)
        dropped = self.dropout(weights, training=training)
        heads = ops.matmul(dropped, values)
        if distances is not None:
            heads = heads + relative_values(dropped, self.relative_values, distances)
        return heads, weights


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(ScaledDotProductAttention):
    """Multi-head attention of a sequence to itself (3.2.2, 3.2.3).

    One matrix product projects to queries, keys and values of all heads.

    Args:
        num_heads, key_dim, value_dim, dropout, use_bias: see `ScaledDotProductAttention`.
        max_relative_distance: the largest distance that relative positions (Shaw et al. 2018)
            distinguish; None if the embeddings hold positions.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        max_relative_distance: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads=num_heads, key_dim=key_dim, value_dim=value_dim, **kwargs)
        self.max_relative_distance = max_relative_distance

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        model_dim = input_shape[-1]
        width = self.num_heads * (2 * self.key_dim + self.value_dim)
        self.projection = self._dense(width, "query_key_value", input_shape)
        self.output_projection = self._dense(
            model_dim, "output", (None, None, self.num_heads * self.value_dim)
        )
        if self.max_relative_distance is not None:
            distances = 2 * self.max_relative_distance + 1
            self.relative_keys, self.relative_values = (
                self.add_weight(name=f"relative_{name}", shape=(distances, dim), autocast=False)
                for name, dim in (("keys", self.key_dim), ("values", self.value_dim))
            )

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Attends from every position of x [B, T, D] to all that the masks allow.

        Args:
            x: [B, T, D].
            mask: bool [B, T], True at real tokens; None for x's Keras mask.
            attention_mask: bool [B, T, T] or broadcastable, True where a query may attend.
            use_causal_mask: whether positions see none after them.
            training: whether dropout is on.
            return_attention_scores: whether to return the attention weights [B, H, T, T] too.

        Returns:
            [B, T, D], or that and the weights.
        """
        bias = combine_masks(x, mask, attention_mask)
        heads, weights = self._read(x, bias, use_causal_mask, training, return_attention_scores)
        output = self.output_projection(heads)
        return (output, weights) if return_attention_scores else output

    def _read(
        self,
        x: Tensor,
        bias: Tensor | None,
        use_causal_mask: bool,
        training: bool | None,
        return_attention_scores: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the merged heads [B, T, H * U] and the attention weights [B, H, T, T].

        `WindowedSelfAttention` overrides it, and `_visible`.
        """
        times = ops.arange(ops.shape(x)[1])
        if use_causal_mask:
            bias = hide(bias, causal_mask(ops.shape(x)[1]))
        query, keys, values = self._project(x)
        distances = self._if_relative(times[None, :] - times[:, None])
        heads, weights = self._attend(query, keys, values, bias, training, distances)
        return merge_heads(heads), weights

    def step(
        self, x: Tensor, kv_cache: KVCache, time: Tensor | int, score_bias: Tensor | None = None
    ) -> tuple[Tensor, KVCache]:
        """Reads one more token of each of W hypotheses of a sentence, or of each sequence (W = 1).

        The layer must have been built, by a call or by `build`.

        Args:
            x: [B * W, D], the new tokens.
            kv_cache: of the tokens before them, from `empty_kv_cache` at first.
            time: tokens read before these, t - 1.
            score_bias: [B, 1, W, S] from `slot_bias`, which lets each hypothesis see its ancestors
                and its new token, or of them those in the window. None, with a cache that grows:
                each row is a sequence and sees all that it has read.

        Returns:
            [B * W, D] and the KV cache with the new tokens added.

        Example:
            >>> x = np.ones((2, 5, 16), "float32")
            >>> attention = SelfAttention(num_heads=4, key_dim=4, value_dim=4)
            >>> full = attention(x, use_causal_mask=True)
            >>> kv_cache = attention.empty_kv_cache(batch=2)
            >>> for time in range(5):
            ...     y, kv_cache = attention.step(x[:, time], kv_cache, time)
            >>> bool(np.allclose(y, full[:, 4], atol=1e-6))
            True
        """
        num_hypotheses = 1 if score_bias is None else score_bias.shape[2]  # W
        query, *new = self._project(x, num_hypotheses)
        pairs = zip(kv_cache, new, strict=True)
        kv_cache = KVCache(*(slots.append(entries, time) for slots, entries in pairs))
        keys, values, first, kv_cache = self._visible(kv_cache, time, num_hypotheses)
        times = first + ops.arange(ops.shape(keys)[2]) // num_hypotheses
        distances = self._if_relative(times - time)
        heads, _ = self._attend(query, keys, values, score_bias, False, distances)
        return self.output_projection(merge_heads_to_rows(heads)), kv_cache

    def empty_kv_cache(self, batch: int | Tensor, num_slots: int = 0) -> KVCache:
        """Returns the KV cache before the first token.

        Args:
            batch: B.
            num_slots: capacity in tokens of all hypotheses together; 0 for a cache that grows.
        """
        keys, values = (
            empty_slots(batch, self.num_heads, num_slots, width, self.compute_dtype)
            for width in (self.key_dim, self.value_dim)
        )
        return KVCache(keys, values)

    def _project(self, x: Tensor, length: int | None = None) -> list[Tensor]:
        """Returns query, keys and values [B, H, T, K or U] of the tokens x.

        x is [B, T, D], or rows [B * T, D] with T = `length`.
        """
        projected = self.projection(x)
        if self.key_dim == self.value_dim:  # the heads of all three at once
            heads = split_heads(projected, 3 * self.num_heads, length)
            return list(ops.split(heads, 3, axis=1))
        keys_end = 2 * self.num_heads * self.key_dim
        parts = ops.split(projected, [keys_end // 2, keys_end], axis=-1)
        return [split_heads(part, self.num_heads, length) for part in parts]

    def _visible(
        self, kv_cache: KVCache, time: Tensor | int, num_hypotheses: int
    ) -> tuple[Tensor, Tensor, Any, KVCache]:
        """Returns the keys and values that the newest tokens may see, the number of the first token
        among them (slot i * W + w has token i), and the cache that later tokens need.
        """
        return kv_cache.keys.entries, kv_cache.values.entries, 0, kv_cache

    def _if_relative(self, distances: Tensor) -> Tensor | None:
        """Returns the distances from queries to keys if relative positions need them."""
        return None if self.max_relative_distance is None else distances


@keras.saving.register_keras_serializable(package="keras_transformer")
class CrossAttention(ReadsMemory, ScaledDotProductAttention):
    """Multi-head attention of a decoder to the encoder's output, its memory (3.2.3).

    Args: see `ScaledDotProductAttention`.
    """

    def build(
        self, x_shape: tuple[int | None, ...], memory_shape: tuple[int | None, ...] | None = None
    ) -> None:
        """Builds for queries and a memory of these widths; None for the same width."""
        if memory_shape is None or not isinstance(memory_shape[-1], int):
            memory_shape = x_shape  # the shapes of a `KeysValues` do not tell D
        keys, values = self.num_heads * self.key_dim, self.num_heads * self.value_dim
        self.query_projection = self._dense(keys, "query", x_shape)
        self.memory_projection = self._dense(keys + values, "key_value", memory_shape)
        self.output_projection = self._dense(x_shape[-1], "output", (None, None, values))

    def project_memory(self, memory: Tensor) -> KeysValues:
        """Returns keys [B, H, S, K] and values [B, H, S, U] of the memory [B, S, D].

        A layer that is not built yet gets queries of the memory's width.
        """
        if not self.built:
            self.build(memory.shape)
        projected = self.memory_projection(memory)
        keys, values = ops.split(projected, [self.num_heads * self.key_dim], axis=-1)
        return KeysValues(split_heads(keys, self.num_heads), split_heads(values, self.num_heads))

    def call(
        self,
        x: Tensor,
        memory: Tensor | KeysValues,
        memory_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Attends from every position of x to all of the memory that the masks allow.

        Args:
            x: [B, T, D].
            memory: [B, S, any]; or `project_memory` of it, for several calls with the same memory.
            memory_mask: bool [B, S], True at real tokens; None for the memory's Keras mask.
            attention_mask: bool [B, T, S] or broadcastable, True where a query may attend.
            training: whether dropout is on.
            return_attention_scores: whether to return the attention weights [B, H, T, S] too.

        Returns:
            [B, T, D], or that and the weights.
        """
        if isinstance(memory_mask, KeysValues):  # Keras passes a mask for each of its tensors
            memory_mask = None
        bias = combine_masks(memory, memory_mask, attention_mask)
        if not isinstance(memory, KeysValues):
            memory = self.project_memory(memory)
        query = split_heads(self.query_projection(x), self.num_heads)  # [B, H, T, K]
        heads, weights = self._attend(query, *memory, bias, training)
        output = self.output_projection(merge_heads(heads))
        return (output, weights) if return_attention_scores else output

    def step(
        self, x: Tensor, memory: KeysValues, score_bias: Tensor | None, num_hypotheses: int
    ) -> tuple[Tensor, Tensor]:
        """Attends from the new tokens of W hypotheses to a projected memory, without dropout.

        Args:
            x: [B * W, D].
            memory: from `project_memory`, once for all steps.
            score_bias: [B, 1, 1, S] or broadcastable, hides the memory's padding; None for none.
            num_hypotheses: W.

        Returns:
            [B * W, D] and the attention weights [B, H, W, S].
        """
        query = split_heads(self.query_projection(x), self.num_heads, num_hypotheses)
        heads, weights = self._attend(query, *memory, score_bias, training=False)
        return self.output_projection(merge_heads_to_rows(heads)), weights
