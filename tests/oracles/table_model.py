"""A model for tests of search: logits from a random table, found by the tokens read so far."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID
from keras_transformer.decoding import DecodingState


class TableModel:
    """Gives each prefix of each sentence its own random logits.

    The recurrent state holds the prefix itself and grows at every step, so one that search reorders
    wrongly gives wrong logits. It holds the prefix a second time along another axis, and a number.
    The kv_cache holds the tokens of all hypotheses, where their ancestors must lead to the prefix.

    Where sources have a length, each prefix has its own attention too, and its sum is the coverage;
    the last token of every second source is padding.
    """

    rows = 499

    def __init__(
        self,
        *,
        sentences: int,
        vocabulary_size: int,
        seed: int,
        end_bias: float = 0.0,
        source_length: int = 0,
    ):
        random = np.random.default_rng(seed)
        table = 2 * random.standard_normal((sentences, self.rows, vocabulary_size))
        table[:, :, 3] += end_bias
        self.table = table.astype(np.float32)
        attention = random.dirichlet(np.ones(source_length), (sentences, self.rows))
        self.padding = np.zeros((sentences, source_length), np.float32)
        self.padding[1::2, -1:] = 1.0
        self.attention = (attention * (1 - self.padding)[:, None]).astype(np.float32)
        self.calls: list[tuple[int | None, ...]] = []  # static shapes of ids
        self.dtype = tf.float32

    def state(self, sentences: Any, num_hypotheses: int = 1) -> DecodingState:
        """Returns the state before BOS for a batch of sentence numbers [B]."""
        shape = (tf.size(sentences), num_hypotheses)
        recurrent_state = {
            "prefix": tf.zeros([*shape, 0], tf.int32),
            "deep": [tf.zeros([*shape, 2, 0], tf.int32), tf.zeros(shape, tf.int32)],
        }
        coverage = tf.gather(self.padding, sentences)[:, None]  # [B, 1, S]
        coverage = tf.repeat(coverage, num_hypotheses, axis=1)
        return DecodingState(
            projection=(tf.constant(self.table), tf.constant(self.attention)),
            context={"sentence": tf.convert_to_tensor(sentences)},
            recurrent_state=recurrent_state,
            coverage=coverage if self.attention.shape[2] else None,
            kv_cache=tf.zeros([shape[0], 0, num_hypotheses], tf.int32),
        )

    def step(self, ids: Any, state: DecodingState) -> tuple[Any, DecodingState]:
        self.calls.append(tuple(ids.shape))
        deep, count = state.recurrent_state["deep"]
        prefix = tf.concat([state.recurrent_state["prefix"], ids[..., None]], axis=-1)  # [B, W, t]
        deep = tf.concat([deep, tf.stack([ids, -ids], axis=-1)[..., None]], axis=-1)
        kv_cache = tf.concat([state.kv_cache, ids[:, None]], axis=1)  # [B, t, W]
        ancestry = tf.gather(kv_cache, tf.transpose(state.ancestors, [0, 2, 1]), batch_dims=2)
        tf.debugging.assert_equal(tf.transpose(ancestry, [0, 2, 1]), prefix)
        tf.debugging.assert_equal(deep[:, :, 1], -prefix)
        tf.debugging.assert_equal(count, state.time)
        weights = 7 ** (tf.range(tf.shape(prefix)[2]) % 5) + tf.range(tf.shape(prefix)[2])
        row = tf.reduce_sum(prefix * weights, axis=-1) % self.rows  # [B, W]
        logits, attention = (
            tf.gather(tf.gather(table, state.context["sentence"]), row, batch_dims=1)
            for table in state.projection
        )
        if state.coverage is not None:
            state = state._replace(coverage=state.coverage + attention)
        state = state._replace(
            recurrent_state={"prefix": prefix, "deep": [deep, count + 1]}, kv_cache=kv_cache
        )
        return tf.cast(logits, self.dtype), state

    def logits(self, sentence: int, tokens: tuple[int, ...]) -> np.ndarray:
        """Returns float64 logits [V] of the token after BOS and `tokens`."""
        return self.table[sentence, self._row(tokens)].astype(np.float64)

    def coverage(self, sentence: int, tokens: tuple[int, ...]) -> np.ndarray:
        """Returns the attention [S] that was paid until the last of `tokens` was known."""
        rows = [self._row(tokens[:length]) for length in range(len(tokens))]
        return self.padding[sentence] + self.attention[sentence, rows].sum(axis=0, dtype="d")

    def _row(self, tokens: tuple[int, ...]) -> int:
        prefix = (BOS_ID, *tokens)
        return sum(token * (7 ** (i % 5) + i) for i, token in enumerate(prefix)) % self.rows
