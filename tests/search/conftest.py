"""A model for tests of search: logits from a random table, found by the symbols read so far.

Also lets the tests of this folder import `plain_search`, which they share.
"""

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import DecodingState

START = 2

sys.path.insert(0, str(pathlib.Path(__file__).parent))


class TableModel:
    """Gives each prefix of each sentence its own random logits.

    The cache holds the prefix itself and grows at every step, so a cache that search reorders
    wrongly gives wrong logits. It holds the prefix a second time along another axis, and a number.
    The history holds the symbols of all hypotheses, where their ancestors must lead to the prefix.

    Where sources have a length, each prefix has its own attention too, and its sum is the coverage;
    the last symbol of every second source is padding.
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
        """Returns the state before START for a batch of sentence numbers [B]."""
        shape = (tf.size(sentences), num_hypotheses)
        cache = {
            "prefix": tf.zeros([*shape, 0], tf.int32),
            "deep": [tf.zeros([*shape, 2, 0], tf.int32), tf.zeros(shape, tf.int32)],
        }
        coverage = tf.gather(self.padding, sentences)[:, None]  # [B, 1, S]
        coverage = tf.repeat(coverage, num_hypotheses, axis=1)
        return DecodingState(
            shared=(tf.constant(self.table), tf.constant(self.attention)),
            context={"sentence": tf.convert_to_tensor(sentences)},
            cache=cache,
            coverage=coverage if self.attention.shape[2] else None,
            history=tf.zeros([shape[0], 0, num_hypotheses], tf.int32),
        )

    def step(self, ids: Any, state: DecodingState) -> tuple[Any, DecodingState]:
        self.calls.append(tuple(ids.shape))
        deep, count = state.cache["deep"]
        prefix = tf.concat([state.cache["prefix"], ids[..., None]], axis=-1)  # [B, W, t]
        deep = tf.concat([deep, tf.stack([ids, -ids], axis=-1)[..., None]], axis=-1)
        history = tf.concat([state.history, ids[:, None]], axis=1)  # [B, t, W]
        ancestry = tf.gather(history, tf.transpose(state.ancestors, [0, 2, 1]), batch_dims=2)
        tf.debugging.assert_equal(tf.transpose(ancestry, [0, 2, 1]), prefix)
        tf.debugging.assert_equal(deep[:, :, 1], -prefix)
        tf.debugging.assert_equal(count, state.time)
        weights = 7 ** (tf.range(tf.shape(prefix)[2]) % 5) + tf.range(tf.shape(prefix)[2])
        row = tf.reduce_sum(prefix * weights, axis=-1) % self.rows  # [B, W]
        logits, attention = (
            tf.gather(tf.gather(table, state.context["sentence"]), row, batch_dims=1)
            for table in state.shared
        )
        if state.coverage is not None:
            state = state._replace(coverage=state.coverage + attention)
        state = state._replace(cache={"prefix": prefix, "deep": [deep, count + 1]}, history=history)
        return tf.cast(logits, self.dtype), state

    def logits(self, sentence: int, symbols: tuple[int, ...]) -> np.ndarray:
        """Returns float64 logits [V] of the symbol after START and `symbols`."""
        return self.table[sentence, self._row(symbols)].astype(np.float64)

    def coverage(self, sentence: int, symbols: tuple[int, ...]) -> np.ndarray:
        """Returns the attention [S] that was paid until the last of `symbols` was known."""
        rows = [self._row(symbols[:length]) for length in range(len(symbols))]
        return self.padding[sentence] + self.attention[sentence, rows].sum(axis=0, dtype="d")

    def _row(self, symbols: tuple[int, ...]) -> int:
        prefix = (START, *symbols)
        return sum(symbol * (7 ** (i % 5) + i) for i, symbol in enumerate(prefix)) % self.rows


@pytest.fixture
def table_model() -> Callable[..., TableModel]:
    return TableModel
