"""An architecture from nothing: the mean of the source's embeddings in, a GRU that writes.

    python scripts/train.py --user_module=examples/gru_architecture.py --architecture=bag \
        --units=64 --run_dir=runs/bag --train_source=train.en --train_target=train.de ...

`call` reads whole targets for training; `encode` and `step` do the same one token at a time for
search. Letters of shapes: B sentences, S and T tokens, W hypotheses of a sentence, U units, D model
dimension, V vocabulary.
"""

import dataclasses

import keras
from keras import ops

from keras_transformer import ModelConfig, Seq2SeqModel, register_architecture
from keras_transformer.config import option
from keras_transformer.decoding import DecodingState


@dataclasses.dataclass(frozen=True, kw_only=True)
class BagConfig(ModelConfig):
    architecture = "bag"

    units: int = option(128, "Units of the GRU.")  # becomes the flag --units


@register_architecture(BagConfig)
class Bag(Seq2SeqModel):
    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)  # embeddings, output projection
        size, dtype = config.units, self.dtype_policy
        self.start = keras.layers.Dense(size, activation="tanh", name="start", dtype=dtype)
        cell = keras.layers.GRUCell(size, name="cell", dtype=dtype)
        self.writer = keras.layers.RNN(cell, return_sequences=True, name="writer", dtype=dtype)
        self.reduce = keras.layers.Dense(config.model_dim, name="reduce", dtype=dtype)
        self.build()

    def build(self, input_shape=None):
        super().build(input_shape)
        self.start.build((None, self.config.model_dim))
        self.writer.build((None, None, self.config.model_dim))
        self.reduce.build((None, None, self.config.units))

    def _read(self, source, training=False):  # [B, S] to the first state [B, U]
        x = self.source_dropout(self.source_embedding(source), training=training)
        is_token = ops.cast(ops.not_equal(source, 0), x.dtype)[:, :, None]
        count = ops.maximum(ops.sum(is_token, axis=1), 1)  # a batch may have rows of padding alone
        return self.start(ops.sum(x * is_token, axis=1) / count)

    def call(self, inputs, training=None):  # ids [B, S] and [B, T] to logits [B, T, V]
        x = self.target_dropout(self.target_embedding(inputs["target"]), training=training)
        x = self.writer(x, initial_state=self._read(inputs["source"], training), training=training)
        return self.logits(self.reduce(x))

    def encode(self, source, *, num_hypotheses=1, capacity=None, coverage=False):
        state = ops.repeat(self._read(source)[:, None], num_hypotheses, axis=1)  # [B, W, U]
        return DecodingState(projection=self.output_projection(), recurrent_state=state)

    def step(self, ids, state):  # the newest tokens [B, W] to logits [B, W, V]
        width = ids.shape[1]
        x = self.target_embedding(ops.reshape(ids, (-1,)))  # [B * W, D]
        old = ops.reshape(state.recurrent_state, (-1, self.config.units))
        x, _ = self.writer.cell(x, [old])
        x = ops.reshape(x, (-1, width, self.config.units))
        return self.logits(self.reduce(x), state.projection), state._replace(recurrent_state=x)
