"""Encoder and decoder of the Transformer: N layers each (Vaswani et al. 2017, 3.1).

A layer is a row of sub-layers, each within a residual connection (3.1, 5.4). With norm_position
"post" a sub-layer turns x into the paper's LayerNorm(x + Dropout(Sublayer(x))); with "pre" into
x + Dropout(Sublayer(LayerNorm(x))), which trains deep stacks more easily and needs one more norm at
the end of the stack. `call` reads whole sequences, as in training; the decoder's `step` reads one
token of each hypothesis with the same sub-layers.

Shapes: B batch, T target length, S source length, D model dimension, F inner dimension of
feed-forward, H heads, W hypotheses a sentence.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.layers.attention import CrossAttention, SelfAttention
from keras_transformer.layers.base import Layer, ReadsMemory, full_precision, with_scores
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.kv_cache import KeysValues, KVCache
from keras_transformer.layers.masks import Bias, combine_masks, get_keras_mask
from keras_transformer.layers.ssru import SSRU
from keras_transformer.layers.windowed_attention import WindowedSelfAttention

ACTIVATIONS = {
    "relu": ops.relu,
    # Ramachandran et al. 2017. The gradient of `ops.silu` under TensorFlow names a constant, which
    # an export may have merged.
    "swish": lambda x: x * ops.sigmoid(x),
    "gelu": lambda x: ops.gelu(x, approximate=False),  # x Phi(x) (Hendrycks and Gimpel 2016)
    "gelu_tanh": lambda x: ops.gelu(x, approximate=True),  # both approximations are from there
    "gelu_sigmoid": lambda x: x * ops.sigmoid(1.702 * x),
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(Layer):
    """FFN(x) = f(x W1 + b1) W2 + b2 (Vaswani et al. 2017, eq. 2, where f(x) = max(0, x)).

    Args:
        inner_dim: F = d_ff.
        dropout: rate after the activation.
        activation: f, a name of `ACTIVATIONS`.
    """

    def __init__(
        self, inner_dim: int, dropout: float = 0.0, activation: str = "relu", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_choice("activation", activation, tuple(ACTIVATIONS))
        self.inner_dim = inner_dim
        self.activation = activation
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        activation = ACTIVATIONS[self.activation]
        self.inner = self._dense(self.inner_dim, "inner", input_shape, activation=activation)
        self.outer = self._dense(input_shape[-1], "outer", (*input_shape[:-1], self.inner_dim))

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """Returns [..., D] for x [..., D]."""
        return self.outer(self.dropout(self.inner(x), training=training))


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(Layer):
    """gain * (x - mean) / sqrt(variance + epsilon) + bias of each vector (Ba et al. 2016).

    The variance is that of the population: it divides by D.

    Args:
        epsilon: keeps the quotient finite if all entries are equal.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        # Half precision would round the gain and the bias to 8 or 11 bits.
        options = dict(shape=(input_shape[-1],), autocast=False)
        self.gain = self.add_weight(name="gain", initializer="ones", **options)
        self.bias = self.add_weight(name="bias", initializer="zeros", **options)

    def call(self, x: Tensor) -> Tensor:
        """Returns x [..., D] normalized, of the same shape and dtype."""
        # Half precision cannot hold the sum of squares.
        full = full_precision(x.dtype)
        x = ops.cast(x, full)
        centered = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
        normal = centered * ops.rsqrt(variance + self.epsilon)
        result = normal * ops.cast(self.gain, full) + ops.cast(self.bias, full)
        return ops.cast(result, self.compute_dtype)


