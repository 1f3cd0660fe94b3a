"""Two constraints: one that looks at the tokens so far, one that remembers and has parameters.

    python examples/write_constraints.py

The model has random weights, so only the constraints show in what it writes.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_transformer import Constraint, Transformer, TransformerConfig
from keras_transformer.config import PAD_ID
from keras_transformer.search import OpenHypotheses


class NoTokenTwice(Constraint):
    """No token follows itself."""

    inputs = ()  # the same rule for all sentences

    def forbidden_ids(self, hypotheses: OpenHypotheses) -> tf.Tensor:
        last = tf.maximum(hypotheses.time - 1, 0)
        return hypotheses.tokens[:, :, last, None]  # [B, W, 1]; at first PAD, which forbids nothing


class AtMost(Constraint):
    """Even tokens occur at most `limits` [B] times in a translation."""

    def __init__(self, limits: tf.Tensor, even_ids: list[int]) -> None:
        self.inputs = limits  # [B]; methods read what they are given, not self.inputs
        self._even_ids = tf.constant(even_ids)

    def initial_state(self, inputs: tf.Tensor, num_hypotheses: int) -> tf.Tensor:
        return tf.zeros([tf.size(inputs), num_hypotheses], tf.int32)  # [B, W], tokens so far

    def update(self, state: tf.Tensor, ids: tf.Tensor, inputs: Any) -> tf.Tensor:
        is_even = tf.reduce_any(ids[:, :, None] == self._even_ids, axis=-1)  # [B, W]
        return state + tf.cast(is_even, tf.int32)

    def forbidden_ids(self, hypotheses: OpenHypotheses) -> tf.Tensor:
        is_full = hypotheses.state >= hypotheses.inputs[:, None]  # [B, W]
        return tf.where(is_full[:, :, None], self._even_ids, PAD_ID)  # [B, W, N]


def main() -> None:
    keras.utils.set_random_seed(1)
    model = Transformer(TransformerConfig.preset("tiny", vocabulary_size=12, num_layers=1))
    source = [[5, 6, 7, 3], [8, 9, 10, 3]]  # 3 is EOS
    limited = AtMost(tf.constant([0, 2]), even_ids=[4, 6, 8, 10])
    for constraints in ([], [NoTokenTwice()], [NoTokenTwice(), limited]):
        hypotheses = model.generate(source, max_length=6, constraints=constraints)
        print(hypotheses.ids[:, 0].numpy().tolist())


if __name__ == "__main__":
    main()
