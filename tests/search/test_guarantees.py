"""What every translation keeps to, whatever the search: many random sentences at once."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from plain_search import Wants, arguments, assert_same, occurs, tokens_of

from keras_transformer.decoding import DecodingState
from keras_transformer.search import beam_search, sample

SENTENCES = 60

SEARCHES = {
    "greedy": functools.partial(beam_search, beam_size=1),
    "beam": functools.partial(beam_search, beam_size=4, num_translations=4),
    "groups": functools.partial(
        beam_search, beam_size=4, num_translations=4, beam_groups=2, diversity_penalty=0.8
    ),
    "sampling": functools.partial(sample, num_translations=4, temperature=1.3, seed=5),
}
every_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


def translations(table_model, search, wants):
    """Yields what each sentence wants and the tokens of each translation, EOS left out."""
    model = table_model(sentences=len(wants), vocabulary_size=12, seed=1, end_bias=2.5)
    width = search.keywords.get("beam_size") or search.keywords["num_translations"]
    found = search(model.step, model.state(range(len(wants)), width), **arguments(wants))
    for row, place in np.ndindex(*found.scores.shape):
        tokens = tokens_of(found, row, place)
        yield wants[row], tokens[:-1] if tokens else None


def random_phrases(random, count, first, last):
    """Returns up to `count` phrases of tokens from `first` to `last`."""
    return tuple(
        tuple(random.integers(first, last, random.integers(1, 4), endpoint=True).tolist())
        for _ in range(random.integers(0, count, endpoint=True))
    )


@every_search
def test_required_phrases_are_in_every_translation_that_has_room_for_them(table_model, search):
    random = np.random.default_rng(2)
    wants = []
    for _ in range(SENTENCES):
        required = random_phrases(random, 3, 4, 6)  # few tokens: phrases overlap
        prefix = tuple(random.integers(4, 12, random.integers(0, 3)).tolist())
        room = len(prefix) + sum(map(len, required)) + int(random.integers(0, 6))
        wants.append(Wants(room, prefix=prefix, required=required))
    num_phrases = 0
    best = {}
    for each, tokens in translations(table_model, search, wants):
        best.setdefault(each, tokens)
        if tokens is None:  # the beam may hold less than is wanted, but never nothing
            continue
        assert tokens[: len(each.prefix)] == each.prefix
        assert len(tokens) <= each.limit
        for phrase in each.required:
            assert occurs(phrase, tokens)
            num_phrases += 1
    assert None not in best.values()
    assert num_phrases > SENTENCES


@every_search
def test_banned_phrases_repeated_ngrams_and_early_ends_are_in_no_translation(table_model, search):
    random = np.random.default_rng(3)
    wants = [
        Wants(
            int(random.integers(0, 15)),
            min_length=int(random.integers(0, 8)),
            no_repeat_ngram=int(random.integers(0, 4)),
            repetition_penalty=float(random.choice([0.5, 1.0, 2.0])),
            banned=random_phrases(random, 4, 4, 11),
            required=random_phrases(random, 1, 4, 11),
        )
        for _ in range(SENTENCES)
    ]
    num_found = 0
    for each, tokens in translations(table_model, search, wants):
        if tokens is None:  # constraints may contradict each other
            continue
        num_found += 1
        assert min(each.min_length, each.limit) <= len(tokens) <= each.limit
        assert not any(occurs(phrase, tokens) for phrase in each.banned)
        size = each.no_repeat_ngram
        ngrams = [tokens[i : i + size] for i in range(len(tokens) - size + 1)] if size else []
        assert len(set(ngrams)) == len(ngrams)
        if sum(map(len, each.required)) <= each.limit:
            assert all(occurs(phrase, tokens) for phrase in each.required)
    assert num_found > SENTENCES // 2


@pytest.mark.slow
@every_search
def test_sentences_that_finish_leave_the_batch_and_change_nothing_for_others(table_model, search):
    limits = [12, 0, 2, 1, 0, 8, 3, 1]
    model = table_model(sentences=8, vocabulary_size=12, seed=4, end_bias=-4.0, source_length=3)
    width = search.keywords.get("beam_size") or search.keywords["num_translations"]
    wants = [Wants(limit, beta=0.2, no_repeat_ngram=4, required=((4, 5),)) for limit in limits]
    together = search(model.step, model.state(range(8), width), **arguments(wants))
    sizes = [rows for rows, _ in model.calls]
    assert sizes[0] == 8 and sizes[-1] <= 2
    assert sizes == sorted(sizes, reverse=True)
    for row, each in enumerate(wants):
        alone = search(model.step, model.state([row], width), **arguments([each]))
        assert_same(alone, together, 0, row)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["greedy", "beam", "sampling"])
@pytest.mark.parametrize("max_length_bound", [None, 40])
def test_logits_that_are_no_numbers_end_the_search_without_a_translation(method, max_length_bound):
    def step(ids, state):
        return tf.fill([tf.shape(ids)[0], ids.shape[1], 7], np.nan), state

    def search(starts):
        arguments = dict(bos_ids=starts, max_lengths=tf.constant([30, 3]))
        arguments["max_length_bound"] = max_length_bound
        if method == "sampling":
            return sample(step, DecodingState(), num_translations=2, **arguments)
        size = {"greedy": 1, "beam": 3}[method]
        return beam_search(step, DecodingState(), beam_size=size, **arguments)

    found = tf.function(search, autograph=False)(tf.constant([2, 2]))
    np.testing.assert_array_equal(found.scores, np.float32(-1e9))
    np.testing.assert_array_equal(found.lengths, 0)


@every_search
def test_an_argument_that_a_search_does_not_have_is_an_error(table_model, search):
    model = table_model(sentences=1, vocabulary_size=9, seed=1)
    state = model.state([0], 4)
    for wrong in (dict(lenght_penalty=1.0), dict(beta=tf.constant([0.5]))):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            search(model.step, state, **arguments([Wants(3)]), **wrong)


def test_what_only_sampling_reads_is_an_error_for_a_beam(table_model):
    model = table_model(sentences=1, vocabulary_size=9, seed=1)
    with pytest.raises(TypeError, match="temperature"):
        beam_search(
            model.step, model.state([0], 4), temperature=tf.constant(2.0), **arguments([Wants(3)])
        )
