"""Draws against the probabilities that they are drawn from; all seeds are fixed."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.search.sampling import draw_tokens, sentence_seeds

INF = np.inf


def draws(probabilities, sentences=20_000, width=1, time=0):
    """Returns ids [B, W] drawn from the same probabilities with seeds 0, 1, 2, ..."""
    logits = tf.math.log(tf.constant(probabilities, tf.float32))
    logits = tf.broadcast_to(logits, [sentences, width, len(probabilities)])
    return draw_tokens(logits, tf.range(sentences), tf.constant(time)).numpy()


def assert_distributed(counts, probabilities):
    """Fails where Pearson's statistic is five standard deviations above its mean, or more."""
    counts, probabilities = np.asarray(counts), np.asarray(probabilities, float)
    assert counts[probabilities == 0].sum() == 0
    expected = counts.sum() * probabilities / probabilities.sum()
    possible = expected > 0
    statistic = np.sum((counts[possible] - expected[possible]) ** 2 / expected[possible])
    freedom = possible.sum() - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "probabilities",
    [
        [0.5, 0.25, 0.125, 0.125],
        [0.0, 0.01, 0.0, 0.19, 0.3, 0.5, 0.0],
        np.arange(1, 51) / (25 * 51),
        np.full(173, 1 / 173),
        np.where(np.arange(40) % 7 == 3, 1.0, 0.0) / 6,
    ],
    ids=["powers", "some forbidden", "ramp", "flat", "few allowed"],
)
def test_tokens_come_as_often_as_they_are_probable(probabilities):
    counts = np.bincount(draws(probabilities)[:, 0], minlength=len(probabilities))
    assert_distributed(counts, probabilities)


@pytest.mark.parametrize("other", ["time", "hypothesis", "seed"])
def test_draws_of_different_times_hypotheses_and_seeds_are_independent(other):
    probabilities = np.array([0.1, 0.2, 0.3, 0.4])
    first = draws(probabilities, width=2)
    second = {
        "time": draws(probabilities, time=1)[:, 0],
        "hypothesis": first[:, 1],
        "seed": np.roll(first[:, 0], 1),
    }[other]
    pairs = np.bincount(4 * first[:, 0] + second, minlength=16)
    assert_distributed(pairs, np.outer(probabilities, probabilities).ravel())


def test_one_seed_gives_times_and_hypotheses_as_often_as_they_are_probable():
    logits = tf.math.log(tf.broadcast_to([0.1, 0.2, 0.3, 0.4], [1, 400, 4]))
    found = [draw_tokens(logits, tf.constant([0]), time) for time in range(20)]
    assert_distributed(np.bincount(np.ravel(found)), [0.1, 0.2, 0.3, 0.4])


