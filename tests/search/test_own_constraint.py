"""A constraint that a caller writes: bracketed sentences, with a stack for each hypothesis.

It is that of constituency parsing: a word comes while words remain, a closing bracket where it
matches the top of the stack, and EOS where the stack is empty and all words are read.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from plain_search import (
    Wants,
    arguments,
    assert_found,
    assert_same,
    every_translation,
    greedy,
    narrow_beam,
    tokens_of,
)

from keras_transformer.config import EOS_ID
from keras_transformer.decoding import DecodingState
from keras_transformer.search import Constraint, NoRepeatNgram, beam_search, greedy_search, sample

CLOSED_BY = {4: 5, 6: 7}  # opening brackets with the closing ones
WORD = 8
DEPTH = 3  # of the stack
VOCABULARY = 9


class Brackets(Constraint):
    """Balanced brackets around a number of words that each sentence has."""

    def __init__(self, num_words):
        self.inputs = {"num_words": tf.convert_to_tensor(num_words)}

    def initial_state(self, inputs, num_hypotheses):
        words_left = tf.repeat(inputs["num_words"][:, None], num_hypotheses, axis=1)
        return {"stack": tf.zeros([*tf.unstack(tf.shape(words_left)), DEPTH], tf.int32),
                "words_left": words_left}  # fmt: skip

    def update(self, state, ids, inputs):
        stack = state["stack"]
        size = tf.math.count_nonzero(stack, axis=-1, dtype=tf.int32)  # [B, W]
        opens, closes = (ids == 4) | (ids == 6), (ids == 5) | (ids == 7)
        changed = tf.range(DEPTH) == tf.where(opens, size, size - 1)[..., None]
        changed &= (opens | closes)[..., None]
        stack = tf.where(changed, tf.where(opens, ids, 0)[..., None], stack)
        return {
            "stack": stack,
            "words_left": state["words_left"] - tf.cast(ids == WORD, tf.int32),
        }

    def restrict(self, allowed, hypotheses):
        stack, words_left = hypotheses.state["stack"], hypotheses.state["words_left"]
        size = tf.math.count_nonzero(stack, axis=-1, dtype=tf.int32)
        is_top = tf.range(DEPTH) == size[..., None] - 1
        top = tf.reduce_sum(tf.where(is_top, stack, 0), axis=-1)
        room = hypotheses.max_lengths[:, None] - hypotheses.time
        may_open = (size < DEPTH) & (room >= size + words_left + 2)
        no = tf.zeros_like(may_open)
        may_end = (size == 0) & (words_left == 0)
        may_come = [no, no, no, may_end, may_open, top == 4, may_open, top == 6, words_left > 0]
        return tf.where(tf.stack(may_come, axis=-1), allowed, -np.inf)


def allows(num_words, limit, tokens, token):
    """Tells what `Brackets` tells, of one hypothesis."""
    stack = []
    for each in tokens:
        if each in CLOSED_BY:
            stack.append(each)
        elif each != WORD:
            stack.pop()
    words_left = num_words - tokens.count(WORD)
    if token in CLOSED_BY:
        return len(stack) < DEPTH and limit - len(tokens) >= len(stack) + words_left + 2
    return {
        EOS_ID: not stack and not words_left,
        WORD: words_left > 0,
        5: stack[-1:] == [4],
        7: stack[-1:] == [6],
    }.get(token, False)


CASES = [(1, 5), (2, 4), (0, 4), (3, 6), (2, 2), (0, 0)]  # words and the longest length
WANTS = [Wants(limit, allows=functools.partial(allows, words, limit)) for words, limit in CASES]


def make_arguments(rows=slice(None)):
    """Returns the arguments of a search, the constraint among them."""
    options = arguments(WANTS[rows])
    constraint = Brackets([words for words, _ in CASES[rows]])
    return options | dict(constraints=[constraint, *options["constraints"]])


@pytest.fixture
def model(table_model):
    return table_model(sentences=len(CASES), vocabulary_size=VOCABULARY, seed=1)


SEARCHES = {
    "beam": (functools.partial(beam_search, beam_size=3, num_translations=2), 3),
    "greedy": (greedy_search, 1),
    "sampling": (functools.partial(sample, num_translations=4, seed=7), 4),
}
every_search = pytest.mark.parametrize(("search", "width"), SEARCHES.values(), ids=SEARCHES)


def test_a_beam_that_holds_everything_finds_all_that_the_constraint_allows(model):
    expected = [every_translation(model, row, each) for row, each in enumerate(WANTS)]
    size = max(map(len, expected))
    assert size > 40
    found = beam_search(
        model.step, model.state(range(6), size), beam_size=size, num_translations=size,
        **make_arguments(),
    )  # fmt: skip
    for row, translations in enumerate(expected):
        assert_found(translations, found, row)


def test_beam_and_greedy_search_and_samples_follow_the_constraint(model):
    found = {
        name: search(model.step, model.state(range(6), width), **make_arguments())
        for name, (search, width) in SEARCHES.items()
    }
    for row, each in enumerate(WANTS):
        assert_found(narrow_beam(model, row, each, 3), found["beam"], row)
        assert_found([greedy(model, row, each)], found["greedy"], row)
        allowed = {each.tokens: each.log_prob for each in every_translation(model, row, each)}
        for place in range(4):
            log_prob = allowed[tokens_of(found["sampling"], row, place)]
            np.testing.assert_allclose(found["sampling"].log_probs[row, place], log_prob, rtol=2e-5)
    assert len({tokens_of(found["sampling"], 0, place) for place in range(4)}) > 1


@every_search
def test_a_sentence_gets_alone_what_it_gets_in_a_batch(model, search, width):
    together = search(model.step, model.state(range(6), width), **make_arguments())
    for row in range(6):
        only = slice(row, row + 1)
        alone = search(model.step, model.state([row], width), **make_arguments(only))
        assert_same(alone, together, 0, row)


@pytest.mark.slow
@every_search
def test_a_graph_of_unknown_sizes_and_xla_give_what_eager_search_gives(model, search, width):
    def step(ids, state):  # knows the last token and how many there were
        logits = tf.gather(tf.gather(model.table, state.context), ids, batch_dims=1)
        return logits + 0.1 * tf.cast(state.time, tf.float32) * tf.range(9.0), state

    def translate(rows, num_words, limits, bound=None):
        return search(
            step, DecodingState(context=rows), bos_ids=tf.fill(tf.shape(rows), 2),
            max_lengths=limits, constraints=[NoRepeatNgram(3), Brackets(num_words)],
            max_length_bound=bound,
        )  # fmt: skip

    words, limits = (tf.constant(column) for column in zip(*CASES, strict=True))
    expected = translate(tf.range(6), words, limits)
    assert (expected.scores.numpy() > -1e9).any(axis=1).all()
    graph = tf.function(translate, input_signature=[tf.TensorSpec([None], tf.int32)] * 3)
    compiled = tf.function(functools.partial(translate, bound=6), jit_compile=True)
    for found in (graph(tf.range(6), words, limits), compiled(tf.range(6), words, limits)):
        for left, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-5)
