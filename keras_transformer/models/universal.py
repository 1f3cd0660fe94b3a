"""The Universal Transformer with adaptive computation time (Dehghani et al. 2019).

`call` trains it, `encode` and `step` decode with it, `token_values` has the steps of each token.

Shapes: B batch, S source length, T target length, W hypotheses a sentence, D model dimension,
V target vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import UniversalConfig
from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.layers import UniversalDecoder, UniversalEncoder
from keras_transformer.layers.masks import (
    ancestor_bias,
    ancestors_of,
    padding_bias,
    padding_mask,
    predicting_mask,
)
from keras_transformer.layers.universal import Halting, Steps, mix_attention
from keras_transformer.models.seq2seq import (
    Seq2SeqModel,
    add_coverage,
    register_architecture,
    start_coverage,
)
from keras_transformer.models.transformer import (
    draw_offset,
    layer_flops,
    layer_options,
    make_position_offset,
    make_positions,
    select_head,
)
from keras_transformer.objectives import TRAINING_PREFIX


@register_architecture(UniversalConfig)
class UniversalTransformer(Seq2SeqModel):
    """Encoder and decoder of one shared layer each, applied until each token halts.

    Args:
        config: the hyperparameters.

    Example:
        >>> model = UniversalTransformer(UniversalConfig.preset("tiny", vocabulary_size=100))
        >>> ids = np.array([[5, 6, 7, 3]])
        >>> model.token_values({"source": ids, "target": ids})["source_steps"].shape
        TensorShape([1, 4])
    """

    config: UniversalConfig

    def __init__(self, config: UniversalConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.positions = make_positions(config, self.dtype_policy)
        self.position_offset = make_position_offset(config)
        options = layer_options(config) | {
            "num_steps": config.num_steps,
            "adaptive_steps": config.adaptive_steps,
            "halting_output": config.halting_output,
            "halting_epsilon": config.halting_epsilon,
            "halting_bias": config.halting_bias,
            "dtype": self.dtype_policy,
        }
        self.encoder = UniversalEncoder(**options, name="encoder")
        self.decoder = UniversalDecoder(**options, name="decoder")
        # Under JAX a model cannot update metrics inside `call`.
        has_metrics = config.adaptive_steps and keras.backend.backend() != "jax"
        self.ponder_metrics = {
            f"{side}_{name}": keras.metrics.Mean(f"{TRAINING_PREFIX}{side}_{name}")
            for side in ("source", "target")
            for name in (("steps", "remainders") if has_metrics else ())
        }
        self.build()

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        super().build(input_shape)
        hidden = (None, None, self.config.model_dim)
        if self.positions is not None:
            self.positions.build()
        self.encoder.build(hidden)
        self.decoder.build(hidden)

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        x, encoder_steps, decoder_steps = self._run(inputs, training)
        if training and self.config.adaptive_steps:
            self._ponder(inputs, encoder_steps.halting, decoder_steps.halting)
        return self.logits(x)

    def attention(self, inputs: dict[str, Tensor], head: int | None = None) -> Tensor:
        """Returns the attention of target tokens to source tokens, a sum over their steps with the
        weights that halting gives these.

        Args:
            inputs: as in `call`.
            head: index of a head; None for the mean of all.

        Returns:
            float32 [B, T, S]; each row is a distribution over the real source tokens.
        """
        _, _, steps = self._run(inputs, training=False)
        cross = [weights for _, weights in steps.outputs]
        return select_head(mix_attention(cross, steps.weights), head)

    def attention_weights(self, inputs: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        _, encoder_steps, decoder_steps = self._run(inputs, training=False)
        of_target, cross = zip(*decoder_steps.outputs, strict=True)
        return {"encoder": encoder_steps.outputs, "decoder": list(of_target), "cross": list(cross)}

    def token_values(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the number of steps of each token and its remainder, see `Halting`.

        Args:
            inputs: as in `call`.

        Returns:
            float32 "source_steps" and "source_remainders" [B, S], "target_steps" and
            "target_remainders" [B, T]; 0 for padding, and for EOS, which predicts nothing.
        """
        _, *stacks = self._run(inputs, training=False)
        return {
            f"{side}_{name}": getattr(steps.halting, name)
            for side, steps in zip(("source", "target"), stacks, strict=True)
            for name in ("steps", "remainders")
        }

    def encode(
        self,
        source: Tensor,
        *,
        num_hypotheses: int = 1,
        capacity: int | None = None,
        coverage: bool = False,
    ) -> DecodingState:
        source = ops.convert_to_tensor(source, "int32")
        memory, _ = self._encode(source, padding_mask(source), 0, training=False)
        batch = ops.shape(source)[0]
        return DecodingState(
            projection=self.output_projection(),
            # Each step computes its bias from the source: see `Transformer.encode`.
            context={"memory": self.decoder.project_memory(memory), "source": source},
            kv_cache=self.decoder.empty_kv_cache(batch, (capacity or 0) * num_hypotheses),
            coverage=start_coverage(source, num_hypotheses) if coverage else None,
        )

    def step(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        ids = ops.convert_to_tensor(ids, "int32")
        num_hypotheses = ids.shape[1]
        time, ancestors = ancestors_of(ids, state)
        rows = ops.reshape(ids, (-1,))
        x, kv_cache, attention = self.decoder.step(
            self.target_embedding(rows),
            state.context["memory"],
            state.kv_cache,
            time,
            ancestor_bias(ancestors, num_hypotheses),
            padding_bias(state.context["source"]),
            positions=self._position_signals(ops.convert_to_tensor(time, "int32")),
            is_active=predicting_mask(rows),
        )
        coverage = add_coverage(state.coverage, attention)
        logits = self.logits(x, state.projection)  # [B * W, V]
        logits = ops.reshape(logits, (-1, num_hypotheses, ops.shape(logits)[-1]))
        return logits, state._replace(kv_cache=kv_cache, coverage=coverage)

    def count_flops(self, source_length: Any, target_length: Any) -> Any:
        """Returns the operations of a forward pass, see `Seq2SeqModel.count_flops`.

        Those of `Transformer.count_flops` with `num_steps` layers: also with adaptive steps, since
        the layer then computes tokens that have halted and drops the result. The memory is
        projected once. A halting unit multiplies each token by a vector.
        """
        config = self.config
        encoder, decoder, memory = layer_flops(config, source_length, target_length)
        halting = 2 * (source_length + target_length) * config.model_dim * config.adaptive_steps
        layers = config.num_steps * (encoder + decoder + halting) + memory
        return layers + super().count_flops(source_length, target_length)

    def embedding_tables(self) -> list[keras.Variable]:
        tables = super().embedding_tables()
        table = getattr(self.positions, "table", None)
        return tables if table is None else [*tables, table]

    def _position_signals(self, positions: Tensor) -> Tensor:
        """Returns [..., D] for positions [...]; zeros [1] if self-attention has positions."""
        none = ops.zeros((1,), self.compute_dtype)
        return none if self.positions is None else self.positions.encode(positions)

    def _encode(
        self, source: Tensor, source_mask: Tensor, offset: Tensor | int, training: bool | None
    ) -> tuple[Tensor, Steps]:
        """Returns the memory [B, S, D] and the encoder's steps."""
        return self.encoder(
            self.source_dropout(self.source_embedding(source), training=training),
            padding_mask=source_mask,
            positions=self._position_signals(ops.arange(ops.shape(source)[1]) + offset),
            training=training,
            return_steps=True,
        )

    def _run(self, inputs: dict[str, Tensor], training: bool | None) -> tuple[Tensor, Steps, Steps]:
        """Returns the decoder's outputs [B, T, D], and the steps of encoder and decoder."""
        source, target = inputs["source"], inputs["target"]
        source_mask = padding_mask(source)
        offset = draw_offset(self.position_offset, source, training)
        memory, encoder_steps = self._encode(source, source_mask, offset, training)
        # The causal mask hides the target's padding too, which follows the real tokens.
        x, decoder_steps = self.decoder(
            self.target_dropout(self.target_embedding(target), training=training),
            memory,
            memory_padding_mask=source_mask,
            positions=self._position_signals(ops.arange(ops.shape(target)[1]) + offset),
            is_active=_real_tokens(inputs)["target"],
            training=training,
            return_steps=True,
        )
        return x, encoder_steps, decoder_steps

    def _ponder(self, inputs: dict[str, Tensor], source: Halting, target: Halting) -> None:
        """Adds the ponder cost, steps plus remainders, to the loss, and updates their metrics.

        The training step weights the loss of each part of a batch by its target tokens: divided by
        them, the cost becomes a sum over the whole batch, like the cross-entropy.
        """
        cost, masks = 0.0, _real_tokens(inputs)
        num_targets = ops.maximum(ops.sum(ops.cast(masks["target"], "float32")), 1.0)
        for side, halting in (("source", source), ("target", target)):
            is_real = ops.cast(masks[side], "float32")
            for name, values in (("steps", halting.steps), ("remainders", halting.remainders)):
                cost = cost + ops.sum(values)
                if metric := self.ponder_metrics.get(f"{side}_{name}"):
                    metric.update_state(ops.reshape(values, (-1,)), ops.reshape(is_real, (-1,)))
        self.add_loss(self.config.ponder_weight * cost / num_targets)


def _real_tokens(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the masks of both sides.

    A row that only fills a batch has no source, and nothing to predict after its BOS.
    """
    source, target = padding_mask(inputs["source"]), predicting_mask(inputs["target"])
    return {"source": source, "target": target & ops.any(source, axis=1, keepdims=True)}
