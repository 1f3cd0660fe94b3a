"""How results are put together at the end."""

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import DecodingState
from keras_transformer.search.beam import Finished, make_hypotheses, prepare_search


def test_end_and_padding_follow_the_tokens_and_scores_are_finite():
    spec, _, _ = prepare_search(
        None, DecodingState(), 4, bos_ids=tf.constant([2]), max_lengths=tf.constant([3]),
        length_penalty=1.0,
    )  # fmt: skip
    tokens = tf.constant([[[5, 8, 4, 0], [6, 7, 0, 0], [9, 9, 9, 9], [5, 5, 5, 5]]])
    scores = tf.constant([[-1.0, -2.0, -3.0, -np.inf]])
    finished = Finished(scores, 2 * scores, tokens, tf.constant([[4, 3, 1, 1]]))
    found = make_hypotheses(finished, spec)
    np.testing.assert_array_equal(
        found.ids[0], [[5, 8, 4, 3], [6, 7, 3, 0], [3, 0, 0, 0], [0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(found.lengths[0], [4, 3, 1, 0])
    np.testing.assert_allclose(found.log_probs[0], [-2.0, -4.0, -6.0, -1e9])
    np.testing.assert_allclose(found.scores[0], [-1.0, -2.0, -3.0, -1e9])
