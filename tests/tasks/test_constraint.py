"""Constraints find exactly the trees over the words of a sentence, which are written with them."""

import functools
import pathlib
import random

import numpy as np
import pytest
import tensorflow as tf
from plain_search import Request, arguments, assert_found, every_translation, tokens_of
from table_model import TableModel

from keras_transformer.config import EOS_ID
from keras_transformer.decoding import DecodingState
from keras_transformer.files import read_lines
from keras_transformer.search import NoRepeatNgram, beam_search, sample
from keras_transformer.tasks.parsing import trees
from keras_transformer.tasks.parsing.constraint import (
    BalancedBrackets,
    CopiedWords,
    drop_words,
    word_kinds,
    write_trees,
)
from keras_transformer.text import learn_vocabulary

DATA = pathlib.Path(__file__).parents[1] / "data" / "trees"
# "(C" has no closing bracket in the vocabulary.
TOKENS = ["", "?", "^", "$", "(A", ")A", "(B", ")B", "X", "Y", "(C"]
CASES = [(1, 5), (2, 6), (0, 4), (3, 5), (2, 3), (2, 4)]  # words and the longest length


def allows(num_words, limit, tokens, token):
    """Tells whether a token may come next, of one hypothesis."""
    stack, words = [], num_words
    for text in map(TOKENS.__getitem__, tokens):
        if text.startswith("("):
            stack.append(text[1:])
        elif text.startswith(")"):
            stack.pop()
        else:
            words -= 1
    text = TOKENS[token]
    if token == EOS_ID:
        return not stack and not words
    if text in ("(A", "(B"):
        room = limit - len(tokens) >= len(stack) + words + 2
        return words > 0 and room and bool(stack or not tokens)
    if text in (")A", ")B"):
        is_empty = bool(tokens) and TOKENS[tokens[-1]].startswith("(")
        return stack[-1:] == [text[1:]] and not is_empty and (len(stack) > 1 or not words)
    return text in ("X", "Y") and words > 0 and bool(stack)


REQUESTS = [
    Request(limit, allows=functools.partial(allows, words, limit)) for words, limit in CASES
]


def make_constraint(words):
    return BalancedBrackets(words, TOKENS, special_ids=range(4))


WORDS = [[place < count for place in range(3)] for count, _ in CASES]


def make_arguments(rows=slice(None)):
    return arguments(REQUESTS[rows]) | dict(constraints=[make_constraint(WORDS[rows])])


@pytest.fixture
def model():
    return TableModel(sentences=len(CASES), vocabulary_size=len(TOKENS), seed=1)


def test_exhaustive_beam_finds_exactly_all_trees(model):
    expected = [every_translation(model, row, each) for row, each in enumerate(REQUESTS)]
    counts = list(map(len, expected))
    # Of one word in up to five tokens: one bracket of two labels, or two.
    assert counts[0] == 2 * 2 + 4 * 2
    assert counts[2:5] == [1, 2 * 2**3, 0]
    found = beam_search(
        model.step, model.state(range(6), max(counts)), beam_size=max(counts),
        num_translations=max(counts), **make_arguments(),
    )  # fmt: skip
    for row, translations in enumerate(expected):
        assert_found(translations, found, row)


@pytest.mark.slow
@pytest.mark.parametrize(
    "search",
    [functools.partial(beam_search, beam_size=3, num_translations=2),
     functools.partial(sample, num_translations=4, seed=7)],
    ids=["beam", "sampling"],
)  # fmt: skip
def test_graph_and_xla_give_the_trees_of_eager_search(model, search):
    def step(ids, state):  # knows the last token and how many there were
        logits = tf.gather(tf.gather(model.table, state.context), ids, batch_dims=1)
        return logits + 0.1 * tf.cast(state.time, tf.float32) * tf.range(11.0), state

    def translate(rows, words, limits, bound=None):
        return search(
            step, DecodingState(context=rows),
            max_lengths=limits, constraints=[NoRepeatNgram(3), make_constraint(words)],
            max_length_bound=bound,
        )  # fmt: skip

    case = (tf.range(6), tf.constant(WORDS), tf.constant([limit for _, limit in CASES]))
    expected = translate(*case)
    assert (expected.lengths.numpy() > 0).any(axis=1).tolist() == [True] * 4 + [False, True]
    signature = [tf.TensorSpec([None] * each.shape.rank, each.dtype) for each in case]
    graph = tf.function(translate, input_signature=signature)
    compiled = tf.function(functools.partial(translate, bound=6), jit_compile=True)
    for found in (graph(*case), compiled(*case)):
        for left, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-5)


