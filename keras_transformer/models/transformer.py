"""The Transformer as an ordinary Keras model (Vaswani et al. 2017, section 3).

`call` trains it, `encode` and `step` decode with it, `attention` and `attentions` show its
attention; all run the same layers. The Universal Transformer shares `TransformerModel`.

Shapes: B batch, S source length, T target length, W hypotheses a sentence, D model dimension,
V target vocabulary.
"""

import abc
import inspect
from typing import Any

import keras
from keras import ops

from keras_transformer.config import EOS_ID, PAD_ID, TransformerConfig, TransformerLayersConfig
from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.layers import Decoder, Encoder, slot_bias
from keras_transformer.layers.base import with_scores
from keras_transformer.layers.embedding import PositionalEncoding
from keras_transformer.layers.masks import padding_bias, padding_mask
from keras_transformer.layers.transformer import TransformerLayer
from keras_transformer.models.seq2seq import (
    Seq2SeqModel,
    add_coverage,
    register_architecture,
    start_coverage,
)


class TransformerModel(Seq2SeqModel):
    """Base of the Transformer and the Universal Transformer: positions and decoding.

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
        self.positions: PositionalEncoding | None = None
        if config.positions != "relative":
            self.positions = PositionalEncoding(
                config.model_dim,
                config.positions,
                config.first_position,
                config.max_positions,
                name="positions",
                dtype=self.dtype_policy,
            )
        if config.positions == "learned":
            self.max_length = config.max_positions - config.first_position

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        super().build(input_shape)
        if self.positions is not None:
            self.positions.build()
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
        table = None if self.positions is None else self.positions.table
        return super().embedding_tables() + ([] if table is None else [table])


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
        if self.positions is not None:
            x = self.positions(x) if time is None else x + self.positions.encode(time)
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
    names = inspect.signature(TransformerLayer.__init__).parameters
    is_relative = config.positions == "relative"
    return {name: getattr(config, name) for name in names if hasattr(config, name)} | {
        "key_dim": config.key_dim or head_dim,
        "value_dim": config.value_dim or head_dim,
        "max_relative_distance": config.max_relative_distance if is_relative else None,
    }


def mean_of_heads(attention: Tensor) -> Tensor:
    """Returns the mean of the heads of attention [B, H, T, S], float32 [B, T, S]."""
    return ops.mean(ops.cast(attention, "float32"), axis=1)
