"""Every search with all rules as a graph: unknown sizes, empty batches, XLA."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from plain_search import Wants, columns, with_constraints

from keras_transformer.decoding import DecodingState
from keras_transformer.search import BannedPhrases, RequiredPhrases, beam_search, sample

WANTS = [
    Wants(7, beta=0.3, min_length=3, banned=((4,), (5, 6)), required=((7, 4), (5,))),
    Wants(0),
    Wants(9, prefix=(5, 6), repetition_penalty=1.5, no_repeat_ngram=2),
]
SEARCHES = {
    "greedy": (functools.partial(beam_search, beam_size=1), 1),
    "groups": (
        functools.partial(
            beam_search, beam_size=4, num_translations=3, beam_groups=2, diversity_penalty=0.8
        ),
        4,
    ),
    "sampling": (
        functools.partial(sample, num_translations=2, temperature=1.3, top_k=5, top_p=0.9, seed=5),
        2,
    ),
}
every_search = pytest.mark.parametrize(("search", "width"), SEARCHES.values(), ids=SEARCHES)


@pytest.mark.slow
@every_search
def test_a_graph_of_unknown_sizes_gives_what_eager_search_gives(table_model, search, width):
    model = table_model(sentences=3, vocabulary_size=9, seed=1, source_length=4)
    tensors = columns(WANTS, everything=True)

    def translate(rows, tensors):
        return search(model.step, model.state(rows, width), **with_constraints(tensors))

    signature = tf.nest.map_structure(
        lambda column: tf.TensorSpec([None] * column.shape.rank, column.dtype), tensors
    )
    graph = tf.function(translate, input_signature=[tf.TensorSpec([None], tf.int32), signature])
    found = graph(tf.range(3), tensors)
    for left, right in zip(found, translate(tf.range(3), tensors), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)
    nothing = graph(tf.range(0), tf.nest.map_structure(lambda column: column[:0], tensors))
    count = found.scores.shape[1]
    assert [tuple(part.shape) for part in nothing] == [
        (0, count, 1), (0, count), (0, count), (0, count),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["groups", "sampling"])
def test_xla_compiles_a_search_with_every_rule(table_model, name):
    search, width = SEARCHES[name]
    model = table_model(sentences=3, vocabulary_size=9, seed=2)

    def step(ids, state):  # knows the last token and how many there were; attends to one source
        logits = tf.gather(tf.gather(model.table, state.context), ids, batch_dims=1)
        logits += 0.1 * tf.cast(state.time, tf.float32) * tf.range(9, dtype=tf.float32)
        return logits, state._replace(coverage=state.coverage + tf.one_hot(ids % 4, 4))

    def translate(rows, tensors):
        state = DecodingState(context=rows, coverage=tf.fill([3, width, 4], 0.1))
        return search(step, state, max_length_bound=9, **with_constraints(tensors))

    rows, tensors = tf.range(3), columns(WANTS, everything=True)
    expected = translate(rows, tensors)
    found = tf.function(translate, jit_compile=True)(rows, tensors)
    assert found.ids.shape == (3, expected.scores.shape[1], 10)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)


def tensor_sizes(graph):
    """Yields the size and name of every tensor in a graph and in its loops and branches."""
    for operation in graph.get_operations():
        for tensor in operation.outputs:
            if tensor.shape.is_fully_defined():
                yield tensor.shape.num_elements(), tensor.name
    for function in graph._functions.values():
        yield from tensor_sizes(function.graph)


def test_phrases_with_a_large_beam_take_memory_in_proportion_to_the_candidates(table_model):
    sentences, beam_size, phrases, tokens, vocabulary = 2, 64, 16, 8, 500
    listed = tf.constant(np.full([sentences, phrases, tokens], 5), tf.int32)

    def translate(rows):
        def step(ids, state):
            return tf.one_hot(ids, vocabulary), state

        return beam_search(
            step, DecodingState(), bos_ids=rows, max_lengths=rows + 90, max_length_bound=99,
            beam_size=beam_size, constraints=[RequiredPhrases(listed), BannedPhrases(listed)],
        )  # fmt: skip

    function = tf.function(translate, autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([sentences], tf.int32)).graph
    # Two lots of candidates of each hypothesis, and the phrases' next tokens, PAD, BOS and EOS.
    num_candidates = beam_size * (2 * beam_size + phrases + 3)
    largest, name = max(tensor_sizes(graph))
    assert num_candidates * sentences < largest <= num_candidates * sentences * phrases, name
