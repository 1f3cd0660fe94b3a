"""Banned and required phrases against examples worked by hand and plain loops."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.search import BannedPhrases, OpenHypotheses, RequiredPhrases
from keras_transformer.search.beam import repeat_for_each_sentence
from keras_transformer.search.constraints import spread_over_banks
from keras_transformer.search.phrases import phrase_progress

PAD, EOS = 0, 3
INF = np.inf
WIDTH, ROOM, VOCABULARY = 2, 12, 10


def table(*lists):
    """Returns the phrases of one sentence as int32 [1, P, M]."""
    longest = max((len(phrase) for phrase in lists), default=0)
    rows = [list(phrase) + [PAD] * (longest - len(phrase)) for phrase in lists]
    return tf.reshape(tf.constant(rows, tf.int32), [1, len(rows), longest])


def past(*tokens):
    """Returns the tokens of one hypothesis, int32 [1, 1, L], and how many there are."""
    return tf.constant([[[*tokens] + [PAD] * (ROOM - len(tokens))]]), len(tokens)


def read(constraint, tokens, time, logits=None, max_lengths=None):
    """Returns what the constraint sees of hypotheses after it was told of their tokens."""
    inputs = repeat_for_each_sentence(constraint.inputs, tf.shape(tokens)[0])
    state = constraint.initial_state(inputs, tokens.shape[1])
    unknown = tf.nest.map_structure(lambda leaf: tf.TensorShape([None] * leaf.shape.rank), state)
    _, state = tf.while_loop(
        lambda number, _: number < time,
        lambda number, state: (
            number + 1,
            constraint.update(state, tf.gather(tokens, number, axis=2), inputs),
        ),
        (0, state),
        shape_invariants=(tf.TensorShape([]), unknown),
    )
    return OpenHypotheses(inputs, state, tokens, time, max_lengths, EOS, PAD, logits)


def forbid_phrases(logits, tokens, time, phrases):
    constraint = BannedPhrases(phrases)
    return constraint.restrict(logits, read(constraint, tokens, time, logits))


def require_phrases(logits, tokens, time, phrases, max_lengths):
    constraint = RequiredPhrases(phrases)
    hypotheses = read(constraint, tokens, time, logits, max_lengths)
    return constraint.restrict(logits, hypotheses)


def progress_after(tokens, time, phrases):
    """Returns met, partial, bank, needed and next_ids after the tokens."""
    constraint = RequiredPhrases(phrases)
    hypotheses = read(constraint, tokens, time)
    progress = phrase_progress(hypotheses.state, hypotheses.inputs)
    assert np.array_equal(progress.bank, constraint.bank(hypotheses.state, hypotheses.inputs))
    next_ids = constraint.next_ids(hypotheses)
    return *hypotheses.state, progress.bank, progress.needed, next_ids


def progress_of(tokens, *required):
    found = progress_after(*past(*tokens), table(*required))
    return tuple(field.numpy()[0, 0].tolist() for field in found)


def forbidden(logits):
    return np.flatnonzero(np.asarray(logits)[0, 0] == -INF).tolist()


def random_case(seed, sentences=4):
    """Returns tokens, time and phrases of few different tokens, so that much matches."""
    random = np.random.default_rng(seed)
    time = int(random.integers(0, ROOM + 1))
    tokens = random.integers(4, 7, (sentences, WIDTH, ROOM))
    tokens[..., time:] = PAD
    listed = random.integers(4, 7, (sentences, 3, 4))
    listed = np.where(np.arange(4) < random.integers(0, 5, (sentences, 3, 1)), listed, PAD)
    return tf.constant(tokens, tf.int32), tf.constant(time), tf.constant(listed, tf.int32)


def each(tokens, time, listed):
    """Yields sentence, hypothesis, phrase number, the tokens so far and those of the phrase."""
    for row, beam, number in np.ndindex(*tokens.shape[:2], listed.shape[1]):
        phrase = [token for token in listed[row, number].numpy().tolist() if token != PAD]
        yield row, beam, number, tokens[row, beam, : int(time)].numpy().tolist(), phrase


def occurs(phrase, tokens):
    length = len(phrase)
    return any(tokens[i : i + length] == phrase for i in range(len(tokens) - length + 1))


# Banned phrases


@pytest.mark.parametrize(
    "tokens, banned, expected",
    [
        ([4, 5], [[4, 5, 6]], [6]),
        ([5], [[4, 5, 6]], []),
        ([], [[4, 5]], []),
        ([], [[7]], [7]),
        ([4, 5], [[5, 8], [4, 5, 6], [6, 5, 9]], [6, 8]),
        ([4, 4], [[4, 4, 4]], [4]),
        ([4, 4], [[4, 5], [4, 5]], [5]),
        ([4, 5], [[], []], []),
        ([4, 5], [], []),
        ([4, 6, 5], [[4, 5, 7]], []),
        ([4, 5], [[EOS], [4, 5, EOS]], [EOS]),
    ],
)
def test_last_token_of_a_banned_phrase_is_forbidden(tokens, banned, expected):
    logits = tf.zeros([1, 1, VOCABULARY])
    assert forbidden(forbid_phrases(logits, *past(*tokens), table(*banned))) == expected


@pytest.mark.parametrize("seed", range(8))
def test_banned_phrases_equal_plain_loop(seed):
    tokens, time, banned = random_case(seed)
    logits = tf.random.stateless_normal([4, WIDTH, VOCABULARY], [seed, 0])
    expected = logits.numpy()
    for row, beam, _, so_far, phrase in each(tokens, time, banned):
        for token in range(VOCABULARY):
            if phrase and [*so_far, token][-len(phrase) :] == phrase:
                expected[row, beam, token] = -INF
    found = forbid_phrases(logits, tokens, time, banned)
    np.testing.assert_array_equal(found, expected)


# Progress through required phrases


@pytest.mark.parametrize(
    "tokens, required, met, partial, bank, needed, next_ids",
    [
        ([], [[4, 5]], [False], [0], 0, 2, [4]),
        ([4], [[4, 5]], [False], [1], 1, 1, [5]),
        ([4, 6], [[4, 5]], [False], [0], 0, 2, [4]),
        ([4, 5, 8], [[4, 5]], [True], [0], 2, 0, [PAD]),
        # After 4 4, the second 4 begins the phrase again.
        ([4, 4], [[4, 5]], [False], [1], 1, 1, [5]),
        # After 4 5 4, the longest end that begins the phrase is the whole, then 5 is next.
        ([4, 5, 4], [[4, 5, 4, 6]], [False], [3], 3, 1, [6]),
        ([4, 5, 4, 5], [[4, 5, 4, 6]], [False], [2], 2, 2, [4]),
        # Two phrases begun at once: only the further one counts.
        ([4, 5], [[4, 5, 6], [5, 7]], [False, False], [2, 1], 2, 3, [6, 7]),
        # The same phrase twice is met by one occurrence.
        ([4, 5], [[4, 5], [4, 5]], [True, True], [0, 0], 4, 0, [PAD, PAD]),
        # A phrase that is part of another, and phrases that overlap.
        ([7, 4, 5], [[7, 4, 5, 8], [4, 5]], [False, True], [3, 0], 5, 1, [8, PAD]),
        ([4, 5, 6], [[4, 5], [5, 6]], [True, True], [0, 0], 4, 0, [PAD, PAD]),
        # An empty phrase is met and wants nothing.
        ([4], [[], [4, 5]], [True, False], [0, 1], 1, 1, [PAD, 5]),
        ([4], [], [], [], 0, 0, []),
        # What is met can be begun again, which counts for nothing.
        ([4, 5, 4], [[4, 5]], [True], [1], 2, 0, [PAD]),
    ],
)
def test_progress_counts_met_and_begun_phrases(
    tokens, required, met, partial, bank, needed, next_ids
):
    assert progress_of(tokens, *required) == (met, partial, bank, needed, next_ids)


@pytest.mark.parametrize("seed", range(8))
def test_progress_equals_plain_loop(seed):
    tokens, time, required = random_case(seed)
    all_met, all_partial, bank, needed, next_ids = progress_after(tokens, time, required)
    done, unmet, best = (np.zeros([4, WIDTH], int) for _ in range(3))
    for row, beam, number, so_far, phrase in each(tokens, time, required):
        place = (row, beam, number)
        is_met = occurs(phrase, so_far)
        partial = max(
            (k for k in range(1, len(phrase)) if so_far[-k:] == phrase[:k]),
            default=0,
        )
        assert bool(all_met[place]) == is_met
        assert int(all_partial[place]) == partial
        assert int(next_ids[place]) == (PAD if is_met else phrase[partial])
        done[row, beam] += len(phrase) * is_met
        unmet[row, beam] += len(phrase) * (not is_met)
        best[row, beam] = max(best[row, beam], 0 if is_met else partial)
    np.testing.assert_array_equal(bank, done + best)
    np.testing.assert_array_equal(needed, unmet - best)


# Requiring them


def required_at(tokens, max_length, *required):
    """Returns what required phrases forbid."""
    logits = tf.zeros([1, 1, VOCABULARY])
    limits = tf.constant([max_length])
    return forbidden(require_phrases(logits, *past(*tokens), table(*required), limits))


def all_but(*allowed):
    return [token for token in range(VOCABULARY) if token not in allowed]


@pytest.mark.parametrize(
    "tokens, max_length, required, expected",
    [
        ([], 9, [[4, 5]], [EOS]),
        ([4, 5], 9, [[4, 5]], []),
        ([], 9, [], []),
        ([], 9, [[]], []),
        ([], 3, [[4, 5]], [EOS]),
        ([], 2, [[4, 5]], all_but(4)),
        ([], 3, [[4, 5], [6]], all_but(4, 6)),
        ([4], 2, [[4, 5]], all_but(5)),
        # Two tokens are left and one is needed, but any other would lose the 4.
        ([4], 3, [[4, 5]], all_but(5)),
        ([4], 4, [[4, 5]], [EOS]),
        # The phrase that is begun is finished first.
        ([4], 3, [[4, 5], [6]], all_but(5)),
        # The limit allows no more: the translation may end as it is.
        ([4], 1, [[4, 5]], []),
        ([], 0, [[4, 5]], []),
        # It never allowed all of it: as much is written as there is room for.
        ([], 1, [[4, 5]], all_but(4)),
    ],
)
def test_required_phrases_forbid_what_would_lose_them(tokens, max_length, required, expected):
    assert required_at(tokens, max_length, *required) == expected


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_required_phrases_fit_whenever_there_is_room(spare):
    sentences = 60
    *_, required = random_case(spare, sentences)
    max_lengths = tf.math.count_nonzero(required, axis=[1, 2], dtype=tf.int32) + spare
    room = int(tf.reduce_max(max_lengths))
    tokens = np.zeros([sentences, WIDTH, room], "i")
    lengths = np.full([sentences, WIDTH], -1)
    random = np.random.default_rng(spare)

    @tf.function(reduce_retracing=True)
    def rule(logits, tokens, time):
        return require_phrases(logits, tokens, time, required, max_lengths)

    for time in range(room):
        # EOS and the tokens of phrases are likely, as is another token.
        logits = random.standard_normal([sentences, WIDTH, 8]) + np.eye(8)[EOS]
        logits[..., :EOS] = -INF
        chosen = rule(
            tf.constant(logits, tf.float32), tf.constant(tokens), tf.constant(time)
        ).numpy()
        assert (chosen.max(axis=-1) > -INF).all()
        best = chosen.argmax(axis=-1)
        ends = (best == EOS) | (time >= max_lengths.numpy()[:, None])
        lengths = np.where((lengths < 0) & ends, time, lengths)
        tokens[..., time] = np.where(best == EOS, 7, best)
    lengths = np.where(lengths < 0, room, lengths)
    checked = 0
    for row, beam, _, written, phrase in each(tf.constant(tokens), room, required):
        assert occurs(phrase, written[: lengths[row, beam]])
        checked += bool(phrase)
    assert checked > 200
    if spare:
        assert (lengths < max_lengths.numpy()[:, None]).any()  # not all were forced to the limit


# Batches and graphs


def everything(logits, tokens, time, listed):
    """Returns all that this file makes of its arguments."""
    constraint = RequiredPhrases(listed)
    hypotheses = read(constraint, tokens, time, logits, tf.constant([9]))
    progress = phrase_progress(hypotheses.state, hypotheses.inputs)
    return (
        forbid_phrases(logits, tokens, time, listed),
        *hypotheses.state,
        *progress[1:],
        constraint.next_ids(hypotheses),
        constraint.restrict(logits, hypotheses),
        spread_over_banks(logits[..., 0], progress.bank, WIDTH),
    )


def graph_case():
    *_, listed = random_case(1)
    tokens, time = tf.constant(np.random.default_rng(0).integers(4, 7, (4, WIDTH, ROOM))), 6
    tokens = tf.where(tf.range(ROOM) < time, tf.cast(tokens, tf.int32), PAD)
    logits = tf.random.stateless_normal([4, WIDTH, VOCABULARY], [0, 0])
    return logits, tokens, tf.constant(time), listed


def test_phrases_run_in_graph_with_unknown_sizes():
    signature = [
        tf.TensorSpec([None, WIDTH, VOCABULARY]),
        tf.TensorSpec([None, WIDTH, None], tf.int32),
        tf.TensorSpec([], tf.int32),
        tf.TensorSpec([None, None, None], tf.int32),
    ]
    graph = tf.function(everything, input_signature=signature)
    logits, tokens, time, listed = graph_case()
    for expected, found in zip(
        everything(logits, tokens, time, listed),
        graph(logits, tokens, time, listed),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)
    assert graph(logits[:0], tokens[:0], time, listed[:0])[0].shape == (0, WIDTH, VOCABULARY)
    for nothing in (listed[:, :0], listed[..., :0]):  # no phrases, or phrases of no tokens
        found = graph(logits, tokens, time, nothing)
        np.testing.assert_array_equal(found[0], logits)
        np.testing.assert_array_equal(found[6], logits)
    no_room = graph(logits, tokens[..., :0], 0, listed)  # a search that has not begun
    assert (no_room[3].numpy() == 0).all()


def test_xla_compiles_phrases():
    case = graph_case()
    compiled = tf.function(everything, jit_compile=True)(*case)
    for expected, found in zip(everything(*case), compiled, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_phrases_treat_sentences_independently():
    logits, tokens, time, listed = graph_case()
    together = everything(logits, tokens, time, listed)
    for row in range(4):
        only = slice(row, row + 1)
        alone = everything(logits[only], tokens[only], time, listed[only])
        for expected, found in zip(alone, together, strict=True):
            np.testing.assert_array_equal(found[only], expected)


def test_one_list_of_phrases_serves_all_sentences():
    logits, tokens, time, listed = graph_case()
    expected = everything(logits, tokens, time, tf.repeat(listed[:1], 4, axis=0))
    for each_expected, found in zip(
        expected, everything(logits, tokens, time, listed[:1]), strict=True
    ):
        np.testing.assert_array_equal(found, each_expected)
