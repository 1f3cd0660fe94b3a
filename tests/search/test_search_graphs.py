"""Every search with all rules as a graph: unknown sizes, empty batches, XLA."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from plain_search import Wants, arguments

from keras_transformer.decoding import DecodingState
from keras_transformer.search import Constraints, beam_search, sample

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


def columns():
    """Returns what each sentence wants as tensors by name, all constraints among them."""
    options = arguments(WANTS, everything=True)
    return options | options.pop("constraints").given()


def search_columns(search, step, state, columns, **options):
    columns = dict(columns)
    constraints = {name: columns.pop(name) for name in Constraints._fields}
    return search(step, state, constraints=Constraints(**constraints), **columns, **options)


@every_search
def test_a_graph_of_unknown_sizes_gives_what_eager_search_gives(table_model, search, width):
    model = table_model(sentences=3, vocabulary_size=9, seed=1, source_length=4)

    def translate(rows, columns):
        return search_columns(search, model.step, model.state(rows, width), columns)

    signature = tf.nest.map_structure(
        lambda column: tf.TensorSpec([None] * column.shape.rank, column.dtype), columns()
    )
    graph = tf.function(translate, input_signature=[tf.TensorSpec([None], tf.int32), signature])
    found = graph(tf.range(3), columns())
    for left, right in zip(found, translate(tf.range(3), columns()), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)
    nothing = graph(tf.range(0), tf.nest.map_structure(lambda column: column[:0], columns()))
    count = found.scores.shape[1]
    assert [tuple(part.shape) for part in nothing] == [
        (0, count, 1), (0, count), (0, count), (0, count),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["groups", "sampling"])
def test_xla_compiles_a_search_with_every_rule(table_model, name):
    search, width = SEARCHES[name]
    model = table_model(sentences=3, vocabulary_size=9, seed=2)

    def step(ids, state):  # knows the last token and how many there were; attends to one source
        logits = tf.gather(tf.gather(model.table, state.context), ids, batch_dims=1)
        logits += 0.1 * tf.cast(state.time, tf.float32) * tf.range(9, dtype=tf.float32)
        return logits, state._replace(coverage=state.coverage + tf.one_hot(ids % 4, 4))

    def translate(rows, columns):
        state = DecodingState(context=rows, coverage=tf.fill([3, width, 4], 0.1))
        return search_columns(search, step, state, columns, longest=9)

    rows = tf.range(3)
    expected = translate(rows, columns())
    found = tf.function(translate, jit_compile=True)(rows, columns())
    assert found.ids.shape == (3, expected.scores.shape[1], 10)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)
