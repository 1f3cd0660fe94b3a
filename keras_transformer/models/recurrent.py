"""LSTM encoder-decoder with attention (Bahdanau et al. 2015; Luong et al. 2015; See et al. 2017).

Shapes: B batch, S source length, T target length, W hypotheses of a sentence, D model dimension,
U units of an LSTM, V target vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import RecurrentConfig
from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.layers import LSTMState, RecurrentDecoder, RecurrentEncoder, RecurrentMemory
from keras_transformer.layers.kv_cache import ancestor_mask, empty_slots, slot_ancestors
from keras_transformer.layers.masks import padding_mask
from keras_transformer.models.seq2seq import (
    Seq2SeqModel,
    add_coverage,
    register_architecture,
    start_coverage,
)


@register_architecture(RecurrentConfig)
class RecurrentModel(Seq2SeqModel):
    """A bidirectional LSTM encoder, and an LSTM decoder that attends to it.

    Args:
        config: the hyperparameters.

    Example:
        >>> model = RecurrentModel(RecurrentConfig.preset("tiny", vocabulary_size=100))
        >>> ids = np.array([[5, 6, 7, 3]])
        >>> model({"source": ids, "target": ids}).shape
        TensorShape([1, 4, 100])
    """

    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        options = {
            "num_layers": config.num_layers,
            "units": config.hidden_dim,
            "dropout": config.dropout,
            "dtype": self.dtype_policy,
        }
        self.encoder = RecurrentEncoder(**options, name="encoder")
        self.decoder = RecurrentDecoder(
            **options,
            attention_dim=config.attention_dim,
            intra_decoder=config.intra_decoder_attention,
            name="decoder",
        )
        self.build()

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        super().build(input_shape)
        self.encoder.build((None, None, self.config.model_dim))
        self.decoder.build((None, None, self.config.model_dim))

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        x = self.decoder(*self._decoder_inputs(inputs, training), training=training)
        return self.logits(x)

    def attention(self, inputs: dict[str, Tensor]) -> Tensor:
        """Returns the attention of the target's tokens to the source's, float32 [B, T, S].

        Each row is a distribution over the real source tokens; inputs as in `call`.
        """
        return self.attention_weights(inputs)["cross"][0][:, 0]

    def attention_weights(self, inputs: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        decoder_inputs = self._decoder_inputs(inputs, training=False)
        _, cross, past = self.decoder(*decoder_inputs, return_attention_scores=True)
        one_head = {"cross": [cross[:, None]]}
        return one_head if past is None else one_head | {"decoder": [past[:, None]]}

    def encode(
        self,
        source: Tensor,
        *,
        num_hypotheses: int = 1,
        capacity: int | None = None,
        coverage: bool = False,
    ) -> DecodingState:
        memory, states = self._encode(source, training=False)
        history: Any = ()
        if self.config.intra_decoder_attention:
            num_slots, units = (capacity or 0) * num_hypotheses, self.config.hidden_dim
            history = empty_slots(ops.shape(source)[0], 1, num_slots, units, self.compute_dtype)

        def for_each_hypothesis(leaf: Tensor) -> Tensor:
            return ops.repeat(leaf[:, None], num_hypotheses, axis=1)

        return DecodingState(
            projection=self.output_projection(),
            context=memory,
            recurrent_state=keras.tree.map_structure(for_each_hypothesis, states),
            kv_cache=history,
            coverage=start_coverage(source, num_hypotheses) if coverage else None,
        )

    def step(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        num_hypotheses, past_mask = ids.shape[1], None
        time = ops.convert_to_tensor(state.time, "int32")
        if self.config.intra_decoder_attention:
            ancestors = slot_ancestors(ids, state, state.kv_cache)
            is_newest = ops.equal(ops.arange(ops.shape(ancestors)[2]), time)
            # A state does not attend to itself: -1 hides its slot.
            past_mask = ancestor_mask(ops.where(is_newest, -1, ancestors), num_hypotheses)
        x, weights, rows, history = self.decoder.step(
            self.target_embedding(ids),
            state.context,
            _reshape(state.recurrent_state, -1),
            state.kv_cache,
            time,
            past_mask,
        )
        return self.logits(x, state.projection), state._replace(
            recurrent_state=_reshape(rows, -1, num_hypotheses),
            kv_cache=history,
            coverage=add_coverage(state.coverage, weights[:, None]),
            time=time + 1,
        )

    def _encode(
        self, source: Tensor, training: bool | None
    ) -> tuple[RecurrentMemory, tuple[LSTMState, ...]]:
        """Returns the memory, and the decoder's states before the first token."""
        x = self.source_dropout(self.source_embedding(source), training=training)
        mask = padding_mask(source)
        values, states = self.encoder(x, mask, training=training, return_state=True)
        return self.decoder.project_memory(values, mask), states

    def _decoder_inputs(
        self, inputs: dict[str, Tensor], training: bool | None
    ) -> tuple[Tensor, RecurrentMemory, tuple[LSTMState, ...]]:
        """Returns the target's vectors [B, T, D], the memory and the first states."""
        x = self.target_dropout(self.target_embedding(inputs["target"]), training=training)
        return x, *self._encode(inputs["source"], training)


def _reshape(states: tuple[LSTMState, ...], *rows: int) -> tuple[LSTMState, ...]:
    """Returns the states with other leading dimensions; each leaf keeps its last."""
    result: tuple[LSTMState, ...] = keras.tree.map_structure(
        lambda leaf: ops.reshape(leaf, (*rows, ops.shape(leaf)[-1])), states
    )
    return result
