"""The Transformer as an ordinary Keras model (Vaswani et al. 2017, section 3).

`call` trains it, `encode` and `step` decode with it, `attention` shows what it looked at; all run
the same layers.

Shapes: B batch, S source length, T target length, W hypotheses a sentence, D model dimension,
V target vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import PAD_ID, TransformerConfig
from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.layers import Decoder, Encoder, PositionalEncoding
from keras_transformer.layers.attention import KeysValues
from keras_transformer.layers.masks import ancestor_bias, causal_bias, padding_bias
from keras_transformer.models.registry import register_architecture
from keras_transformer.models.seq2seq import Seq2SeqModel


@register_architecture(TransformerConfig)
class Transformer(Seq2SeqModel):
    """Encoder and decoder for sequence transduction.

    Args:
        config: the hyperparameters.

    Example:
        >>> model = Transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
        >>> ids = np.array([[5, 6, 7, 3]])
        >>> model({"source": ids, "target": ids}).shape
        TensorShape([1, 4, 100])
    """

    config: TransformerConfig

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.positions = PositionalEncoding(
            config.model_dim,
            config.positions,
            config.first_position,
            config.max_positions,
            name="positions",
            dtype=self.dtype_policy,
        )
        options = _layer_options(config) | {"dtype": self.dtype_policy}
        self.encoder = Encoder(**options, name="encoder")
        self.decoder = Decoder(**options, name="decoder")
        self.build()

    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        hidden = (None, None, self.config.model_dim)
        self.positions.build()
        self.encoder.build(hidden)
        self.decoder.build(hidden)

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        x, memory, bias, memory_bias = self._decoder_inputs(inputs, training)
        return self.logits(self.decoder(x, memory, bias, memory_bias, training=training))

    def attention(self, inputs: dict[str, Tensor], head: int | None = None) -> Tensor:
        """Returns the attention that the target's tokens pay to the source's in the last layer.

        Args:
            inputs: as in `call`.
            head: number of a head; None means the mean of all.

        Returns:
            float32 [B, T, S]; each row is a distribution over the real source tokens.
        """
        x, memory, bias, memory_bias = self._decoder_inputs(inputs, training=False)
        weights = ops.cast(self.decoder.attention(x, memory, bias, memory_bias), "float32")
        return ops.mean(weights, axis=1) if head is None else weights[:, head]

    def encode(
        self,
        source: Tensor,
        *,
        num_hypotheses: int = 1,
        capacity: int | None = None,
        coverage: bool = False,
    ) -> DecodingState:
        bias = padding_bias(source)
        batch, length = ops.shape(source)
        memory = self.decoder.project_memory(self._encode(source, bias, training=False))
        # Not the bias: TensorFlow's oneDNN remapper, fusing the sum of a product and a tensor
        # that comes from outside of a loop, takes the wrong output of that tensor's Switch, and
        # the whole search then gives empty tensors. A bias made within the loop is safe.
        covered = None
        if coverage:
            padding = ops.cast(ops.equal(source, PAD_ID), "float32")[:, None]
            covered = ops.broadcast_to(padding, (batch, num_hypotheses, length))
        return DecodingState(
            shared=self.output_projection(),
            context={"memory": memory, "source": source},
            kv_cache=self.decoder.empty_kv_cache(batch, (capacity or 0) * num_hypotheses),
            coverage=covered,
        )

    def step(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        num_hypotheses = ids.shape[1]
        time, ancestors = state.time, state.ancestors
        if ancestors is None:
            num_slots = ops.shape(state.kv_cache[0].keys)[2]
            time = num_slots // num_hypotheses  # a number where shapes are static, as under JAX
            indices = ops.arange(num_hypotheses, dtype="int32")[:, None]
            ancestors = ops.broadcast_to(indices, (ops.shape(ids)[0], num_hypotheses, time + 1))
        # Rows [B * W, D]: products of two matrices are quicker than those of larger tensors.
        x = self.target_embedding(ops.reshape(ids, (-1,))) + self.positions(
            ops.convert_to_tensor(time, "int32")
        )
        x, kv_cache, attention = self.decoder.step(
            x,
            state.context["memory"],
            padding_bias(state.context["source"]),
            state.kv_cache,
            time,
            ancestor_bias(ancestors, num_hypotheses),
        )
        coverage = state.coverage
        if coverage is not None:
            coverage = coverage + ops.mean(ops.cast(attention, "float32"), axis=1)
        logits = self.logits(x, state.shared)
        logits = ops.reshape(logits, (-1, num_hypotheses, logits.shape[-1]))
        return logits, state._replace(kv_cache=kv_cache, coverage=coverage)

    def count_flops(self, source_length: Any, target_length: Any) -> Any:
        """Returns the operations of a forward pass, see `Seq2SeqModel.count_flops`.

        N layers, H heads, keys K and values U wide. A source token is multiplied by the weights
        of self-attention and feed-forward and those of the memory's keys and values,
        N (H (2K + 2U) D + 2 F D) + N H (K + U) D; a target token by as many, query and output of
        the cross-attention in place of keys and values. Each pair of a query and a key adds
        N H (K + U), for scores and weighted sums.
        """
        config = self.config
        head_dim = config.model_dim // config.num_heads
        widths = (config.key_dim or head_dim) + (config.value_dim or head_dim)
        widths *= config.num_heads  # H (K + U)
        weights = (3 * widths + 2 * config.feed_forward_dim) * config.model_dim
        tokens = source_length + target_length
        pairs = source_length**2 + target_length**2 + source_length * target_length
        layers = 2 * config.num_layers * (tokens * weights + pairs * widths)
        return layers + super().count_flops(source_length, target_length)

    def embedding_tables(self) -> list[keras.Variable]:
        tables = super().embedding_tables()
        return tables if self.positions.table is None else [*tables, self.positions.table]

    def _encode(self, source: Tensor, bias: Tensor, training: bool | None) -> Tensor:
        x = self.source_embedding(source) + self.positions(ops.arange(ops.shape(source)[1]))
        x = self.source_dropout(x, training=training)
        return self.encoder(x, bias, training=training)

    def _decoder_inputs(
        self, inputs: dict[str, Tensor], training: bool | None
    ) -> tuple[Tensor, list[KeysValues], Tensor, Tensor]:
        """Returns the target's vectors, the memory, and the biases for both attentions."""
        source, target = inputs["source"], inputs["target"]
        memory_bias = padding_bias(source)
        memory = self.decoder.project_memory(self._encode(source, memory_bias, training))
        x = self.target_embedding(target)
        length = ops.shape(target)[1]
        x = self.target_dropout(x + self.positions(ops.arange(length)), training=training)
        # Padding follows the real tokens, so the causal bias alone hides it from them.
        return x, memory, causal_bias(length), memory_bias


def _layer_options(config: TransformerConfig) -> dict[str, Any]:
    head_dim = config.model_dim // config.num_heads
    return {
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "key_dim": config.key_dim or head_dim,
        "value_dim": config.value_dim or head_dim,
        "feed_forward_dim": config.feed_forward_dim,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "feed_forward_dropout": config.feed_forward_dropout,
        "attention_bias": config.attention_bias,
        "norm_position": config.norm_position,
        "norm_form": config.norm_form,
        "norm_epsilon": config.norm_epsilon,
    }
