"""A recurrent architecture of one's own, as a user would add it: a GRU that reads, one that writes.

Shapes: B batch, S source length, T target length, W hypotheses a sentence, D model dimension.
"""

import dataclasses

import keras
from keras import ops

from keras_transformer.config import PAD_ID, ModelConfig
from keras_transformer.decoding import DecodingState
from keras_transformer.models import Seq2SeqModel, register_architecture


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyConfig(ModelConfig):
    """Hyperparameters of `Toy`.

    Attributes:
        reverse_source: whether the source is read from its end.
    """

    architecture = "toy"

    reverse_source: bool = True


@register_architecture(ToyConfig)
class Toy(Seq2SeqModel):
    """The decoder starts from the encoder's last state and sees no more of the source."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.reader = self._recurrent("reader", go_backwards=config.reverse_source)
        self.writer = self._recurrent("writer", return_sequences=True)
        self.build()

    def build(self, input_shape=None):
        super().build(input_shape)
        for layer in (self.reader, self.writer):
            layer.build((None, None, self.config.model_dim))

    def call(self, inputs, training=None):
        x = self.target_dropout(self.target_embedding(inputs["target"]), training=training)
        state = self._read(inputs["source"], training)
        return self.logits(self.writer(x, initial_state=state, training=training))

    def encode(self, source, *, num_hypotheses=1, capacity=None, coverage=False):
        state = self._read(source, training=False)[:, None]  # [B, 1, D]
        return DecodingState(
            projection=self.output_projection(),
            recurrent_state=ops.repeat(state, num_hypotheses, axis=1),
        )

    def step(self, ids, state):
        shape = (-1, ids.shape[1], self.config.model_dim)
        x = self.target_embedding(ops.reshape(ids, (-1,)))  # [B * W, D]
        x, _ = self.writer.cell(x, [ops.reshape(state.recurrent_state, (-1, shape[2]))])
        x = ops.reshape(x, shape)  # [B, W, D]
        return self.logits(x, state.projection), state._replace(recurrent_state=x)

    def count_flops(self, source_length, target_length):
        products = 2 * 6 * self.config.model_dim**2  # three gates, of input and state
        tokens = source_length + target_length
        return tokens * products + self._projection_flops(target_length)

    def _recurrent(self, name, **options):
        size, dtype = self.config.model_dim, self.dtype_policy
        # Checkpoints find weights by their paths: a name of one's own stays the same.
        cell = keras.layers.GRUCell(
            size, name="cell", dtype=dtype, recurrent_initializer="glorot_uniform"
        )
        return keras.layers.RNN(cell, name=name, dtype=dtype, **options)

    def _read(self, source, training):
        """Returns the encoder's last state [B, D]."""
        x = self.source_dropout(self.source_embedding(source), training=training)
        return self.reader(x, mask=ops.not_equal(source, PAD_ID), training=training)
