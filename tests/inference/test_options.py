"""Search options from text to text: configured, or set for single sentences."""

import numpy as np
import pytest
import tensorflow as tf
from plain_search import Banned

from keras_transformer.config import EOS_ID, SearchConfig
from keras_transformer.decoding import NO_SCORE, DecodingState
from keras_transformer.inference.local_translator import signature_inputs
from keras_transformer.search.model_search import number_settings, search_model

SENTENCES = ["hello two cat", "sun", "tree house tree sun", ""]


def texts(answer):
    return [[text.decode() for text in row] for row in answer["translations"].numpy().tolist()]


def option_inputs(translator):
    function = translator.functions.function("translate_options")  # traced once
    return {name: spec for name, spec in signature_inputs(function).items() if name != "text"}


def plainly(translator, sentences):
    function = translator.functions.function("serving_default")
    return function(text=tf.constant(sentences, tf.string))


def ask(translator, sentences, **options):
    """Translates with options: a value for all, or a list with one for each."""
    columns = {}
    for name, spec in option_inputs(translator).items():
        values = options.pop(name, "" if spec.dtype == tf.string else -1)
        values = values if isinstance(values, list) else [values] * len(sentences)
        columns[name] = tf.constant(values, spec.dtype)
    assert not options
    function = translator.functions.function("translate_options")
    return function(text=tf.constant(sentences, tf.string), **columns)


def test_options_differ_between_sentences(translator, words):
    plain = texts(plainly(translator, ["hello two"] * 4))[0][0]
    answer = ask(
        translator,
        ["hello two"] * 3,
        prefix=["", words["sun"], ""],
        max_length=[-1, -1, 1],
    )
    same, begun, short = (row[0] for row in texts(answer))
    assert same == plain == f"{words['hello']} {words['two']}"
    assert begun.startswith(words["sun"])
    assert len(short.split()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(length_penalty=3.0, coverage_penalty=0.4),
        dict(repetition_penalty=4.0, min_length=5),
        dict(repetition_penalty=1e-5, max_length=3),
        dict(no_repeat_ngram=1, max_extra_length=1),
        dict(max_length=2),
    ],
    ids=str,
)
def test_options_equal_the_same_configuration(make_translator, two_best, options):
    sentences = ["tree tree tree", "hello", "two cat"]
    expected = plainly(make_translator(num_translations=2, **options), sentences)
    answer = ask(two_best, sentences, **options)
    assert texts(answer) == texts(expected)
    np.testing.assert_allclose(answer["scores"], expected["scores"], rtol=1e-4)


def test_samples_depend_on_the_sentences_seed_only(make_translator):
    translator = make_translator(method="sampling", num_translations=3, temperature=5.0)
    sentences = ["hello two cat", "sun sun", "hello two cat"]
    first = texts(ask(translator, sentences, seed=[7, 8, 9]))
    alone = texts(ask(translator, sentences[:1], seed=7))
    assert first[0] == alone[0] and first[0] != first[2]
    assert first == texts(ask(translator, sentences, seed=[7, 8, 9]))
    cold = texts(ask(translator, sentences, temperature=0.0, top_k=1))
    assert all(len(set(row)) == 1 for row in cold)


every_method = pytest.mark.parametrize(
    "search", [dict(), dict(beam_size=1), dict(method="sampling", seed=3)], ids=str
)


@pytest.mark.slow
@every_method
def test_extreme_numbers_give_finite_scores(make_translator, search):
    translator = make_translator(**search)
    inputs = option_inputs(translator)
    names = [name for name, spec in inputs.items() if spec.dtype.is_floating]
    pairs = [(name, value) for name in names for value in (np.inf, 3e38, np.nan, 0.0)]
    options = {name: [-1.0, *(v if name == n else -1.0 for n, v in pairs)] for name in names}
    sentences = ["hello two cat"] * (len(pairs) + 1)
    answer = ask(translator, sentences, **options)
    assert np.isfinite(answer["scores"]).all()
    assert (answer["scores"].numpy() > NO_SCORE).all()
    (alone,) = texts(ask(translator, sentences[:1]))
    assert texts(answer)[0] == alone


@pytest.mark.parametrize("search", [dict(), dict(method="sampling")], ids=str)
def test_unknown_characters_and_names_of_control_tokens_are_kept_in_a_prefix(
    make_translator, search
):
    translator = make_translator(num_translations=4, forbid_unknown=True, **search)
    prefixes = ["q😀 木", "</s> 木", "<s> 木", "<pad> 木", ""]
    *begun, plain = texts(ask(translator, ["hello two"] * 5, prefix=prefixes))
    for row in begun:
        assert all(text.startswith("⁇ 木") and "⁇" not in text[1:] for text in row)
    assert not any("⁇" in text for text in plain)


