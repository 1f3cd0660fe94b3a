"""Rules against examples worked by hand and against the same rules written as plain loops."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.search import constraints as processors

PAD, EOS = 0, 3
INF = np.inf
WIDTH, ROOM, VOCABULARY = 2, 10, 9

# Each rule with one option: what it is called with, an option for each of three sentences, and
# the neutral option.
RULES = {
    "temperature": (
        lambda logits, tokens, time, option: processors.apply_temperature(logits, option),
        np.array([0.3, 1.0, 2.0], "f"),
        np.array([1.0], "f"),
    ),
    "repetition penalty": (
        lambda logits, tokens, time, option: processors.penalize_repetition(logits, tokens, option),
        np.array([1.3, 1.0, 0.7], "f"),
        np.array([1.0], "f"),
    ),
    "no repeated n-gram": (
        processors.forbid_repeated_ngrams,
        np.array([2, 0, 3], "i"),
        np.array([0], "i"),
    ),
    "prefix": (
        lambda logits, tokens, time, option: processors.force_prefix(logits, time, option, logits),
        np.array([[4, 5, 6, 7, 8, 4, 5, 6, 7], [0] * 9, [5] * 8 + [0]], "i"),
        np.zeros([1, 9], "i"),
    ),
    "top k": (
        lambda logits, tokens, time, option: processors.keep_most_probable(
            logits, option, tf.constant([1.0])
        ),
        np.array([3, 0, 1], "i"),
        np.array([0], "i"),
    ),
    "top p": (
        lambda logits, tokens, time, option: processors.keep_most_probable(
            logits, tf.constant([0]), option
        ),
        np.array([0.5, 1.0, 0.8], "f"),
        np.array([1.0], "f"),
    ),
}
all_rules = pytest.mark.parametrize("name", RULES)


def random_case(seed, sentences=3, vocabulary=VOCABULARY):
    """Returns logits and tokens with few different values, and the time."""
    random = np.random.default_rng(seed)
    time = 7 if seed == 0 else int(random.integers(0, ROOM + 1))
    tokens = random.integers(4, 7, (sentences, WIDTH, ROOM))
    tokens[..., time:] = PAD
    logits = random.standard_normal((sentences, WIDTH, vocabulary))
    return tf.constant(logits, tf.float32), tf.constant(tokens, tf.int32), tf.constant(time)


def forbidden(logits):
    """Returns the ids that are at -inf, of the only hypothesis of the only sentence."""
    return np.flatnonzero(np.asarray(logits)[0, 0] == -INF).tolist()


def one(tokens):
    """Returns logits of zeros, the tokens as the only hypothesis, and how many there are."""
    padded = tokens + [PAD] * (ROOM - len(tokens))
    return tf.zeros([1, 1, VOCABULARY]), tf.constant([[padded]]), len(tokens)


# What holds for every rule


@all_rules
def test_a_neutral_option_changes_no_bit(name):
    rule, _, neutral = RULES[name]
    logits, tokens, time = random_case(0)
    np.testing.assert_array_equal(rule(logits, tokens, time, neutral), logits)


@all_rules
def test_a_neutral_sentence_keeps_every_bit_beside_others_that_change(name):
    rule, options, _ = RULES[name]
    logits, tokens, time = random_case(0)
    changed = rule(logits, tokens, time, options).numpy()
    np.testing.assert_array_equal(changed[1], logits[1])
    assert not np.array_equal(changed[0], logits[0])
    assert not np.array_equal(changed[2], logits[2])


@all_rules
def test_a_sentence_gets_alone_what_it_gets_in_a_batch(name):
    rule, options, _ = RULES[name]
    logits, tokens, time = random_case(0)
    together = rule(logits, tokens, time, options)
    for row in range(3):
        only = slice(row, row + 1)
        alone = rule(logits[only], tokens[only], time, options[only])
        np.testing.assert_array_equal(together[only], alone)


@all_rules
def test_one_option_holds_for_all_sentences(name):
    rule, options, _ = RULES[name]
    logits, tokens, time = random_case(0)
    repeated = np.repeat(options[:1], 3, axis=0)
    expected = rule(logits, tokens, time, repeated)
    np.testing.assert_array_equal(rule(logits, tokens, time, options[:1]), expected)


@all_rules
def test_a_graph_of_unknown_sizes_gives_the_same_and_takes_an_empty_batch(name):
    rule, options, _ = RULES[name]
    logits, tokens, time = random_case(0)
    signature = [
        tf.TensorSpec([None, WIDTH, VOCABULARY]),
        tf.TensorSpec([None, WIDTH, None], tf.int32),
        tf.TensorSpec([], tf.int32),
        tf.TensorSpec([None] * options.ndim, options.dtype),
    ]
    graph = tf.function(rule, input_signature=signature)
    assert graph.get_concrete_function().output_shapes.as_list() == [None, WIDTH, VOCABULARY]
    expected = rule(logits, tokens, time, options)
    np.testing.assert_array_equal(graph(logits, tokens, time, options), expected)
    empty = graph(logits[:0], tokens[:0], time, options[:0])
    assert empty.shape == (0, WIDTH, VOCABULARY)
    # A search may have no room for tokens yet.
    assert graph(logits, tokens[..., :0], 0, options).shape == logits.shape


def test_xla_compiles_every_rule():
    def apply_all(logits, tokens, time):
        return [rule(logits, tokens, time, options) for rule, options, _ in RULES.values()]

    case = random_case(0)
    compiled = tf.function(apply_all, jit_compile=True)(*case)
    for expected, found in zip(apply_all(*case), compiled, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


# Temperature


def test_logits_are_divided_by_the_temperature_of_their_sentence():
    logits = tf.constant([[[1.0, -2.0]], [[1.0, -INF]]])
    found = processors.apply_temperature(logits, tf.constant([0.5, 4.0]))
    np.testing.assert_array_equal(found, [[[2.0, -4.0]], [[0.25, -INF]]])


def test_a_temperature_of_almost_nothing_leaves_finite_logits():
    found = processors.apply_temperature(tf.constant([[[30.0, -30.0]]]), tf.constant([1e-38]))
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(tf.nn.softmax(found), [[[1.0, 0.0]]])


# Repetition penalty


def test_a_repeated_token_is_penalized_once_whatever_its_sign():
    logits = tf.constant([[[5.0, 1.0, 3.0, -3.0, 2.0]]])
    tokens = tf.constant([[[2, 3, 2, 0]]])  # and PAD, which does not count
    found = processors.penalize_repetition(logits, tokens, tf.constant([2.0]))
    np.testing.assert_array_equal(found, [[[5.0, 1.0, 1.5, -6.0, 2.0]]])


def test_what_is_forbidden_already_stays_so_under_a_penalty():
    logits = tf.constant([[[1.0, -INF]]])
    found = processors.penalize_repetition(logits, tf.constant([[[1]]]), tf.constant([1.5]))
    np.testing.assert_array_equal(found, logits)


@pytest.mark.parametrize("seed", range(5))
def test_the_penalty_is_that_of_a_plain_loop(seed):
    logits, tokens, _ = random_case(seed)
    penalty = np.array([1.2, 1.0, 0.5], "f")
    expected = logits.numpy()
    for row, beam in np.ndindex(3, WIDTH):
        for token in set(tokens[row, beam].numpy().tolist()) - {PAD}:
            value = expected[row, beam, token]
            factor = 1 / penalty[row] if value > 0 else penalty[row]
            expected[row, beam, token] = value * factor
    found = processors.penalize_repetition(logits, tokens, tf.constant(penalty))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# Repeated n-grams


@pytest.mark.parametrize(
    "tokens, size, expected",
    [
        ([4, 5, 6, 4, 5], 3, [6]),
        ([4, 5, 6, 4, 5], 2, [6]),
        ([4, 5, 4, 6, 4], 2, [5, 6]),
        ([4, 5, 6, 4, 5], 1, [4, 5, 6]),
        ([4, 5, 6, 4, 5], 4, []),
        ([4, 4], 2, [4]),
        ([4, 4, 4], 3, [4]),  # overlapping
        ([4], 2, []),
        ([], 1, []),
        ([4, 5, 6, 4, 5], 1_000_000_000, []),
        ([4, 5, 6, 4, 5], 0, []),
    ],
)
def test_tokens_that_complete_a_known_sequence_are_forbidden(tokens, size, expected):
    logits = processors.forbid_repeated_ngrams(*one(tokens), tf.constant([size]))
    assert forbidden(logits) == expected


@pytest.mark.parametrize("seed", range(8))
def test_forbidden_ngrams_are_those_of_a_plain_loop(seed):
    logits, tokens, time = random_case(seed)
    sizes = [1 + seed % 3, 2, 4]
    expected = logits.numpy()
    for row, beam in np.ndindex(3, WIDTH):
        past = tokens[row, beam, : int(time)].numpy().tolist()
        size = sizes[row]
        known = {tuple(past[i : i + size]) for i in range(len(past) - size + 1)}
        for token in range(VOCABULARY):
            if (*past[len(past) - size + 1 :], token) in known:
                expected[row, beam, token] = -INF
    found = processors.forbid_repeated_ngrams(logits, tokens, time, tf.constant(sizes))
    np.testing.assert_array_equal(found, expected)


# Prefix


@pytest.mark.parametrize("time, allowed", [(0, [[4], [5]]), (1, [[6], range(7)])])
def test_only_the_next_token_of_the_prefix_is_allowed_and_keeps_its_logit(time, allowed):
    logits = tf.constant(np.random.default_rng(0).standard_normal((2, WIDTH, 7)), tf.float32)
    found = processors.force_prefix(logits, time, tf.constant([[4, 6], [5, 0]]), logits).numpy()
    for row, beam in np.ndindex(2, WIDTH):
        expected = np.full(7, -INF, "f")
        expected[allowed[row]] = logits[row, beam].numpy()[allowed[row]]
        np.testing.assert_array_equal(found[row, beam], expected)


def test_after_the_longest_prefix_and_without_one_the_other_rules_hold():
    logits, restricted = tf.zeros([1, 1, 7]), tf.constant([[[0.0] * 6 + [-INF]]])
    for time, prefix in ((2, tf.constant([[4, 6]])), (0, tf.zeros([1, 0], tf.int32))):
        assert forbidden(processors.force_prefix(logits, time, prefix, restricted)) == [6]


def test_a_prefix_wins_over_the_other_rules():
    restricted = tf.constant([[[0.0] * 6 + [-INF]]])
    found = processors.force_prefix(tf.zeros([1, 1, 7]), 0, tf.constant([[6]]), restricted)
    assert forbidden(found) == [0, 1, 2, 3, 4, 5]


# The most probable tokens


def kept(probabilities, top_k=0, top_p=1.0):
    logits = tf.math.log(tf.constant([[probabilities]], tf.float32))
    found = processors.keep_most_probable(
        logits, tf.constant([top_k]), tf.constant([top_p])
    ).numpy()
    is_kept = found > -INF
    np.testing.assert_array_equal(found[is_kept], logits.numpy()[is_kept])
    return np.flatnonzero(is_kept[0, 0]).tolist()


@pytest.mark.parametrize(
    "options, expected",
    [
        (dict(top_k=1), [1]),
        (dict(top_k=2), [1, 3]),
        (dict(top_k=3), [0, 1, 3]),  # 0 and 2 are equal: the lower id stays
        (dict(top_k=99), [0, 1, 2, 3, 4]),
        (dict(top_p=0.49), [1]),
        (dict(top_p=0.51), [1, 3]),  # the token that reaches it stays
        (dict(top_p=0.74), [1, 3]),
        (dict(top_p=0.76), [0, 1, 3]),
        (dict(top_p=0.99), [0, 1, 2, 3, 4]),
        (dict(top_p=0.0), [1]),
        (dict(top_k=2, top_p=0.6), [1]),  # 0.5 of the 0.75 that two tokens have
        (dict(top_k=2, top_p=0.7), [1, 3]),
    ],
)
def test_the_most_probable_tokens_stay(options, expected):
    assert kept([0.1, 0.5, 0.1, 0.25, 0.05], **options) == expected


def test_a_token_that_reaches_the_probability_exactly_is_the_last_to_stay():
    assert kept([0.25, 0.5, 0.125, 0.125], top_p=0.75) == [0, 1]


def test_without_a_probability_nothing_is_lost_to_rounding():
    probabilities = [1.0] + [1e-12] * 20
    assert len(kept(probabilities, top_k=15)) == 15


def test_what_is_forbidden_stays_forbidden_and_takes_no_probability():
    assert kept([0.0, 0.5, 0.0, 0.5], top_p=0.6) == [1, 3]
    assert kept([0.0, 0.5, 0.0, 0.5], top_k=3) == [1, 3]
    assert kept([0.0, 0.0], top_k=1, top_p=0.5) == []


@pytest.mark.parametrize("vocabulary", [9, 600])
@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0])
def test_the_kept_are_those_of_a_plain_loop_however_many_they_are(vocabulary, scale):
    # The flat distributions need more candidates than are looked at first.
    logits, *_ = random_case(1, sentences=6, vocabulary=vocabulary)
    logits = np.round(logits.numpy() * scale, 1)  # with ties
    top_k = [0, 5, 300, 0, 500, 0]
    top_p = [0.9, 1.0, 0.973, 0.3, 0.512, 1.0]
    expected = np.full_like(logits, -INF)
    for row, beam in np.ndindex(6, WIDTH):
        values = logits[row, beam].astype(np.float64)
        best = sorted(range(vocabulary), key=lambda i, values=values: (-values[i], i))
        best = best[: top_k[row] or vocabulary]
        total, reached = np.exp(values[best]).sum(), 0.0
        for token in best:
            expected[row, beam, token] = logits[row, beam, token]
            reached += np.exp(values[token])
            if top_p[row] < 1 and reached >= top_p[row] * total:
                break
    found = processors.keep_most_probable(
        tf.constant(logits), tf.constant(top_k), tf.constant(top_p, tf.float32)
    )
    np.testing.assert_array_equal(found, expected)


def test_a_sentence_keeps_the_same_beside_one_that_needs_the_whole_vocabulary():
    random = np.random.default_rng(2)
    peaked = tf.constant(4 * random.standard_normal((1, 1, 2000)), tf.float32)
    top_p = tf.constant([0.95])
    alone = processors.keep_most_probable(peaked, tf.constant([0]), top_p)
    flat = tf.zeros_like(peaked)
    beside = processors.keep_most_probable(tf.concat([peaked, flat], 0), tf.constant([0]), top_p)
    np.testing.assert_array_equal(beside[:1], alone)
    assert np.isfinite(beside[1]).sum() == pytest.approx(1900, abs=1)