def test_punctuation_words_get_punctuation_tags():
    tokens = [*TOKENS[:9], ".", "(C"]
    model = TableModel(sentences=3, vocabulary_size=len(tokens), seed=1)
    kinds = [[2, 3, 0], [3, 2, 0], [1, 2, 0]]
    constraint = BalancedBrackets(kinds, tokens, range(4), punctuation=(".", ","))
    found = beam_search(
        model.step, model.state(range(3), 99), beam_size=99, num_translations=99,
        max_lengths=tf.fill([3], 4), length_penalty=0.0,
        constraints=[constraint],
    )  # fmt: skip
    words = [
        {
            "".join(tokens[token] for token in tokens_of(found, row, place) if token in (8, 9))
            for place in range(99)
            if found.scores[row, place] > -1e8
        }
        for row in range(3)
    ]
    assert words == [{"X."}, {".X"}, {"XX", ".X"}]
    unknown = BalancedBrackets(kinds, TOKENS, range(4), punctuation=(".", ","))
    assert unknown.inputs.numpy().tolist() == [[1, 1, 0]] * 3


def test_hopeless_search_ends_after_a_few_brackets_a_word():
    """A model that always prefers to open brackets may not do so up to the longest length."""

    def step(ids, state):
        is_opening = tf.constant([text.startswith("(") for text in TOKENS], tf.float32)
        return tf.tile((9 * is_opening)[None, None], [*ids.shape, 1]), state

    found = beam_search(
        step, DecodingState(context=tf.range(2)), beam_size=3,
        max_lengths=tf.fill([2], 300), constraints=[make_constraint([[1, 1, 1], [1, 0, 0]])],
    )  # fmt: skip
    tokens = [tokens_of(found, row, 0) for row in range(2)]
    num_opened = [sum(TOKENS[token].startswith("(") for token in each) for each in tokens]
    assert num_opened == [2 * 3 + 5, 2 * 1 + 5]
    assert [len(each) for each in tokens] == [3 + 2 * 11 + 1, 1 + 2 * 7 + 1]


# Of copied words: 4, 7 and 9 begin words, 8 continues one.
COPIES = ["", "", "", "", "(A", ")A", "X", "", "", ""]
BEGINS = [number in (4, 7, 9) for number in range(len(COPIES))]
SENTENCES = [([7, 8, 9], 10), ([9], 7), ([7, 8], 5), ([9, 7], 5), ([7, 4], 9)]  # and longest length


def copying_trees(sentence, limit):
    """Yields the token sequences of all trees around the words of a sentence."""

    begins = [BEGINS[token] for token in sentence]
    sentence = [1 if token == 4 else token for token in sentence]  # a bracket in it is unknown

    def go_on(tokens, depth, read):
        room = limit - len(tokens)
        tags_due = sum(begins[read:])
        last = tokens[-1] if tokens else None
        if last in (1, 7, 8, 9):
            if read < len(sentence) and not begins[read]:
                yield from go_on([*tokens, sentence[read]], depth, read + 1)
            else:
                yield from go_on([*tokens, 6], depth, read)
            return
        if tokens and not depth:
            yield (*tokens, EOS_ID)
            return
        is_left = read < len(sentence)
        if is_left and room >= depth + len(sentence) - read + tags_due + 2:
            yield from go_on([*tokens, 4], depth + 1, read)
        if is_left and depth:
            yield from go_on([*tokens, sentence[read]], depth, read + 1)
        if depth and last != 4 and (depth > 1 or not is_left):
            yield from go_on([*tokens, 5], depth - 1, read)

    yield from go_on([], 0, 0)


def log_prob_of_copies(model, row, tokens):
    """Returns the log-probability of a sequence in which any token of a word is the next one."""
    total = 0.0
    for time, token in enumerate(tokens):
        logits = model.logits(row, tuple(tokens[:time]))
        counted = logits[[1, 7, 8, 9]] if token in (1, 7, 8, 9) else logits[[token]]
        total += np.log(np.exp(counted).sum() / np.exp(logits).sum())
    return total


