"""Multi-head scaled dot-product attention (Vaswani et al. 2017, 3.2), full, cached and restricted.

`call` attends to a whole sequence. `step` decodes: it reads one token of each hypothesis, and finds
keys and values of the earlier tokens in a cache. All W hypotheses of a sentence share one cache, in
which slot i * W + w holds token i of row w. The cache is never reordered: `score_bias` shows each
hypothesis the slots of its own ancestors, see `masks.ancestor_bias`.

`SelfAttention` and `CrossAttention` are the layers of the models; `MultiHeadAttention` is Keras's
layer, with cached steps added. In `WindowedSelfAttention` each position sees a window of its
neighbors (section 4).

Shapes: B batch, T queries, S keys, D model dimension, H heads, K key dimension of a head,
U value dimension of a head; while decoding, W hypotheses a sentence and t tokens read so far;
in windows, N blocks, b positions of a block, c keys that a block may see.
"""

import math
from numbers import Integral
from typing import Any, Literal, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError, check_choice
from keras_transformer.layers.base import Dropout, Layer
from keras_transformer.layers.embedding import relative_scores, relative_values, rotate
from keras_transformer.layers.masks import MASKED, attention_bias, combine_masks

_FEW_QUERIES = 16  # at most so many in a step with a usual beam
_MIN_BLOCK = 16  # positions; products of smaller blocks are slow
_HEADS_AT_ONCE = 2  # the blocks overlap: fewer heads at once take less memory


class KeysValues(NamedTuple):
    """Projected keys and values."""

    keys: Tensor  # [..., H, S, K]
    values: Tensor  # [..., H, S, U]


