"""The Transformer as an ordinary Keras model (Vaswani et al. 2017, section 3).

`call` trains it, `encode` and `step` decode with it, `attention` and `attentions` show its
attention; all run the same layers. The Universal Transformer shares `TransformerModel`.

Shapes: B batch, S source length, T target length, W hypotheses a sentence, D model dimension,
V target vocabulary.
"""

import abc
from typing import Any

import keras
from keras import ops

from keras_transformer.config import EOS_ID, PAD_ID, TransformerConfig, TransformerLayersConfig
from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.layers import Decoder, Encoder, slot_bias
from keras_transformer.layers.base import with_scores
from keras_transformer.layers.embedding import PositionalEncoding
from keras_transformer.layers.masks import padding_bias, padding_mask
from keras_transformer.models.seq2seq import (
    Seq2SeqModel,
    add_coverage,
    register_architecture,
    start_coverage,
)


class TransformerModel(Seq2SeqModel):
    """Base of the Transformer and the Universal Transformer: positions and decoding.

    Args:
        config: the hyperparameters.

    Attributes:
        positions: None if self-attention has positions.
        encoder, decoder: made by the architecture.
    """

    config: TransformerLayersConfig
    encoder: Any
    decoder: Any
    has_state = False  # a decoder of SSRUs has a state in place of a KV cache

    def __init__(self, config: TransformerLayersConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.positions = self._make_positions("positions")
        if config.positions == "learned":
            self.max_length = config.max_positions - config.first_position

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        super().build(input_shape)
        for encoding in self._encodings():
            encoding.build()
        hidden = (None, None, self.config.model_dim)
        self.encoder.build(hidden)
        self.decoder.build(hidden)

    def encode(
        self,
        source: Tensor,
        *,
        num_hypotheses: int = 1,
        capacity: int | None = None,
        coverage: bool = False,
    ) -> DecodingState:
        source = self.visible_source(ops.convert_to_tensor(source, "int32"))
        memory, _ = self._encode(source, padding_mask(source), training=False)
        batch, past = ops.shape(source)[0], {}
        if self.has_state:
            past["recurrent_state"] = self.decoder.empty_state(batch, num_hypotheses)
        else:
            num_slots = (capacity or 0) * num_hypotheses
            past["kv_cache"] = self.decoder.empty_kv_cache(batch, num_slots)
        return DecodingState(
            projection=self.output_projection(),
            # The source, from which `step` computes its padding bias. A bias from outside of the
            # search's loop meets a bug of TensorFlow's oneDNN remapper: it takes the wrong output
            # of that tensor's Switch, and the whole search returns empty tensors.
            context={"memory": self.decoder.project_memory(memory), "source": source},
            coverage=start_coverage(source, num_hypotheses) if coverage else None,
            **past,
        )

    def step(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        ids = ops.convert_to_tensor(ids, "int32")
        state = state._replace(time=ops.convert_to_tensor(state.time, "int32"))
        past, score_bias = "recurrent_state", None
        if not self.has_state:
            past = "kv_cache"
            score_bias = slot_bias(ids, state, state.kv_cache[0].keys, self.decoder.window)
        # Rows [B * W, D]: products of two matrices are quicker than those of larger tensors.
        x, newest, attention = self._step(
            ops.reshape(ids, (-1,)),
            state.time,
            memory=state.context["memory"],
            kv_cache=getattr(state, past),
            score_bias=score_bias,
            memory_score_bias=padding_bias(state.context["source"]),
        )
        logits = self.logits(x, state.projection)  # [B * W, V]
        logits = ops.reshape(logits, (-1, ids.shape[1], ops.shape(logits)[-1]))
        coverage = add_coverage(state.coverage, attention)
        return logits, state._replace(**{past: newest}, coverage=coverage, time=state.time + 1)

    @abc.abstractmethod
    def _encode(
        self, source: Tensor, source_mask: Tensor, training: bool | None
    ) -> tuple[Tensor, Any]:
        """Returns the memory [B, S, D], and the attention of the encoder's layers or its steps."""

    @abc.abstractmethod
    def _step(self, ids: Tensor, time: Tensor, **options: Any) -> tuple[Tensor, Any, Tensor]:
        """Runs the decoder's step on ids [B * W], with `options` for it.

        Returns its output [B * W, D], the KV cache, and the attention to the memory [B, H, W, S].
        """

    def embedding_tables(self) -> list[keras.Variable]:
        tables = [encoding.table for encoding in self._encodings()]
        return super().embedding_tables() + [table for table in tables if table is not None]

    def _encodings(self) -> list[PositionalEncoding]:
        """Returns the positional encodings that the model adds to embeddings."""
        return [] if self.positions is None else [self.positions]

    def _make_positions(self, name: str) -> PositionalEncoding | None:
        config = self.config
        if config.attention_positions is not None:
            return None
        return PositionalEncoding(
            config.model_dim,
            config.positions,
            config.first_position,
            config.max_positions,
            name=name,
            dtype=self.dtype_policy,
        )


@register_architecture(TransformerConfig)
class Transformer(TransformerModel):
    """Encoder and decoder for sequence transduction.

    Args:
        config: the hyperparameters.

    Example:
        >>> model = Transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
        >>> ids = np.array([[5, 6, 7, 3]])
        >>> model({"source": ids, "target": ids}).shape
        TensorShape([1, 4, 100])

    Attributes:
        encoder_class, decoder_class: the stacks, for subclasses to replace.
    """

    config: TransformerConfig
    encoder_class: type[Encoder] = Encoder
    decoder_class: type[Decoder] = Decoder

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.target_positions = self.positions
        if not config.share_positions:
            self.target_positions = self._make_positions("target_positions")
        self.source_norm = self.target_norm = None
        if config.embedding_norm:
            norm_class = self.encoder_class.layer_class.norm_class
            self.source_norm, self.target_norm = (
                norm_class(config.norm_epsilon, name=name, dtype=self.dtype_policy)
                for name in ("source_norm", "target_norm")
            )
        options = layer_options(config) | {"dtype": self.dtype_policy}
        self.encoder = self.encoder_class(
            num_layers=config.num_layers,
            attention_window=config.encoder_attention_window,
            **options,
            name="encoder",
        )
        self.decoder = self.decoder_class(
            num_layers=config.decoder_layers or config.num_layers,
            attention_window=config.decoder_attention_window,
            mixer=config.decoder_mixer,
            **options,
            name="decoder",
        )
        self.has_state = config.decoder_mixer == "ssru"
        self.build()

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        super().build(input_shape)
        for norm in (self.source_norm, self.target_norm):
            if norm is not None:
                norm.build((None, None, self.config.model_dim))

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        return self.logits(self._run(inputs, training)[0])

    def attention(self, inputs: dict[str, Tensor]) -> Tensor:
        """Returns the attention of target tokens to source tokens, from which words are aligned:
        the mean of the last layer's heads, float32 [B, T, S]; inputs as in `call`.
        """
        return mean_of_heads(self.attention_weights(inputs)["cross"][-1])

    def attention_weights(self, inputs: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        return self._run(inputs, training=False, scores=True)[1]

    def visible_source(self, source: Tensor) -> Tensor:
        return source if self.config.source_eos else ops.where(source == EOS_ID, PAD_ID, source)

    def count_flops(self, source_length: Any, target_length: Any) -> Any:
        """Returns the operations of a forward pass, see `Seq2SeqModel.count_flops`.

        Those of `layer_flops` in each layer; each layer of the decoder projects the memory.
        """
        config = self.config
        windows = config.encoder_attention_window, config.decoder_attention_window
        encoder, decoder, memory = layer_flops(
            config, source_length, target_length, windows, config.decoder_mixer
        )
        decoder_layers = config.decoder_layers or config.num_layers
        layers = config.num_layers * encoder + decoder_layers * (decoder + memory)
        return layers + self._projection_flops(target_length)

    def _encodings(self) -> list[PositionalEncoding]:
        encodings = super()._encodings()
        if self.target_positions not in (None, self.positions):
            encodings.append(self.target_positions)
        return encodings

    def _embed(
        self, side: str, ids: Tensor, time: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """Returns the inputs [..., D] of the encoder or the decoder for ids [...] (3.4, 3.5).

        Args:
            side: "source" or "target".
            ids: [B, T]; or rows [R], all of them at one position.
            time: that position, int32 [].
            training: whether dropout is on.
        """
        x = getattr(self, f"{side}_embedding")(ids)
        encoding = self.positions if side == "source" else self.target_positions
        if encoding is not None:
            x = encoding(x) if time is None else x + encoding.encode(time)
        if self.config.embedding_norm:
            x = getattr(self, f"{side}_norm")(x)
        return getattr(self, f"{side}_dropout")(x, training=training)

    def _encode(
        self, source: Tensor, source_mask: Tensor, training: bool | None, scores: bool = False
    ) -> tuple[Tensor, list[Tensor] | None]:
        """Returns the memory [B, S, D] and, on request, each layer's attention [B, H, S, S]."""
        x = self._embed("source", source, training=training)
        options = dict(training=training, return_attention_scores=scores)
        memory, weights = with_scores(self.encoder(x, mask=source_mask, **options))
        return memory, weights

    def _step(self, ids: Tensor, time: Tensor, **options: Any) -> tuple[Tensor, Any, Tensor]:
        x, kv_cache, attention = self.decoder.step(
            self._embed("target", ids, time, training=False), time=time, **options
        )
        return x, kv_cache, attention[-1]

    def _run(
        self, inputs: dict[str, Tensor], training: bool | None, scores: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        """Returns the decoder's outputs [B, T, D] and, on request, `attention_weights`."""
        source, target = self.visible_source(inputs["source"]), inputs["target"]
        source_mask = padding_mask(source)
        memory, encoder_weights = self._encode(source, source_mask, training, scores)
        # The causal mask hides the target's padding too, which follows the real tokens.
        x, *weights = with_scores(
            self.decoder(
                self._embed("target", target, training=training),
                memory,
                memory_mask=source_mask,
                training=training,
                return_attention_scores=scores,
            )
        )
        layers = {"encoder": encoder_weights, "decoder": weights[0], "cross": weights[-1]}
        if self.has_state:
            del layers["decoder"]
        return x, layers


# For the Universal Transformer too.


def layer_options(config: TransformerLayersConfig) -> dict[str, Any]:
    """Returns the arguments of `TransformerLayer` by a model's configuration."""
    head_dim = config.model_dim // config.num_heads
    same = (
        "num_heads", "feed_forward_dim", "dropout", "attention_dropout", "feed_forward_dropout",
        "activation", "attention_bias", "max_relative_distance", "norm_position", "norm_epsilon",
    )  # fmt: skip
    return {name: getattr(config, name) for name in same} | {
        "key_dim": config.key_dim or head_dim,
        "value_dim": config.value_dim or head_dim,
        "positions": config.attention_positions,
    }


def layer_flops(
    config: TransformerLayersConfig,
    source_length: Any,
    target_length: Any,
    windows: tuple[int | None, int | None] = (None, None),
    decoder_mixer: str = "attention",
) -> tuple[Any, Any, Any]:
    """Returns the operations of an encoder layer, of a decoder layer, and of its memory.

    With H heads, keys K and values U wide, a source token is multiplied by the weights of
    self-attention and feed-forward, H (2K + 2U) D + 2 F D; a target token by as many and by those
    of the query and the output of cross-attention, H (K + U) D; a source token, once, by those of
    the memory's keys and values, H (K + U) D. Each pair of a query and a key in its window adds
    H (K + U), for scores and weighted sums, and as much again for relative positions. An SSRU has
    2 D^2 in place of a target token's self-attention.

    Args:
        config: of the model.
        source_length, target_length: as in `Seq2SeqModel.count_flops`.
        windows: of self-attention in encoder and decoder.
        decoder_mixer: see `TransformerConfig`.
    """
    head_dim = config.model_dim // config.num_heads
    widths = (config.key_dim or head_dim) + (config.value_dim or head_dim)
    widths *= config.num_heads  # H (K + U)
    feed_forward = 2 * config.feed_forward_dim * config.model_dim
    cross = widths * config.model_dim
    pair = widths * (2 if config.positions == "relative" else 1)
    source_keys, target_keys = source_length, target_length  # that a query sees
    if windows[0] is not None:
        source_keys = _minimum(source_length, windows[0])
    if windows[1] is not None:
        target_keys = _minimum(target_length, windows[1] // 2 + 1)
    source_token, target_token = 2 * cross + source_keys * pair, 2 * cross + target_keys * pair
    if decoder_mixer == "ssru":
        target_token = 2 * config.model_dim**2
    encoder = source_length * (source_token + feed_forward)
    decoder = target_length * (target_token + cross + source_length * widths + feed_forward)
    return 2 * encoder, 2 * decoder, 2 * source_length * cross


def _minimum(length: Any, most: int) -> Any:
    # A product of integer tensors overflows.
    return min(length, most) if isinstance(length, (int, float)) else ops.minimum(length, most)


def mean_of_heads(attention: Tensor) -> Tensor:
    """Returns the mean of the heads of attention [B, H, T, S], float32 [B, T, S]."""
    return ops.mean(ops.cast(attention, "float32"), axis=1)
