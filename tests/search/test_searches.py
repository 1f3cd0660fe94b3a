"""What every search keeps to: constraints, batches, graphs of unknown sizes, XLA."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
from plain_search import Request, arguments, assert_same, columns, with_constraints
from table_model import TableModel

from keras_transformer.decoding import DecodingState
from keras_transformer.search import MinLength, beam_search, sample

SEARCHES = {
    "greedy": functools.partial(beam_search, beam_size=1),
    "beam": functools.partial(beam_search, beam_size=4, num_translations=4),
    "sampling": functools.partial(
        sample, num_translations=4, temperature=1.3, top_k=9, top_p=0.95, seed=5
    ),
}
every_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


def width_of(search):
    return search.keywords.get("beam_size") or search.keywords["num_translations"]


@every_search
def test_finished_sentences_leave_the_batch(search):
    limits = [12, 0, 2, 1, 0, 8, 3, 1]
    model = TableModel(sentences=8, vocabulary_size=12, seed=4, end_bias=-4.0, source_length=3)
    width = width_of(search)
    requests = [Request(limit, beta=0.2, no_repeat_ngram=4, banned=(4,)) for limit in limits]
    together = search(model.step, model.state(range(8), width), **arguments(requests))
    sizes = [rows for rows, _ in model.calls]
    assert sizes[0] == 8 and sizes[-1] <= 2
    assert sizes == sorted(sizes, reverse=True)
    for row, each in enumerate(requests):
        alone = search(model.step, model.state([row], width), **arguments([each]))
        assert_same(alone, together, 0, row)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["greedy", "beam", "sampling"])
@pytest.mark.parametrize("max_length_bound", [None, 40])
def test_nan_logits_end_the_search_without_a_translation(method, max_length_bound):
    def step(ids, state):
        return tf.fill([tf.shape(ids)[0], ids.shape[1], 7], np.nan), state

    def search(max_lengths):
        arguments = dict(max_lengths=max_lengths, max_length_bound=max_length_bound)
        if method == "sampling":
            return sample(step, DecodingState(), num_translations=2, **arguments)
        size = {"greedy": 1, "beam": 3}[method]
        return beam_search(step, DecodingState(), beam_size=size, **arguments)

    found = tf.function(search, autograph=False)(tf.constant([30, 3]))
    np.testing.assert_array_equal(found.scores, np.float32(-1e9))
    np.testing.assert_array_equal(found.lengths, 0)


# Graphs

REQUESTS = [
    Request(7, beta=0.3, min_length=3, banned=(4, 5)),
    Request(0),
    Request(9, prefix=(5, 6), repetition_penalty=1.5, no_repeat_ngram=2),
]


@pytest.mark.slow
@every_search
def test_graph_of_unknown_sizes_equals_eager_search(search):
    width = width_of(search)
    model = TableModel(sentences=3, vocabulary_size=9, seed=1, source_length=4)
    tensors = columns(REQUESTS, everything=True)

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
    assert [tuple(part.shape) for part in nothing[:4]] == [
        (0, count, 1), (0, count), (0, count), (0, count),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["beam", pytest.param("sampling", marks=pytest.mark.slow)])
def test_xla_compiles_a_search_with_every_constraint(name):
    search, width = SEARCHES[name], 4
    model = TableModel(sentences=3, vocabulary_size=9, seed=2)

    def step(ids, state):  # knows the last token and how many there were; attends to one source
        logits = tf.gather(tf.gather(model.table, state.context), ids, batch_dims=1)
        logits += 0.1 * tf.cast(state.time, tf.float32) * tf.range(9, dtype=tf.float32)
        return logits, state._replace(coverage=state.coverage + tf.one_hot(ids % 4, 4))

    def translate(rows, tensors):
        state = DecodingState(context=rows, coverage=tf.fill([3, width, 4], 0.1))
        constraints = with_constraints(tensors)
        return search(step, state, max_length_bound=8, **constraints)

    rows, tensors = tf.range(3), columns(REQUESTS, everything=True)
    expected = translate(rows, tensors)
    found = tf.function(translate, jit_compile=True)(rows, tensors)
    assert found.ids.shape == (3, expected.scores.shape[1], 9)
    for left, right in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)


def test_a_step_under_xla_has_no_branch_and_scatters_nothing_into_the_logits():
    batch, width, vocabulary = 3, 4, 1000
    table = tf.random.stateless_normal([vocabulary, vocabulary], [1, 2])

    def translate(max_lengths):
        return beam_search(
            lambda ids, state: (tf.gather(table, ids), state), DecodingState(),
            max_lengths=max_lengths, beam_size=width, max_length_bound=12,
            constraints=[MinLength(tf.fill([batch], 3), space_ids=[5])],
        )  # fmt: skip

    limits = tf.fill([batch], 12)
    compiled = tf.function(translate, jit_compile=True, autograph=False)
    program = compiled.experimental_get_compiler_ir(limits)(stage="hlo")
    assert "while(" in program  # the loop over the steps
    assert "conditional(" not in program
    scattered = re.findall(r"f32\[([\d,]+)\]\S* scatter\(", program)
    assert f"{batch},{width},{vocabulary}" not in scattered
    np.testing.assert_array_equal(compiled(limits).ids, translate(limits).ids)


_COLD = functools.partial(sample, num_translations=4, temperature=0.1, top_p=0.9, seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("search", [*SEARCHES.values(), _COLD], ids=[*SEARCHES, "cold sampling"])
def test_search_passes_tensorflows_check_of_numbers(search):
    model = TableModel(sentences=3, vocabulary_size=200, seed=4, source_length=4)
    width = width_of(search)
    requests = [Request(limit, beta=0.2, min_length=2, no_repeat_ngram=2) for limit in (7, 1, 0)]

    def translate(rows):
        state = model.state(rows, width)
        return search(model.step, state, **arguments(requests))

    expected = translate(tf.range(3))
    tf.debugging.enable_check_numerics()
    try:
        found = tf.function(translate, autograph=False)(tf.range(3))
    finally:
        tf.debugging.disable_check_numerics()
    np.testing.assert_array_equal(found.ids, expected.ids)