def attention_weights(query: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """Returns softmax(query keys^T + bias) as [..., H, T, S], computed in float32.

    The query [..., H, T, K] is already scaled by 1/sqrt(K) (3.2.1, eq. 1).
    """
    scores = ops.cast(_products(query, keys), "float32")  # [..., H, T, S]
    if scores.shape[-1] == 1:  # a single key has all the weight; ops.softmax would warn
        return ops.ones_like(scores, dtype=query.dtype)
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    return ops.cast(ops.softmax(scores, axis=-1), query.dtype)


def _products(query: Tensor, keys: Tensor) -> Tensor:
    """Returns query keys^T."""
    num_queries, num_keys = query.shape[-2], keys.shape[-2]
    if num_queries is None or num_queries > _FEW_QUERIES or num_keys is None:
        return ops.matmul(query, ops.swapaxes(keys, -1, -2))
    # XLA, which knows all shapes, copies what it transposes: it is cheaper to transpose a few
    # products than all keys at each step.
    return ops.swapaxes(ops.matmul(keys, ops.swapaxes(query, -1, -2)), -1, -2)


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


def append_slots(cache: Tensor, new: Tensor, time: Tensor, has_capacity: bool) -> Tensor:
    """Appends the keys or values of the W newest tokens to the cache.

    Args:
        cache: [B, H, t * W, K]; or, of fixed capacity, [B, H, capacity * W, K].
        new: [B, H, W, K].
        time: int32 [], t.
        has_capacity: whether the cache is of fixed capacity.

    Returns:
        [B, H, (t + 1) * W, K]; or the cache, its next free slots overwritten.
    """
    if not has_capacity:
        return ops.concatenate([cache, new], axis=2)
    return ops.slice_update(cache, (0, 0, time * new.shape[2], 0), new)


def append_tokens(
    kv_cache: KeysValues, new: KeysValues, time: Tensor, num_slots: int | None
) -> tuple[KeysValues, bool]:
    """Appends the keys and values of the W newest tokens to a cache, see `append_slots`.

    Args:
        kv_cache: of the tokens before.
        new: keys [B, H, W, K] and values [B, H, W, U].
        time: int32 [], t.
        num_slots: of the step's `score_bias`, which counts the new tokens already; None if unknown.

    Returns:
        The cache, and whether it is of fixed capacity: one that grows has fewer slots than that.
    """
    has_capacity = num_slots is not None and (kv_cache.keys.shape[2] or 0) >= num_slots
    pairs = zip(kv_cache, new, strict=True)
    return KeysValues(*(append_slots(*pair, time, has_capacity) for pair in pairs)), has_capacity


def unbranched_bias(kv_cache: KeysValues, time: Tensor | int, reach: int | None = None) -> Tensor:
    """Returns the bias of a step without a beam (W = 1), which hides slots that are not filled yet.

    Args:
        kv_cache: of a layer, before the new tokens.
        time: tokens read before; an int if the cache grows.
        reach: how many tokens before the new one a window can see; None for all.
    """
    num_slots = kv_cache.keys.shape[2]
    grows = num_slots is None  # a cache that grows has exactly the tokens read
    if isinstance(time, Integral):
        grows = num_slots == (time if reach is None else min(time, reach))
    if grows:
        return ops.zeros((1, 1, 1, ops.shape(kv_cache.keys)[2] + 1))
    first, size = 0, num_slots
    if reach is not None:
        first, size = ops.maximum(time - reach, 0), min(reach + 1, num_slots)
    return attention_bias(first + ops.arange(size) <= time)[None, None, None]


def empty_kv_cache(layer: Any, batch: int | Tensor, num_slots: int = 0) -> KeysValues:
    """Returns the KV cache of an attention layer before the first token.

    Args:
        layer: has `num_heads`, `key_dim` and `value_dim`.
        batch: B.
        num_slots: capacity in tokens of all hypotheses together; 0 for a cache that grows.
    """
    keys, values = (
        ops.zeros((batch, layer.num_heads, num_slots, width), layer.compute_dtype)
        for width in (layer.key_dim, layer.value_dim)
    )
    return KeysValues(keys, values)


class ScaledDotProductAttention(Layer):
    """The base of self-attention and cross-attention: several heads of equation 1.

    Args:
        num_heads: H.
        key_dim: width of a head's queries and keys, K = d_k.
        value_dim: width of a head's values, U = d_v.
        dropout: rate on the attention weights.
        use_bias: whether the projections have a bias.
    """

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
    ) -> tuple[Tensor, Tensor]:
        """softmax(Q K^T / sqrt(d_k)) V of all heads (3.2.1, eq. 1).

        Returns:
            The heads [..., H, T, U] and the attention weights [..., H, T, S].
        """
        weights = attention_weights(query * self.key_dim**-0.5, keys, bias)
        return ops.matmul(self.dropout(weights, training=training), values), weights

    def compute_output_spec(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *masks: Any,
        return_attention_scores: bool = False,
        **options: Any,
    ) -> Any:
        output = keras.KerasTensor(x.shape, self.compute_dtype)
        if not return_attention_scores:
            return output
        num_keys = (x if memory is None else memory).shape[1]
        shape = (x.shape[0], self.num_heads, x.shape[1], num_keys)  # [B, H, T, S]
        return output, keras.KerasTensor(shape, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(ScaledDotProductAttention):
    """Multi-head attention of a sequence to itself (3.2.2, 3.2.3).

    One matrix product projects to queries, keys and values of all heads.

    Args:
        num_heads, key_dim, value_dim, dropout, use_bias: see `ScaledDotProductAttention`.
        positions: how attention knows distances: "relative" (Shaw et al. 2018), "rotary" (Su et al.
            2021), or None if the embeddings hold positions.
        max_relative_distance: the largest distance that "relative" distinguishes.

    Example:
        >>> x = np.ones((2, 5, 16), "float32")
        >>> attention = SelfAttention(num_heads=4, key_dim=4, value_dim=4)
        >>> attention(x, use_causal_mask=True).shape
        TensorShape([2, 5, 16])
    """

    def __init__(
        self,
        *,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        positions: Literal["relative", "rotary"] | None = None,
        max_relative_distance: int = 16,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads=num_heads, key_dim=key_dim, value_dim=value_dim, **kwargs)
        if positions is not None:
            check_choice("positions", positions, ("relative", "rotary"))
        if positions == "rotary" and key_dim % 2:
            raise InputError(
                f"rotary positions turn pairs of dimensions and need an even key_dim, got {key_dim}"
            )
        self.positions = positions
        self.max_relative_distance = max_relative_distance

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        model_dim = input_shape[-1]
        width = self.num_heads * (2 * self.key_dim + self.value_dim)
        self.projection = self._dense(width, "query_key_value", input_shape)
        self.output_projection = self._dense(
            model_dim, "output", (None, None, self.num_heads * self.value_dim)
        )
        if self.positions == "relative":
            distances = 2 * self.max_relative_distance + 1
            self.relative_keys, self.relative_values = (
                self.add_weight(name=f"relative_{name}", shape=(distances, dim), autocast=False)
                for name, dim in (("keys", self.key_dim), ("values", self.value_dim))
            )

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
        score_bias: Tensor | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Attends from every position of x [B, T, D] to all that the masks allow.

        Args:
            x: [B, T, D]. Its Keras mask hides padding.
            attention_mask: bool [B, T, T] or broadcastable, True where a query may attend.
            padding_mask: bool [B, T], True at real tokens.
            score_bias: float, broadcasts to [B, H, T, T], added to the scores; replaces x's Keras
                mask.
            use_causal_mask: whether positions see none after them.
            training: whether dropout is on.
            return_attention_scores: whether to return the attention weights [B, H, T, T] too.

        Returns:
            [B, T, D], or that and the weights.
        """
        bias = combine_masks(
            x,
            attention_mask=attention_mask,
            padding_mask=padding_mask,
            use_causal_mask=use_causal_mask,
            score_bias=score_bias,
        )
        positions = ops.arange(ops.shape(x)[1])
        distances = positions[None, :] - positions[:, None]
        query, keys, values = self._project(x, positions)
        heads, weights = self._attend_at(distances, query, keys, values, bias, training)
        output = self.output_projection(merge_heads(heads))
        return (output, weights) if return_attention_scores else output

    def step(
        self,
        x: Tensor,
        kv_cache: KeysValues,
        time: Tensor | int,
        score_bias: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Reads one more token of each of W hypotheses of a sentence, or of each sequence (W = 1).

        The layer must have been built, by a call or by `build`.

        Args:
            x: [B * W, D], the new tokens.
            kv_cache: keys [B, H, t * W, K] and values [B, H, t * W, U] of the tokens before them,
                from `empty_kv_cache` at first.
            time: tokens read before, t. An int, or int32 [] if the cache is of fixed capacity.
            score_bias: [B, 1, W, (t + 1) * W], lets each hypothesis see its ancestors and its new
                token; as many slots as the cache if that is of fixed capacity. None: each row is a
                sequence and sees all that it has read.

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
        if score_bias is None:
            score_bias = unbranched_bias(kv_cache, time)
        num_hypotheses = score_bias.shape[2]
        query, kv_cache, _ = self._read(x, kv_cache, time, score_bias)
        distances = self._step_distances(score_bias, num_hypotheses, time, 0)
        heads, _ = self._attend_at(distances, query, *kv_cache, score_bias, training=False)
        return self.output_projection(merge_heads_to_rows(heads)), kv_cache

    def empty_kv_cache(self, batch: int | Tensor, num_slots: int = 0) -> KeysValues:
        """Returns the KV cache before the first token, see `empty_kv_cache`."""
        return empty_kv_cache(self, batch, num_slots)

    def _project(self, x: Tensor, positions: Tensor, length: int | None = None) -> list[Tensor]:
        """Returns query, keys and values [B, H, T, K or U]; rows x [B * T, D] have T = `length`."""
        projected = self.projection(x)
        if self.key_dim == self.value_dim:  # the heads of all three at once
            heads = split_heads(projected, 3 * self.num_heads, length)
            query, keys, values = ops.split(heads, 3, axis=1)
        else:
            keys_end = 2 * self.num_heads * self.key_dim
            parts = ops.split(projected, [keys_end // 2, keys_end], axis=-1)
            query, keys, values = (split_heads(part, self.num_heads, length) for part in parts)
        if self.positions == "rotary":
            query, keys = rotate(query, positions), rotate(keys, positions)
        return [query, keys, values]

    def _read(
        self, x: Tensor, kv_cache: KeysValues, time: Tensor, score_bias: Tensor
    ) -> tuple[Tensor, KeysValues, bool]:
        """Returns the query [B, H, W, K] of new tokens, the cache with them added, and whether it
        is of fixed capacity; arguments as in `step`.
        """
        num_hypotheses, num_slots = score_bias.shape[2:]
        query, key, value = self._project(x, time, num_hypotheses)
        return query, *append_tokens(kv_cache, KeysValues(key, value), time, num_slots)

    def _step_distances(
        self, score_bias: Tensor, num_hypotheses: int, time: Tensor, first: Tensor | int
    ) -> Tensor:
        """Returns the distances [S] from new tokens to slots, of which `first` is the oldest."""
        return first + ops.arange(ops.shape(score_bias)[3]) // num_hypotheses - time

    def _attend_at(
        self,
        distances: Tensor,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor | None,
        training: bool | None,
    ) -> tuple[Tensor, Tensor]:
        """`_attend`, with vectors for the distances [T, S] or [S] if positions are relative."""
        if self.positions != "relative":
            return self._attend(query, keys, values, bias, training)
        query = query * self.key_dim**-0.5
        scores = relative_scores(query, self.relative_keys, distances)
        bias = scores if bias is None else scores + ops.cast(bias, "float32")
        weights = attention_weights(query, keys, bias)
        dropped = self.dropout(weights, training=training)
        heads = ops.matmul(dropped, values)
        return heads + relative_values(dropped, self.relative_values, distances), weights


@keras.saving.register_keras_serializable(package="keras_transformer")
class CrossAttention(ScaledDotProductAttention):
    """Multi-head attention of a decoder to the encoder's output, its memory (3.2.3).

    Args: see `ScaledDotProductAttention`.

    Example:
        >>> x, memory = np.ones((2, 5, 16), "float32"), np.ones((2, 7, 16), "float32")
        >>> attention = CrossAttention(num_heads=4, key_dim=4, value_dim=4)
        >>> output, scores = attention(x, memory, return_attention_scores=True)
        >>> scores.shape
        TensorShape([2, 4, 5, 7])
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

    def compute_output_shape(
        self, x_shape: tuple[int | None, ...], memory_shape: Any = None
    ) -> tuple[int | None, ...]:
        return tuple(x_shape)

    def project_memory(self, memory: Tensor) -> KeysValues:
        """Returns keys [B, H, S, K] and values [B, H, S, U] of the memory [B, S, D].

        A layer that is not built yet gets queries of the memory's width.
        """
        if isinstance(memory, keras.KerasTensor):
            raise InputError(
                "project_memory is for tensors: in a functional model call the layer with the "
                "memory itself"
            )
        if not self.built:
            self.build(memory.shape)
        projected = self.memory_projection(memory)
        keys, values = ops.split(projected, [self.num_heads * self.key_dim], axis=-1)
        return KeysValues(split_heads(keys, self.num_heads), split_heads(values, self.num_heads))

    def call(
        self,
        x: Tensor,
        memory: Tensor | KeysValues,
        attention_mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
        score_bias: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Attends from every position of x to all of the memory that the masks allow.

        Args:
            x: [B, T, D].
            memory: [B, S, any], whose Keras mask hides padding; or `project_memory` of it, for
                several calls with the same memory.
            attention_mask: bool [B, T, S] or broadcastable, True where a query may attend.
            padding_mask: bool [B, S], True at real tokens of the memory.
            score_bias: float, broadcasts to [B, H, T, S], added to the scores; replaces the
                memory's Keras mask.
            training: whether dropout is on.
            return_attention_scores: whether to return the attention weights [B, H, T, S] too.

        Returns:
            [B, T, D], or that and the weights.
        """
        bias = combine_masks(
            memory,
            attention_mask=attention_mask,
            padding_mask=padding_mask,
            score_bias=score_bias,
        )
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


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention` with the cached steps of `SelfAttention`.

    Constructor, `call(query, value, key, ...)` and weights are Keras's: it replaces the layer in a
    model, and `set_weights(keras_layer.get_weights())` gives it the weights of one.

    Example:
        >>> attention = MultiHeadAttention(num_heads=4, key_dim=4)
        >>> x = np.ones((2, 5, 16), "float32")
        >>> full = attention(x, x, use_causal_mask=True)
        >>> y, kv_cache = attention.step(x[:, 0], attention.empty_kv_cache(batch=2), time=0)
        >>> bool(np.allclose(y, full[:, 0], atol=1e-6))
        True
    """

    def step(
        self,
        x: Tensor,
        kv_cache: KeysValues,
        time: Tensor | int,
        score_bias: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Reads one more token of each sequence or hypothesis, as `SelfAttention.step`.

        The result is that of `call` with x as query, value and key and a causal mask, without
        dropout. The layer must have been built.
        """
        if score_bias is None:
            score_bias = unbranched_bias(kv_cache, time)
        num_hypotheses, num_slots = score_bias.shape[2:]
        query, key, value = (
            ops.swapaxes(
                ops.reshape(dense(x[:, None]), (-1, num_hypotheses, self.num_heads, width)), 1, 2
            )
            for dense, width in (
                (self.query_dense, self.key_dim),
                (self.key_dense, self.key_dim),
                (self.value_dense, self.value_dim),
            )
        )  # [B, H, W, K or U]
        kv_cache, _ = append_tokens(kv_cache, KeysValues(key, value), time, num_slots)
        query = query * self.key_dim**-0.5
        weights = attention_weights(query, kv_cache.keys, score_bias)  # [B, H, W, S]
        heads = ops.swapaxes(ops.matmul(weights, kv_cache.values), 1, 2)  # [B, W, H, U]
        output = self.output_dense(heads)
        return ops.reshape(output, (-1, *output.shape[2:])), kv_cache

    def empty_kv_cache(self, batch: int | Tensor, num_slots: int = 0) -> KeysValues:
        """Returns the KV cache before the first token, see `empty_kv_cache`."""
        for option in ("use_gate", "sliding_window"):
            if value := self.get_config().get(option):
                raise InputError(
                    f"`step` does not support {option}={value}; make the layer without it, or use "
                    "`call`"
                )
        return empty_kv_cache(self, batch, num_slots)


@keras.saving.register_keras_serializable(package="keras_transformer")
class WindowedSelfAttention(SelfAttention):
    """Self-attention to a window of positions (Vaswani et al. 2017, 4).

    `call` computes a band of the attention matrix in blocks: b queries attend to the keys of their
    own block and of its edges, so time and memory grow with r T and not with T^2. While decoding, a
    KV cache that grows forgets what no later token sees, and one of fixed capacity is read in part.

    Args:
        window: positions that a position sees, r in Table 1: its own and (r - 1) / 2 on each side,
            or, with a causal mask, its own and the (r - 1) / 2 before it.
        **kwargs: see `SelfAttention`.

    Raises:
        InputError: the window is even or less than 1.

    Example:
        >>> x = np.ones((2, 100, 16), "float32")
        >>> WindowedSelfAttention(window=9, num_heads=4, key_dim=4, value_dim=4)(x).shape
        TensorShape([2, 100, 16])
    """

    def __init__(self, *, window: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if window < 1 or window % 2 == 0:
            raise InputError(f"window must be odd and at least 1, got {window}")
        self.window = window
        self.reach = window // 2  # positions seen on a side

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
        score_bias: Tensor | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Attends as `SelfAttention.call` within the window.

        Blocks need masks that are the same for all queries and heads. With others, or with
        `return_attention_scores`, the whole attention matrix is computed.
        """
        bias = combine_masks(
            x, attention_mask=attention_mask, padding_mask=padding_mask, score_bias=score_bias
        )
        length = ops.shape(x)[1]
        is_same_for_all = bias is None or (len(bias.shape) == 4 and bias.shape[1:3] == (1, 1))
        if return_attention_scores or not is_same_for_all:
            band = band_bias(length, self.reach, use_causal_mask)
            return super().call(
                x,
                score_bias=band if bias is None else band + ops.cast(bias, "float32"),
                training=training,
                return_attention_scores=return_attention_scores,
            )
        projected = self._project(x, ops.arange(length))  # [B, H, T, K or U] each
        num_parts = self.num_heads // math.gcd(self.num_heads, _HEADS_AT_ONCE)
        parts = [ops.split(each, num_parts, axis=1) for each in projected]
        heads = []
        for query, keys, values in zip(*parts, strict=True):
            blocks = in_blocks(query, keys, values, bias, self.reach, use_causal_mask)
            attended, _ = self._attend_at(
                blocks.distances, blocks.query, blocks.keys, blocks.values, blocks.bias, training
            )  # [N, B, 2, b, U]
            heads.append(out_of_blocks(attended, length))
        return self.output_projection(ops.concatenate(heads, axis=-1))

    def step(
        self,
        x: Tensor,
        kv_cache: KeysValues,
        time: Tensor | int,
        score_bias: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Reads one more token of each hypothesis, as `SelfAttention.step`.

        The bias is that of `visible_ancestors`. A cache that grows keeps the tokens that the next
        one sees.
        """
        if score_bias is None:
            score_bias = unbranched_bias(kv_cache, time, self.reach)
        num_hypotheses = score_bias.shape[2]
        query, kv_cache, has_capacity = self._read(x, kv_cache, time, score_bias)
        seen, first = kv_cache, ops.maximum(time - self.reach, 0)
        if has_capacity:
            start, size = first * num_hypotheses, (self.reach + 1) * num_hypotheses
            seen = KeysValues(*(slots_from(each, start, size) for each in kv_cache))
        else:
            size = self.reach * num_hypotheses
            kv_cache = KeysValues(*(last_slots(each, size) for each in kv_cache))
        distances = self._step_distances(score_bias, num_hypotheses, time, first)
        heads, _ = self._attend_at(distances, query, *seen, score_bias, training=False)
        return self.output_projection(merge_heads_to_rows(heads)), kv_cache


def in_band(distances: Tensor, reach: int, causal: bool) -> Tensor:
    """Returns whether a window shows keys at these distances from their queries.

    Args:
        distances: the keys' positions less the queries', of any shape.
        reach: positions that a position sees before it and, if not causal, after it.
        causal: whether positions see none after them.
    """
    return (distances >= -reach) & (distances <= (0 if causal else reach))


def band_bias(length: int | Tensor, reach: int, causal: bool) -> Tensor:
    """Returns a bias [1, 1, T, T] that lets positions see a window, see `in_band`."""
    positions = ops.arange(length)
    distances = positions[None, :] - positions[:, None]
    return attention_bias(in_band(distances, reach, causal))[None, None]


class Blocks(NamedTuple):
    """A sequence cut up for attention."""

    query: Tensor  # [N, B, H, b, K]
    keys: Tensor  # [N, B, H, c, K]
    values: Tensor  # [N, B, H, c, U]
    bias: Tensor  # [N, B or 1, 1, b, c]
    distances: Tensor  # int32 [b, c], from queries to keys


def in_blocks(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, reach: int, causal: bool
) -> Blocks:
    """Cuts a sequence into blocks, each with all the keys that its queries may see.

    Args:
        query, keys: [B, H, T, K].
        values: [B, H, T, U].
        bias: [B or 1, 1, 1, T or 1], hides padding; or None.
        reach, causal: see `in_band`.
    """
    length = ops.shape(query)[2]
    # A block as long as the edges it sees is the best trade of their copies against its products.
    size = max(reach if causal else 2 * reach, _MIN_BLOCK)
    size = min(size, length) if isinstance(length, int) else ops.minimum(size, length)
    edge = min(reach, size) if isinstance(size, int) else ops.minimum(reach, size)
    if bias is None:
        bias = ops.zeros((1, 1, 1, 1), "float32")
    bias = ops.broadcast_to(bias, (ops.shape(bias)[0], 1, 1, length))
    hidden = _cut(ops.swapaxes(ops.cast(bias, "float32"), 2, 3), size, MASKED)
    hidden = _with_edges(hidden, size, edge, causal, MASKED)  # [N, B or 1, 1, c, 1]
    keys, values = (_with_edges(_cut(each, size), size, edge, causal) for each in (keys, values))
    places = ops.arange(ops.shape(keys)[3]) - edge  # of keys: those of the block itself from 0
    distances = places[None, :] - ops.arange(size)[:, None]
    band = attention_bias(in_band(distances, reach, causal))
    bias = band + ops.swapaxes(hidden, 3, 4)
    return Blocks(_cut(query, size), keys, values, bias, distances)


def out_of_blocks(heads: Tensor, length: int | Tensor) -> Tensor:
    """Turns blocks [N, B, H, b, U] into [B, T, H * U]."""
    num_blocks, batch, num_heads, size, width = ops.shape(heads)
    rows = ops.reshape(
        ops.transpose(heads, (1, 0, 3, 2, 4)), (batch, num_blocks * size, num_heads * width)
    )
    return rows[:, :length]


def _cut(x: Tensor, size: int | Tensor, fill: float = 0.0) -> Tensor:
    """Turns [B, H, T, K] into blocks [N, B, H, b, K], the last one filled up."""
    batch, num_heads, length, width = ops.shape(x)
    num_blocks = (length + size - 1) // size
    missing = num_blocks * size - length
    x = ops.pad(x, ((0, 0), (0, 0), (0, missing), (0, 0)), constant_values=fill)
    blocks = ops.reshape(x, (batch, num_heads, num_blocks, size, width))
    return ops.transpose(blocks, (2, 0, 1, 3, 4))


def _with_edges(
    blocks: Tensor, size: int | Tensor, edge: int | Tensor, causal: bool, fill: float = 0.0
) -> Tensor:
    """Turns [N, B, H, b, K] into [N, B, H, c, K]: the end of the block before, each block, and if
    not causal the beginning of the block after.
    """

    def shifted(edges: Tensor, first: int, last: int) -> Tensor:
        return ops.pad(edges, ((first, last), *([(0, 0)] * 4)), constant_values=fill)

    parts = [shifted(blocks[:-1, :, :, size - edge :], 1, 0), blocks]
    if not causal:
        parts.append(shifted(blocks[1:, :, :, :edge], 0, 1))
    return ops.concatenate(parts, axis=3)


def visible_ancestors(
    ancestors: Tensor, kv_cache: KeysValues, time: Tensor, window: int | None
) -> Tensor:
    """Returns those of ancestors [B, W, t] that the newest tokens see.

    Args:
        ancestors: see `DecodingState`.
        kv_cache: of any layer, before the newest tokens.
        time: int32 [], tokens read before.
        window: see `WindowedSelfAttention`; None for all ancestors.
    """
    if window is None:
        return ancestors
    reach = window // 2
    capacity, num_slots = ancestors.shape[2], kv_cache.keys.shape[2]
    if None in (capacity, num_slots) or num_slots < capacity * ancestors.shape[1]:
        return ancestors[:, :, -(reach + 1) :]
    return slots_from(ancestors, ops.maximum(time - reach, 0), reach + 1)


def slots_from(x: Tensor, first: Tensor, size: int) -> Tensor:
    """Returns `size` entries of x [B, ., S, ...] from the first, or all if there are fewer."""
    if x.shape[2] <= size:
        return x
    rest = x.shape[3:]
    start = (0, 0, first, *(0 for _ in rest))
    return ops.slice(x, start, (ops.shape(x)[0], x.shape[1], size, *rest))


def last_slots(x: Tensor, size: int) -> Tensor:
    """Returns the last `size` entries of x [B, ., S, ...], or all if there are fewer."""
    return x[:, :, -size:] if size else x[:, :, :0]
