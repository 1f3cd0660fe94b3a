"""The Universal Transformer with adaptive computation time (Dehghani et al. 2019).

`call` trains it, `encode` and `step` decode with it, `token_values` has the steps of each token.

Shapes: B batch, S source length, T target length, W hypotheses a sentence, D model dimension,
V target vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import UniversalConfig
from keras_transformer.decoding import Tensor
from keras_transformer.layers import UniversalDecoder, UniversalEncoder
from keras_transformer.layers.masks import padding_mask, predicting_mask
from keras_transformer.layers.universal import Halting, Steps, mix_attention
from keras_transformer.models.seq2seq import register_architecture
from keras_transformer.models.transformer import TransformerModel, layer_options, mean_of_heads
from keras_transformer.objectives import TRAINING_PREFIX


@register_architecture(UniversalConfig)
class UniversalTransformer(TransformerModel):
    """Encoder and decoder of one shared layer each, applied until each token halts.

    Args:
        config: the hyperparameters.

    Example:
        >>> model = UniversalTransformer(UniversalConfig.preset("tiny", vocabulary_size=100))
        >>> ids = np.array([[5, 6, 7, 3]])
        >>> model.token_values({"source": ids, "target": ids})["source_steps"].shape
        TensorShape([1, 4])

    Attributes:
        encoder_class, decoder_class: the stacks, for subclasses to replace.
    """

    config: UniversalConfig
    encoder_class: type[UniversalEncoder] = UniversalEncoder
    decoder_class: type[UniversalDecoder] = UniversalDecoder

    def __init__(self, config: UniversalConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        options = layer_options(config) | {
            "num_steps": config.num_steps,
            "adaptive_steps": config.adaptive_steps,
            "halting_epsilon": config.halting_epsilon,
            "halting_bias": config.halting_bias,
            "dtype": self.dtype_policy,
        }
        self.encoder = self.encoder_class(**options, name="encoder")
        self.decoder = self.decoder_class(**options, name="decoder")
        # Under JAX a model cannot update metrics inside `call`.
        has_metrics = config.adaptive_steps and keras.backend.backend() != "jax"
        self.ponder_metrics = {
            f"{side}_{name}": keras.metrics.Mean(f"{TRAINING_PREFIX}{side}_{name}")
            for side in ("source", "target")
            for name in (("steps", "remainders") if has_metrics else ())
        }
        self.build()

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        x, encoder_steps, decoder_steps = self._run(inputs, training)
        if training and self.config.adaptive_steps:
            self._ponder(inputs, encoder_steps.halting, decoder_steps.halting)
        return self.logits(x)

    def attention(self, inputs: dict[str, Tensor]) -> Tensor:
        """Returns the attention of target tokens to source tokens: the sum over their steps,
        weighted by halting, the mean of the heads, float32 [B, T, S]; inputs as in `call`.
        """
        _, _, steps = self._run(inputs, training=False)
        cross = [weights for _, weights in steps.outputs]
        return mean_of_heads(mix_attention(cross, steps.weights))

    def attention_weights(self, inputs: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        _, encoder_steps, decoder_steps = self._run(inputs, training=False)
        decoder, cross = map(list, zip(*decoder_steps.outputs, strict=True))
        encoder = [scores for (scores,) in encoder_steps.outputs]
        return {"encoder": encoder, "decoder": decoder, "cross": cross}

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

    def _position_signals(self, positions: Tensor) -> Tensor:
        """Returns [..., D] for positions [...]; zeros [1] if self-attention has positions."""
        if self.positions is None:
            return ops.zeros((1,), self.compute_dtype)
        return self.positions.encode(positions)

    def _encode(
        self, source: Tensor, source_mask: Tensor, training: bool | None
    ) -> tuple[Tensor, Steps]:
        """Returns the memory [B, S, D] and the encoder's steps."""
        return self.encoder(
            self.source_dropout(self.source_embedding(source), training=training),
            mask=source_mask,
            positions=self._position_signals(ops.arange(ops.shape(source)[1])),
            training=training,
            return_steps=True,
        )

    def _step(self, ids: Tensor, time: Tensor, **options: Any) -> tuple[Tensor, Any, Tensor]:
        return self.decoder.step(
            self.target_embedding(ids),
            time=time,
            positions=self._position_signals(time),
            is_active=predicting_mask(ids),
            **options,
        )

    def _run(self, inputs: dict[str, Tensor], training: bool | None) -> tuple[Tensor, Steps, Steps]:
        """Returns the decoder's outputs [B, T, D], and the steps of encoder and decoder."""
        source, target = inputs["source"], inputs["target"]
        source_mask = padding_mask(source)
        memory, encoder_steps = self._encode(source, source_mask, training)
        # The causal mask hides the target's padding too, which follows the real tokens.
        x, decoder_steps = self.decoder(
            self.target_dropout(self.target_embedding(target), training=training),
            memory,
            memory_mask=source_mask,
            positions=self._position_signals(ops.arange(ops.shape(target)[1])),
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