def test_rare_tokens_of_a_large_vocabulary_come_as_often_as_they_are_probable():
    # Half of the probability lies on token 0; a float32 running sum would blur the others.
    probabilities = np.full(37_000, 0.5 / 36_999)
    probabilities[0] = 0.5
    logits = tf.constant(np.log(np.broadcast_to(probabilities, [1, 60, 37_000])), tf.float32)
    found = np.ravel([draw_tokens(logits, tf.constant([seed]), 0) for seed in range(20)])
    bins = np.bincount(found // 1850, minlength=20)
    assert_distributed(bins, probabilities.reshape(20, 1850).sum(axis=1))


def test_a_sentence_draws_alone_what_it_draws_in_a_batch():
    random = np.random.default_rng(0)
    logits = tf.constant(random.standard_normal((5, 3, 100)), tf.float32)
    seeds = tf.constant([7, 0, -1, 2**40, 7], tf.int64)
    together = draw_tokens(logits, seeds, 4)
    for row in range(5):
        only = slice(row, row + 1)
        np.testing.assert_array_equal(draw_tokens(logits[only], seeds[only], 4), together[only])


def test_the_same_seed_repeats_and_another_does_not():
    logits = tf.zeros([2, 4, 1000])
    found = draw_tokens(logits, tf.constant([5, 5]), 0).numpy()
    np.testing.assert_array_equal(found[0], found[1])
    assert (draw_tokens(logits, tf.constant([6]), 0).numpy() != found).any()
    np.testing.assert_array_equal(draw_tokens(logits, tf.constant([5, 5], tf.int64), 0), found)


@pytest.mark.parametrize("allowed", [0, 41, 99])
def test_a_forbidden_token_is_never_drawn(allowed):
    logits = np.full((3000, 1, 100), -INF, "f")
    logits[:, :, allowed] = -50.0
    assert (draw_tokens(tf.constant(logits), tf.range(3000), 0).numpy() == allowed).all()


@pytest.mark.parametrize("shift", [1e30, -1e30, 80.0])
def test_huge_logits_do_not_overflow(shift):
    logits = tf.constant([[[shift, -INF, shift, -INF]]])
    found = [int(draw_tokens(logits, tf.constant([seed]), 0)[0, 0]) for seed in range(30)]
    assert set(found) == {0, 2}


def test_a_hypothesis_with_nothing_allowed_draws_token_0():
    assert int(draw_tokens(tf.fill([1, 1, 30], -INF), tf.constant([3]), 0)[0, 0]) == 0


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 10])
def test_small_vocabularies_are_drawn_from_whole(vocabulary):
    found = draw_tokens(tf.zeros([500, 1, vocabulary]), tf.range(500), 0).numpy()
    assert set(found.ravel()) == set(range(vocabulary))


def test_an_unknown_batch_size_and_an_empty_batch_and_xla_give_the_same():
    signature = [
        tf.TensorSpec([None, 2, 50]),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([], tf.int32),
    ]
    graph = tf.function(draw_tokens, input_signature=signature)
    logits = tf.constant(np.random.default_rng(1).standard_normal((40, 2, 50)), tf.float32)
    arguments = (logits, tf.range(40), tf.constant(3))
    expected = draw_tokens(*arguments)
    assert expected.dtype == tf.int32
    np.testing.assert_array_equal(graph(*arguments), expected)
    assert graph(logits[:0], tf.range(0), 3).shape == (0, 2)
    compiled = tf.function(draw_tokens, jit_compile=True)
    np.testing.assert_array_equal(compiled(*arguments), expected)


SOURCE = np.array([[5, 6, 3, 0], [6, 5, 3, 0], [5, 3, 0, 0], [5, 6, 3, 0]], "int32")


def test_sentences_have_seeds_of_their_own_whatever_their_neighbours_and_padding():
    seeds = sentence_seeds(7, SOURCE).numpy()
    assert seeds.dtype == np.int64
    assert len(set(seeds)) == 3
    assert seeds[0] == seeds[3]
    assert not set(seeds) & set(sentence_seeds(8, SOURCE).numpy())
    for row, ids in enumerate(SOURCE):
        (alone,) = sentence_seeds(7, ids[None, : np.count_nonzero(ids)]).numpy()
        assert alone == seeds[row]
    own = sentence_seeds([7, 8, 7, 8], SOURCE).numpy()
    assert own[2] == seeds[2]
    assert own[3] != own[0] == seeds[0]


def test_sentences_of_one_seed_get_samples_that_are_independent():
    random = np.random.default_rng(3)
    count, size = 4000, 5
    source = np.concatenate([random.integers(4, 9, (count, 6)), np.full((count, 1), 3)], axis=1)
    ids = draw_tokens(
        tf.zeros([count, 1, size]), sentence_seeds(0, source), tf.constant(0)
    ).numpy()[:, 0]
    # All draws are of one distribution; with one seed for all they would be one token.
    shares = np.bincount(ids, minlength=size) / count
    np.testing.assert_allclose(shares, 1 / size, atol=4 * (0.16 / count) ** 0.5)
    equal = np.mean(ids[1:] == ids[:-1])
    assert abs(equal - 1 / size) < 4 * (0.16 / count) ** 0.5
