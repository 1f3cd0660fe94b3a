"""Multi-head attention of a sequence to itself (3.2.2, 3.2.3).

Shapes: as in `attention.py`.
"""

import math
from typing import Any, Literal

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError, check_choice
from keras_transformer.layers.attention import (
    KeysValues,
    MultiHeadAttention,
    append_slots,
    attention_weights,
    merge_heads,
    merge_heads_to_rows,
)
from keras_transformer.layers.masks import band_bias
from keras_transformer.layers.relative_positions import relative_scores, relative_values
from keras_transformer.layers.rotary import rotate
from keras_transformer.layers.windowed_attention import (
    in_blocks,
    last_slots,
    out_of_blocks,
    slots_from,
)

_HEADS_AT_ONCE = 2  # of windows: not all blocks, which overlap, are in memory together


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(MultiHeadAttention):
    """Multi-head attention of a sequence to itself (3.2.2, 3.2.3).

    One matrix product projects to queries, keys and values of all heads.

    Args:
        num_heads: H.
        key_dim: width of a head's queries and keys, K = d_k.
        value_dim: width of a head's values, U = d_v.
        dropout: rate on the attention weights.
        use_bias: whether the projections have a bias.
        window: positions that a position sees, r in Table 1: its own and (r - 1) / 2 on each side,
            or, if causal, its own and the (r - 1) / 2 before it; None for all.
        causal: whether a window ends at the position itself. Without a window the bias says so.
        positions: how attention knows of distances: "relative" (Shaw et al. 2018), "rotary" (Su et
            al. 2021), or None where the embeddings have positions.
        max_relative_distance: largest distance that "relative" tells from smaller ones.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        window: int | None = None,
        causal: bool = False,
        positions: Literal["relative", "rotary"] | None = None,
        max_relative_distance: int = 16,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads=num_heads, key_dim=key_dim, value_dim=value_dim, **kwargs)
        if positions is not None:
            check_choice("positions", positions, ("relative", "rotary"))
        if window is not None and (window < 1 or window % 2 == 0):
            raise InputError(f"window must be odd and at least 1, got {window}")
        self.window = window
        self.reach = None if window is None else window // 2  # positions seen on a side
        self.causal = causal
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
                self.add_weight(name=f"relative_{name}", shape=(distances, dim))
                for name, dim in (("keys", self.key_dim), ("values", self.value_dim))
            )

    def call(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Returns [B, T, D]: every position of x [B, T, D] attends to all that bias allows.

        The bias broadcasts to [B, H, T, T]; with a window, which hides the rest by itself, it is
        [B or 1, 1, 1, T] or None. With `return_attention_scores` (Keras's name) the weights
        [B, H, T, T] are returned too, which then are computed as a whole.
        """
        length = ops.shape(x)[1]
        positions = ops.arange(length)
        projected = self._project(x, positions[:, None])  # [B, T, H, K or U] each
        if self.reach is not None and not return_attention_scores:
            heads = self._attend_in_blocks(projected, bias, self.reach, training)
            return self.output_projection(heads)
        query, keys, values = (ops.swapaxes(each, 1, 2) for each in projected)
        if self.reach is not None:
            band = band_bias(length, self.reach, self.causal)
            bias = band if bias is None else band + ops.cast(bias, "float32")
        distances = positions[None, :] - positions[:, None]
        heads, weights = self._attend(query, keys, values, bias, distances, training)
        output = self.output_projection(merge_heads(heads))
        return (output, weights) if return_attention_scores else output

    def step(
        self, x: Tensor, kv_cache: KeysValues, time: Tensor, bias: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """Reads one more token of each of W hypotheses.

        Args:
            x: [B * W, D], the new tokens.
            kv_cache: keys [B, H, t * W, K] and values [B, H, t * W, U] of the tokens before them;
                a window leaves those that the new tokens see, unless there is a fixed capacity.
            time: int32 [], tokens of each hypothesis that were read before.
            bias: [B, 1, W, (t + 1) * W], lets each hypothesis see its ancestors and its new token;
                with a window those of `visible_ancestors`.

        Returns:
            [B * W, D] and the KV cache with the new tokens added.
        """
        num_hypotheses, num_slots = bias.shape[2:]
        projected = self._project(x, time, num_hypotheses)
        query, key, value = (ops.swapaxes(each, 1, 2) for each in projected)  # [B, H, W, K or U]
        has_capacity = num_slots is not None and (kv_cache.keys.shape[2] or 0) >= num_slots
        grown = KeysValues(
            append_slots(kv_cache.keys, key, time, has_capacity),
            append_slots(kv_cache.values, value, time, has_capacity),
        )
        seen, first = grown, 0
        if self.reach is not None:
            first = ops.maximum(time - self.reach, 0)
            if has_capacity:
                start, size = first * num_hypotheses, (self.reach + 1) * num_hypotheses
                seen = KeysValues(*(slots_from(each, start, size) for each in grown))
            else:
                size = self.reach * num_hypotheses
                grown = KeysValues(*(last_slots(each, size) for each in grown))
        slots = ops.arange(ops.shape(bias)[3])
        distances = first + slots // num_hypotheses - time  # all have the same length
        heads, _ = self._attend(query, *seen, bias, distances)  # [B, H, W, U]
        return self.output_projection(merge_heads_to_rows(heads)), grown

    def empty_kv_cache(self, batch: int | Tensor, num_slots: int = 0) -> KeysValues:
        """Returns the KV cache before the first token.

        Args:
            batch: B.
            num_slots: capacity in tokens of all hypotheses together; 0 for a cache that grows.
        """
        shape = (batch, self.num_heads, num_slots)
        return KeysValues(
            ops.zeros((*shape, self.key_dim), self.compute_dtype),
            ops.zeros((*shape, self.value_dim), self.compute_dtype),
        )

    def _project(self, x: Tensor, positions: Tensor, length: int | None = None) -> list[Tensor]:
        """Returns query, keys and values [B, T, H, K or U]; rows x [B * T, D] have T = `length`."""
        keys_end = 2 * self.num_heads * self.key_dim
        parts = ops.split(self.projection(x), [keys_end // 2, keys_end], axis=-1)
        rows = (-1, ops.shape(x)[1] if length is None else length, self.num_heads)
        query, keys, values = (
            ops.reshape(part, (*rows, part.shape[-1] // self.num_heads)) for part in parts
        )
        if self.positions == "rotary":
            query, keys = rotate(query, positions), rotate(keys, positions)
        return [query, keys, values]

    def _attend_in_blocks(
        self, projected: list[Tensor], bias: Tensor | None, reach: int, training: bool | None
    ) -> Tensor:
        """Returns the heads [B, T, H * U] of query, keys and values [B, T, H, K or U]."""
        num_parts = self.num_heads // math.gcd(self.num_heads, _HEADS_AT_ONCE)
        parts = [ops.split(each, num_parts, axis=2) for each in projected]
        heads = []
        for query, keys, values in zip(*parts, strict=True):
            blocks = in_blocks(query, keys, values, bias, reach, self.causal)
            attended, _ = self._attend(*blocks, training)  # [N, B, 2, b, U]
            heads.append(out_of_blocks(attended, ops.shape(projected[0])[1]))
        return ops.concatenate(heads, axis=-1)

    def _attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor | None,
        distances: Tensor,
        training: bool | None = False,
    ) -> tuple[Tensor, Tensor]:
        """Returns the heads [..., T, U] and the attention [..., T, S].

        The distances [T, S] or [S] are those from queries to keys.
        """
        query = self._scale(query)
        is_relative = self.positions == "relative"
        if is_relative:
            scores = relative_scores(query, self.relative_keys, distances)
            bias = scores if bias is None else scores + ops.cast(bias, "float32")
        weights = attention_weights(query, keys, bias)
        dropped = self.dropout(weights, training=training)
        heads = ops.matmul(dropped, values)
        if is_relative:
            heads = heads + relative_values(dropped, self.relative_values, distances)
        return heads, weights