@pytest.mark.parametrize("early_stop", ["exact", "first"])
def test_n_best_lists_have_no_empty_places(make_translator, words, early_stop):
    options = dict(num_translations=4, forbid_unknown=True, early_stop=early_stop)
    allowed = {words["cat"], words["sun"]}
    some = make_translator(banned=tuple({*words.values()} - allowed), **options)
    best = some.translate("cat", max_length=1)
    assert {best.text, *map(str, best.alternatives)} == allowed
    none = make_translator(banned=tuple(words.values()), **options).translate("cat")
    assert (none.text, none.score, none.alternatives) == ("", NO_SCORE, ())


class ModelThatEndsAtOnce:
    """EOS is by far the most probable token, then 7 and 6."""

    def encode(self, source, **options):
        return DecodingState(context=source)

    def step(self, ids, state):
        logits = 9.0 * tf.one_hot(EOS_ID, 9) + 2.0 * tf.one_hot(7, 9) + tf.one_hot(6, 9)
        return tf.zeros([*tf.unstack(tf.shape(ids)), 9]) + logits, state


@pytest.mark.parametrize(
    ("search", "spaces", "first"),
    [
        (dict(), (), 7),
        (dict(beam_size=1), (), 7),
        (dict(early_stop="first"), (), 7),
        (dict(method="sampling", top_k=1), (), 7),
        (dict(num_translations=2, length_penalty=0), (7,), 6),
        (dict(num_translations=2, length_penalty=0), (7, 5), 6),
    ],
    ids=str,
)
def test_empty_translation_or_bare_space_needs_min_length_0(search, spaces, first):
    model, source = ModelThatEndsAtOnce(), tf.constant([[5, EOS_ID], [EOS_ID, 0]])
    search = SearchConfig(**search)
    banned = Banned([[7]])  # which a task adds
    for options, constraints, expected in (
        ({}, [], [first, EOS_ID]),
        ({}, [banned], [6, EOS_ID]),
        ({"min_length": 0}, [], [EOS_ID]),
    ):
        changed = search.replace(**options)
        found = search_model(
            model, source, changed, number_settings(changed),
            space_ids=spaces, constraints=constraints,
        )  # fmt: skip
        assert found.ids[:, 0, : len(expected)].numpy().tolist() == [expected] * 2


# Translations of "hello" may have 5 tokens more than its one. Each case: the option, its values,
# which are ignored, other options of the request, the words of the translations if they are known.
@pytest.mark.parametrize(
    ("option", "values", "is_ignored", "others", "words"),
    [
        ("prefix", ["木 Haus", "木 q😀"], [0, 1], {}, None),
        # A batch waits for its longest row, so a prefix and a minimum are cut.
        ("prefix", ["木 " * 6, "木 " * 7, "木 " * 1000], [0, 1, 1], {}, [6, 6, 6]),
        ("prefix", ["木 木", "木 木 木"], [0, 1], dict(max_length=2), [2, 3]),
        ("min_length", [6, 7, 2**31 - 1], [0, 1, 1], {}, [6, 6, 6]),
        ("min_length", [3, 4], [0, 1], dict(max_length=3), [3, 3]),
        ("min_length", [1, 2], [0, 1], dict(max_extra_length=0), [1, 1]),
        ("max_extra_length", [5, 6], [0, 1], {}, None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_answer_says_that_an_option_is_ignored(
    translator, option, values, is_ignored, others, words
):
    answer = ask(translator, ["hello"] * len(values), **{option: values}, **others)
    assert answer["options_ignored"].numpy().tolist() == list(map(bool, is_ignored))
    if words is not None:
        assert [len(text.split()) for (text,) in texts(answer)] == words


def test_minimum_of_a_request_is_not_far_beyond_its_source(make_translator):
    """Even where translations may be far longer than sources; that of the configuration may."""
    answer = ask(make_translator(max_extra_length=90), ["hello"] * 2, min_length=[51, 2**31 - 1])
    assert answer["options_ignored"].numpy().tolist() == [False, True]
    assert [len(text.split()) for (text,) in texts(answer)] == [51, 51]
    configured = make_translator(max_extra_length=90, min_length=60)
    assert len(texts(ask(configured, ["hello"]))[0][0].split()) >= 60