class TransformerLayer(Layer):
    """The sub-layers of `EncoderLayer` and, with cross-attention, of `DecoderLayer`.

    Args:
        num_heads, key_dim, value_dim: see `SelfAttention`. attention_dropout: its `dropout`.
        attention_bias: whether the projections of attention have a bias.
        attention_window: see `WindowedSelfAttention`; None for all positions.
        max_relative_distance: see `SelfAttention`.
        feed_forward_dim, feed_forward_dropout, activation: see `FeedForward`.
        dropout: rate on the output of each sub-layer.
        norm_position: "post" or "pre", where the norms stand.
        norm_epsilon: see `LayerNormalization`.
        mixer: "attention"; or "ssru" for a decoder with an `SSRU` in place of self-attention, and
            without its options.

    Attributes:
        self_attention: or the `SSRU`.
        feed_forward_class, norm_class: the sub-layers, for subclasses to replace.
    """

    has_cross_attention = False
    feed_forward_class: type[FeedForward] = FeedForward
    norm_class: type[LayerNormalization] = LayerNormalization

    def __init__(
        self,
        *,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        feed_forward_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
        activation: str = "relu",
        attention_bias: bool = False,
        attention_window: int | None = None,
        max_relative_distance: int | None = None,
        norm_position: Literal["post", "pre"] = "post",
        norm_epsilon: float = 1e-6,
        mixer: Literal["attention", "ssru"] = "attention",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("norm_position", norm_position, ("post", "pre"))
        check_choice("mixer", mixer, ("attention", "ssru"))
        self.mixer = mixer
        self.is_pre_norm = norm_position == "pre"
        dtype = self.dtype_policy
        attention: dict[str, Any] = dict(
            num_heads=num_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            dropout=attention_dropout,
            use_bias=attention_bias,
            dtype=dtype,
        )
        options = attention | dict(
            max_relative_distance=max_relative_distance, name="self_attention"
        )
        self.self_attention: Any
        if mixer == "ssru":
            self.self_attention = SSRU(name="ssru", dtype=dtype)
        elif attention_window is None:
            self.self_attention = SelfAttention(**options)
        else:
            self.self_attention = WindowedSelfAttention(window=attention_window, **options)
        norm = functools.partial(self.norm_class, norm_epsilon, dtype=dtype)
        self.self_attention_norm = norm(name="self_attention_norm")
        if self.has_cross_attention:
            self.cross_attention = CrossAttention(**attention, name="cross_attention")
            self.cross_attention_norm = norm(name="cross_attention_norm")
        self.feed_forward = self.feed_forward_class(
            feed_forward_dim, feed_forward_dropout, activation, name="feed_forward", dtype=dtype
        )
        self.feed_forward_norm = norm(name="feed_forward_norm")
        self.dropout = Dropout(dropout, name="dropout", dtype=dtype)

    def build(self, input_shape: tuple[int | None, ...], *memory_shape: Any) -> None:
        self.self_attention.build(input_shape)
        self.self_attention_norm.build(input_shape)
        if self.has_cross_attention:
            if not self.cross_attention.built:  # by `project_memory`
                self.cross_attention.build(input_shape, *memory_shape)
            self.cross_attention_norm.build(input_shape)
        self.feed_forward.build(input_shape)
        self.feed_forward_norm.build(input_shape)

    def _run(
        self,
        x: Tensor,
        training: bool | None,
        attend_to_self: Callable[[Tensor], Any],
        attend_to_memory: Callable[[Tensor], Any] | None = None,
    ) -> tuple[Any, ...]:
        """Runs the sub-layers, each in a residual connection with its norm and dropout (3.1, 5.4).

        Returns x, and what each sub-layer returns beside its output, or None.
        """
        sublayers = [(attend_to_self, self.self_attention_norm)]
        if attend_to_memory is not None:
            sublayers.append((attend_to_memory, self.cross_attention_norm))
        sublayers.append(
            (lambda y: self.feed_forward(y, training=training), self.feed_forward_norm)
        )
        others = []
        for sublayer, norm in sublayers:
            y, other = with_scores(sublayer(norm(x) if self.is_pre_norm else x))
            x = x + self.dropout(y, training=training)
            x = x if self.is_pre_norm else norm(x)
            others.append(other)
        return x, *others


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(TransformerLayer):
    """Self-attention, then feed-forward, each within a residual connection.

    Args: see `TransformerLayer`.
    """

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | Bias | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Returns [B, S, D] for x [B, S, D], and on request the scores [B, H, S, S].

        Args: see `SelfAttention.call`.
        """
        options = dict(
            mask=mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        x, scores, _ = self._run(x, training, lambda y: self.self_attention(y, **options))
        return (x, scores) if return_attention_scores else x


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(ReadsMemory, TransformerLayer):
    """Self-attention, cross-attention, feed-forward, each within a residual connection.

    Args: see `TransformerLayer`.
    """

    has_cross_attention = True

    def call(
        self,
        x: Tensor,
        memory: Tensor | KeysValues,
        mask: Tensor | None = None,
        memory_mask: Tensor | Bias | None = None,
        attention_mask: Tensor | Bias | None = None,
        use_causal_mask: bool = True,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Reads whole sequences.

        Args:
            x: [B, T, D].
            memory: the encoder's output, see `CrossAttention.call`.
            mask, attention_mask: of self-attention, see `SelfAttention.call`; an SSRU has the mask
                alone.
            memory_mask: of cross-attention, see `CrossAttention.call`.
            use_causal_mask: whether positions of x see none after them.
            training: whether dropout is on.
            return_attention_scores: whether to return the attention weights too.

        Returns:
            [B, T, D]; or that, the weights of self-attention [B, H, T, T], None for an SSRU, and
            those of cross-attention [B, H, T, S].
        """
        options = dict(training=training, return_attention_scores=return_attention_scores)
        masks: dict[str, Any] = dict(mask=mask)
        if self.mixer == "attention":
            masks |= dict(attention_mask=attention_mask, use_causal_mask=use_causal_mask, **options)
        x, *scores, _ = self._run(
            x,
            training,
            lambda y: self.self_attention(y, **masks),
            lambda y: self.cross_attention(y, memory, memory_mask=memory_mask, **options),
        )
        return (x, *scores) if return_attention_scores else x

    def step(
        self,
        x: Tensor,
        memory: KeysValues,
        kv_cache: Any,
        time: Tensor | int,
        score_bias: Tensor | None = None,
        memory_score_bias: Tensor | None = None,
    ) -> tuple[Tensor, Any, Tensor]:
        """Reads the new tokens x [B * W, D] of W hypotheses of a sentence, or of B sequences.

        Args:
            x, kv_cache, time, score_bias: see `SelfAttention.step`; with an SSRU `kv_cache` is its
                state.
            memory, memory_score_bias: see `CrossAttention.step`.

        Returns:
            [B * W, D], the KV cache with the new tokens added, and the tokens' attention to the
            memory [B, H, W, S].
        """
        num_hypotheses = 1 if score_bias is None else score_bias.shape[2]
        past: tuple[Any, ...] = (kv_cache, time, score_bias)
        if self.mixer == "ssru":
            num_hypotheses, past = kv_cache.shape[1], (kv_cache,)
        x, kv_cache, scores, _ = self._run(
            x,
            False,
            lambda y: self.self_attention.step(y, *past),
            lambda y: self.cross_attention.step(y, memory, memory_score_bias, num_hypotheses),
        )
        return x, kv_cache, scores


class TransformerStack(Layer):
    """The base of `Encoder` and `Decoder`: N layers, and a last norm if norms stand before the
    sub-layers.

    Args:
        num_layers: N.
        **layer_options: see `TransformerLayer`.
    """

    layer_class: type[TransformerLayer]

    def __init__(
        self,
        *,
        num_layers: int,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **layer_options: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.layers: list[Any] = [
            self.layer_class(**layer_options, name=f"layer_{index}", dtype=self.dtype_policy)
            for index in range(num_layers)
        ]
        self.window: int | None = layer_options.get("attention_window")
        self.final_norm: LayerNormalization | None = None
        if layer_options.get("norm_position") == "pre":
            epsilon = layer_options.get("norm_epsilon", 1e-6)
            norm_class = self.layer_class.norm_class
            self.final_norm = norm_class(epsilon, name="final_norm", dtype=self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...], *memory_shape: Any) -> None:
        for layer in self.layers:
            layer.build(input_shape, *memory_shape)
        if self.final_norm is not None:
            self.final_norm.build(input_shape)

    def _read(self, x: Tensor, *memory: Any, **options: Any) -> tuple[Any, ...]:
        """Calls all layers; returns x and, of each kind of scores, a list of the layers'."""
        scores = []
        for layer in self.layers:
            x, *layer_scores = with_scores(layer(x, *memory, **options))
            scores.append(layer_scores)
        x = x if self.final_norm is None else self.final_norm(x)
        return x, *map(list, zip(*scores, strict=True))


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(TransformerStack):
    """A stack of `EncoderLayer`s.

    Args: see `TransformerStack`.
    """

    layer_class = EncoderLayer

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Returns the memory [B, S, D] that a decoder attends to.

        With `return_attention_scores` it also returns each layer's scores [B, H, S, S].

        Args: see `SelfAttention.call`.
        """
        x, scores = self._read(
            x,
            attention_mask=Bias(combine_masks(x, mask)),
            use_causal_mask=use_causal_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        return (x, scores) if return_attention_scores else x


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(ReadsMemory, TransformerStack):
    """A stack of `DecoderLayer`s.

    Args: see `TransformerStack`.

    Example:
        >>> decoder = Decoder(
        ...     num_layers=2, num_heads=4, key_dim=4, value_dim=4, feed_forward_dim=32
        ... )
        >>> x, memory = np.ones((2, 5, 16), "float32"), np.ones((2, 7, 16), "float32")
        >>> output = decoder(x, memory)
        >>> decoder(x, memory, memory_mask=np.arange(7) < [[7], [4]]).shape
        TensorShape([2, 5, 16])

        Token by token, as in decoding:
        >>> projected, kv_cache = decoder.project_memory(memory), decoder.empty_kv_cache(batch=2)
        >>> for time in range(5):
        ...     y, kv_cache, scores = decoder.step(x[:, time], projected, kv_cache, time)
        >>> bool(np.allclose(y, output[:, 4], atol=1e-5))
        True
    """

    layer_class = DecoderLayer

    def call(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        use_causal_mask: bool = True,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Returns [B, T, D] for x [B, T, D] and the encoder's output, the memory [B, S, D].

        With `return_attention_scores` it also returns two lists, each layer's scores of
        self-attention [B, H, T, T] and of cross-attention [B, H, T, S].

        Args: see `DecoderLayer.call`.
        """
        x, *scores = self._read(
            x,
            memory,
            mask=get_keras_mask(x) if mask is None else mask,  # for an SSRU; attention has the bias
            memory_mask=Bias(combine_masks(memory, memory_mask)),
            attention_mask=Bias(combine_masks(x, mask)),
            use_causal_mask=use_causal_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        return (x, *scores) if return_attention_scores else x

    def project_memory(self, memory: Tensor) -> list[KeysValues]:
        """Returns each layer's keys and values of the memory [B, S, D], for `step`."""
        return [layer.cross_attention.project_memory(memory) for layer in self.layers]

    def step(
        self,
        x: Tensor,
        memory: list[KeysValues],
        kv_cache: list[Any],
        time: Tensor | int,
        score_bias: Tensor | None = None,
        memory_score_bias: Tensor | None = None,
    ) -> tuple[Tensor, list[Any], list[Tensor]]:
        """Returns [B * W, D] for new tokens x [B * W, D], the KV caches with them added, and each
        layer's attention to the memory [B, H, W, S]; arguments as in `DecoderLayer.step`.
        """
        grown, scores = [], []
        for layer, layer_memory, layer_cache in zip(self.layers, memory, kv_cache, strict=True):
            x, layer_cache, layer_scores = layer.step(
                x, layer_memory, layer_cache, time, score_bias, memory_score_bias
            )
            grown.append(layer_cache)
            scores.append(layer_scores)
        return (x if self.final_norm is None else self.final_norm(x)), grown, scores

    def empty_kv_cache(self, batch: int | Tensor, num_slots: int = 0) -> list[KVCache]:
        """Returns each layer's KV cache before the first token."""
        return [layer.self_attention.empty_kv_cache(batch, num_slots) for layer in self.layers]

    def empty_state(self, batch: int | Tensor, num_hypotheses: int = 1) -> list[Tensor]:
        """Returns each layer's state before the first token, where the mixer is an `SSRU`."""
        return [layer.self_attention.empty_state(batch, num_hypotheses) for layer in self.layers]
