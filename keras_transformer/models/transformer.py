"""The Transformer as an ordinary Keras model (Vaswani et al. 2017, section 3).

`call` trains it, `encode` and `step` decode with it, `attention` and `attentions` show what it
looked at; all run the same layers.

Shapes: B batch, S source length, T target length, W hypotheses a sentence, D model dimension,
V target vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import EOS_ID, PAD_ID, TransformerConfig
from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.layers import Decoder, Encoder, LayerNormalization
from keras_transformer.layers.attention import visible_ancestors
from keras_transformer.layers.base import with_scores
from keras_transformer.layers.masks import (
    ancestor_bias,
    ancestors_of,
    causal_bias,
    padding_bias,
)
from keras_transformer.models.seq2seq import (
    Seq2SeqModel,
    add_coverage,
    draw_offset,
    layer_flops,
    layer_options,
    make_position_offset,
    make_positions,
    register_architecture,
    select_head,
    start_coverage,
)


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
        self.positions = make_positions(config, self.dtype_policy)
        self.position_offset = make_position_offset(config)
        self.source_norm = self.target_norm = None
        if config.embedding_norm:
            self.source_norm, self.target_norm = (
                LayerNormalization(
                    config.norm_epsilon, config.norm_form, name=name, dtype=self.dtype_policy
                )
                for name in ("source_norm", "target_norm")
            )
        options = layer_options(config) | {"dtype": self.dtype_policy}
        self.encoder = Encoder(
            num_layers=config.num_layers,
            attention_window=config.encoder_attention_window,
            **options,
            name="encoder",
        )
        self.decoder = Decoder(
            num_layers=config.decoder_layers or config.num_layers,
            attention_window=config.decoder_attention_window,
            **options,
            name="decoder",
        )
        self.build()

    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        hidden = (None, None, self.config.model_dim)
        if self.positions is not None:
            self.positions.build()
        for norm in (self.source_norm, self.target_norm):
            if norm is not None:
                norm.build(hidden)
        self.encoder.build(hidden)
        self.decoder.build(hidden)

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        return self.logits(self._run(inputs, training)[0])

    def attention(self, inputs: dict[str, Tensor], head: int | None = None) -> Tensor:
        """Returns the attention that the target's tokens pay to the source's in the last layer.

        Args:
            inputs: as in `call`.
            head: number of a head; None means the mean of all.

        Returns:
            float32 [B, T, S]; each row is a distribution over the real source tokens.
        """
        return select_head(self.attention_weights(inputs)["cross"][-1], head)

    def attention_weights(self, inputs: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        return self._run(inputs, training=False, scores=True)[1]

    def encode(
        self,
        source: Tensor,
        *,
        num_hypotheses: int = 1,
        capacity: int | None = None,
        coverage: bool = False,
    ) -> DecodingState:
        source = self.visible_source(source)
        bias = padding_bias(source)
        batch = ops.shape(source)[0]
        memory = self.decoder.project_memory(self._encode(source, bias, 0, training=False)[0])
        # Not the bias: TensorFlow's oneDNN remapper, fusing the sum of a product and a tensor
        # that comes from outside of a loop, takes the wrong output of that tensor's Switch, and
        # the whole search then gives empty tensors. A bias made within the loop is safe.
        return DecodingState(
            projection=self.output_projection(),
            context={"memory": memory, "source": source},
            kv_cache=self.decoder.empty_kv_cache(batch, (capacity or 0) * num_hypotheses),
            coverage=start_coverage(source, num_hypotheses) if coverage else None,
        )

    def step(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        num_hypotheses = ids.shape[1]
        time, ancestors = ancestors_of(ids, state)
        # Rows [B * W, D]: products of two matrices are quicker than those of larger tensors.
        time = ops.convert_to_tensor(time, "int32")
        x = self._embed("target", ops.reshape(ids, (-1,)), time)
        of_window = (state.kv_cache[0], time, self.config.decoder_attention_window)
        x, kv_cache, attention = self.decoder.step(
            x,
            state.context["memory"],
            padding_bias(state.context["source"]),
            state.kv_cache,
            time,
            ancestor_bias(visible_ancestors(ancestors, *of_window), num_hypotheses),
        )
        coverage = add_coverage(state.coverage, attention)
        logits = self.logits(x, state.projection)
        logits = ops.reshape(logits, (-1, num_hypotheses, ops.shape(logits)[-1]))
        return logits, state._replace(kv_cache=kv_cache, coverage=coverage, time=time + 1)

    def visible_source(self, source: Tensor) -> Tensor:
        return source if self.config.source_eos else ops.where(source == EOS_ID, PAD_ID, source)

    def count_flops(self, source_length: Any, target_length: Any) -> Any:
        """Returns the operations of a forward pass, see `Seq2SeqModel.count_flops`.

        Those of `layer_flops` in each layer; each layer of the decoder projects the memory.
        """
        config = self.config
        windows = config.encoder_attention_window, config.decoder_attention_window
        encoder, decoder, memory = layer_flops(config, source_length, target_length, windows)
        decoder_layers = config.decoder_layers or config.num_layers
        layers = config.num_layers * encoder + decoder_layers * (decoder + memory)
        return layers + super().count_flops(source_length, target_length)

    def embedding_tables(self) -> list[keras.Variable]:
        tables = super().embedding_tables()
        table = getattr(self.positions, "table", None)
        return tables if table is None else [*tables, table]

    def _embed(self, side: str, ids: Tensor, positions: Tensor) -> Tensor:
        x = getattr(self, f"{side}_embedding")(ids)
        if self.positions is not None:
            x = x + self.positions(positions)
        return getattr(self, f"{side}_norm")(x) if self.config.embedding_norm else x

    def _encode(
        self,
        source: Tensor,
        bias: Tensor,
        offset: Tensor | int,
        training: bool | None,
        scores: bool = False,
    ) -> tuple[Tensor, list[Tensor] | None]:
        """Returns the memory [B, S, D] and, if asked for, each layer's attention [B, H, S, S]."""
        x = self._embed("source", source, ops.arange(ops.shape(source)[1]) + offset)
        x = self.source_dropout(x, training=training)
        return with_scores(self.encoder(x, bias, training=training, return_attention_scores=scores))

    def _run(
        self, inputs: dict[str, Tensor], training: bool | None, scores: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        """Returns the decoder's outputs [B, T, D] and, if asked for, `attention_weights`."""
        source, target = self.visible_source(inputs["source"]), inputs["target"]
        memory_bias = padding_bias(source)
        offset = draw_offset(self.position_offset, source, training)
        memory, encoder_weights = self._encode(source, memory_bias, offset, training, scores)
        length = ops.shape(target)[1]
        x = self._embed("target", target, ops.arange(length) + offset)
        x = self.target_dropout(x, training=training)
        is_windowed = self.config.decoder_attention_window is not None
        x, *weights = with_scores(
            self.decoder(
                x,
                memory,
                # Hides padding too, which follows the real tokens; a window is causal by itself.
                None if is_windowed else causal_bias(length),
                memory_bias,
                training=training,
                return_attention_scores=scores,
            )
        )
        return x, {"encoder": encoder_weights, "decoder": weights[0], "cross": weights[-1]}
