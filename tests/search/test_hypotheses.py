"""How results are put together from the choices of each step."""

import numpy as np
import tensorflow as tf

from keras_transformer.search.hypotheses import make_hypotheses, new_history, trace_back
from keras_transformer.search.task import make_task


def test_hypotheses_are_traced_back_through_the_beams_that_they_continued():
    task = make_task(
        (), start_ids=tf.constant([2]), max_lengths=tf.constant([3]), length_penalty=1.0,
        longest=None, end_id=3, pad_id=0,
    )  # fmt: skip
    steps = [
        [[[0, 5], [0, 6]]],  # beams: 5 | 6
        [[[1, 7], [0, 8]]],  # 6 7 | 5 8
        [[[1, 9], [1, 4]]],  # 5 8 9 | 5 8 4
    ]
    history = new_history(task, 2, 2)
    for time, entries in enumerate(steps):
        history = history.write(time, tf.constant(entries))
    lengths, beams = tf.constant([[4, 3, 1, 1]]), tf.constant([[1, 0, 0, 0]])
    symbols = trace_back(history, lengths, beams, task)
    scores = tf.constant([[-1.0, -2.0, -3.0, -np.inf]])
    found = make_hypotheses(symbols, scores, lengths, task)
    np.testing.assert_array_equal(
        found.ids[0], [[5, 8, 4, 3], [6, 7, 3, 0], [3, 0, 0, 0], [0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(found.lengths[0], [4, 3, 1, 0])
    np.testing.assert_allclose(found.log_probs[0], [-1.5, -2 * 8 / 6, -3.0, -1e9])
    np.testing.assert_allclose(found.scores[0], [-1.0, -2.0, -3.0, -1e9])
