"""Which candidates become the next beam."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.search.beam import spread_over_banks

INF = np.inf


def spread(log_probs, banks, count):
    found = spread_over_banks(
        tf.constant([log_probs], tf.float32), tf.constant([banks], tf.int32), count
    )
    assert found.dtype == tf.int32
    return found.numpy()[0].tolist()


@pytest.mark.parametrize(
    "log_probs, banks, count, expected",
    [
        # The best of banks 2, 1 and 0, then the second best of 2 and 0.
        ([-1, -2, -3, -4, -5], [0, 0, 1, 2, 2], 5, [3, 2, 0, 4, 1]),
        ([-1, -2, -3, -4, -5], [0, 0, 1, 2, 2], 2, [3, 2]),
        ([-3, -1, -2], [0, 0, 0], 3, [1, 2, 0]),
        ([-1, -1, -1], [0, 0, 0], 3, [0, 1, 2]),  # the first among equals
        ([-INF, -9, -1, -INF], [5, 0, 0, 5], 4, [2, 1, 0, 3]),  # impossible ones last
        ([-INF, -9, -1, -INF], [5, 0, 0, 5], 2, [2, 1]),
    ],
)
def test_every_bank_gets_its_share_of_places(log_probs, banks, count, expected):
    assert spread(log_probs, banks, count) == expected


@pytest.mark.parametrize("seed", range(5))
def test_places_are_those_of_a_plain_loop(seed):
    random = np.random.default_rng(seed)
    log_probs = np.round(random.standard_normal(20), 1)
    log_probs[random.integers(0, 20, 4)] = -INF
    banks = random.integers(0, 4, 20)
    queues = {
        bank: sorted(
            (i for i in range(20) if banks[i] == bank and log_probs[i] > -INF),
            key=lambda i: (-log_probs[i], i),
        )
        for bank in (3, 2, 1, 0)
    }
    expected = []
    while any(queues.values()):
        expected += [queue.pop(0) for queue in queues.values() if queue]
    expected += [i for i in range(20) if log_probs[i] == -INF]
    assert spread(log_probs, banks, 20) == expected