def test_copied_words_come_before_their_tags():
    model = TableModel(sentences=len(SENTENCES), vocabulary_size=len(COPIES), seed=2)
    ids = np.zeros([len(SENTENCES), 4], np.int32)
    for row, (sentence, _) in enumerate(SENTENCES):
        ids[row, : len(sentence)] = sentence
    # As many as tokens that begin one.
    words = [[1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0]]
    found = beam_search(
        model.step, model.state(range(len(SENTENCES)), 60), beam_size=60, num_translations=60,
        max_lengths=[limit for _, limit in SENTENCES],
        length_penalty=0.0, constraints=[CopiedWords(ids, words, COPIES, BEGINS)],
    )  # fmt: skip
    for row, (sentence, limit) in enumerate(SENTENCES):
        expected = {
            tokens: log_prob_of_copies(model, row, tokens)
            for tokens in copying_trees(sentence, limit)
        }
        scores = {
            tokens_of(found, row, place): float(score)
            for place, score in enumerate(found.scores[row])
        }  # fmt: skip
        scores.pop((), None)  # places without a translation
        assert scores.keys() == expected.keys()
        assert scores == pytest.approx(expected, rel=1e-5)
        assert len(expected) == [4, 2, 1, 0, 4][row]


def written(texts, sentences):
    found = write_trees(tf.constant(texts)[:, None], tf.constant(sentences))
    return [text.decode() for text in found[:, 0].numpy()]


FLAT = "(TOP (XX a) (XX b) (XX c))"


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("(S (NP DT NN )NP (VP XX )VP )S", "(S (NP (DT a) (NN b)) (VP (XX c)))"),
        ("(S (NP DT )NP )S", "(S (NP (DT a)) (XX b) (XX c))"),  # read in part
        *((text, FLAT) for text in (
            "", "(S", "(S DT NN XX", "DT", ")S", "(S DT )S )S", "(S DT )S (S NN )S", "DT (S NN )S",
            "(S DT NN XX XX )S", "(S (NP )NP XX XX XX )S", "(S A(B )S", "( DT )S", "(S DT )")),
    ],
)  # fmt: skip
def test_words_are_put_into_trees_and_other_texts_are_flat_trees(text, tree):
    assert written([text, text, text], ["a b c", "( b▁ )", " "]) == [
        tree, tree.replace(" a)", " -LRB-)").replace(" c)", " -RRB-)"), "",
    ]  # fmt: skip


def test_each_text_becomes_a_tree_over_all_words():
    generator = random.Random(1)
    tokens = ["(A", ")A", "(CÉ", ")CÉ", "X", "Y"]
    texts = [" ".join(generator.choices(tokens, k=generator.randrange(12))) for _ in range(10_000)]
    sentences = [" ".join("abcdefgh"[: generator.randrange(1, 9)]) for _ in texts]
    found = written(texts, sentences)
    for tree, sentence in zip(found, sentences, strict=True):
        assert trees.sentence_of(trees.parse_tree(tree)) == sentence
    assert 10 < sum(not tree.startswith("(TOP") for tree in found) < 5000


def test_linearized_treebank_is_written_as_it_was():
    lines = read_lines(DATA / "gum_test.mrg.gz")
    all_trees = sorted((trees.clean(tree) for _, tree in trees.read_trees(lines, "GUM")), key=len)
    for start in range(0, len(all_trees), 500):
        some = all_trees[start : start + 500 : 3]
        texts = [trees.linearize(tree) for tree in some]
        found = written(texts, [trees.sentence_of(tree) for tree in some])
        assert found == list(map(trees.to_text, some))


def test_drop_words_keeps_labels_and_tags():
    texts = ["⟨S a ∕DT (NP ∕NN ⟨VP b∕c ⟩ ∕VB ⟩VP ⟩S", "", "a b", " ∕X"]
    plain = [b"(S DT NN (VP ) VB )VP )S", b"", b"", b"X"]
    assert drop_words(tf.constant(texts)).numpy().tolist() == plain


def test_word_kinds_by_characters():
    vocabulary = learn_vocabulary(
        ["the dog ( barks ) at 3 cats . , .", 'a. - ." 4'], size=30, kind="bpe",
        normalization="identity",
    )  # fmt: skip
    rows = vocabulary.encode(['the . 3 ." ( a. 木 -', "", ","])
    ids = tf.ragged.constant([[*row, 3] for row in rows]).to_tensor(0)
    found = word_kinds(ids, vocabulary).numpy()
    assert [row[row > 0].tolist() for row in found] == [[2, 3, 2, 3, 1, 2, 1, 1], [], [3]]
