"""Lists of sentences in, results out: batches, order, warnings, unknown words, n-best lists."""

import itertools
import threading
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_run
from helpers import n_best
from model_cases import CONFIGS, random_model

from keras_transformer import Translator
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.inference import local_translator as translator_module
from keras_transformer.models import Ensemble, Transformer
from keras_transformer.sentences import SentenceWarning

_SENTENCES = ["two house", "", "cat sun tree two", "שלום", "tree hello cat", "sun"]


def _texts(results):
    return [best.text for best in results]


class Function:
    """A fake of the signature serving_default: what `answer` makes of a list of texts."""

    structured_input_signature = ((), {"text": tf.TensorSpec([None], tf.string, name="text")})

    def __init__(self, answer):
        self.answer = answer

    def __call__(self, text):
        translations = [[each] for each in self.answer([each.decode() for each in text.numpy()])]
        scores = [[0.0]] * len(translations)
        return {"translations": tf.constant(translations), "scores": tf.constant(scores)}


def test_threads_share_the_memory_keep_the_order_and_raise_errors(monkeypatch):
    monkeypatch.setattr(translator_module, "_MAX_BYTES", 200)
    monkeypatch.setattr(translator_module, "_num_workers", lambda: 2)
    both_are_there, started, sizes = threading.Barrier(2), itertools.count(), []

    def wait_and_translate(text):
        if next(started) < 2:
            both_are_there.wait(timeout=60)  # breaks where a batch waits for the other to end
        sizes.append((len(text), len(text) * max(len(each.encode()) for each in text)))
        if "sun" in text:
            time.sleep(0.05)
            raise ZeroDivisionError(text)
        return [each.upper() for each in text]

    local = Translator.from_functions({"serving_default": Function(wait_and_translate)}.get)
    sentences = ["x" * length for length in [400, 60, 30, 30, 90, *[10] * 40]] + ["я" * 30]
    assert _texts(local.translate(sentences)) == [text.upper() for text in sentences]
    assert sum(rows for rows, _ in sizes) == len(sentences)
    assert (local.translate([]), local.translate("two").text) == ([], "TWO")
    assert all(size <= 100 or rows == 1 for rows, size in sizes)
    with pytest.raises(ZeroDivisionError):
        local.translate(["sun", *sentences])


TWO = ["two", "three"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda each: each.translate(TWO, beam_size=2), "beam_size .* Translator.load"),
        (lambda each: each.translate(TWO, max_length=2.5), "max_length must .*, got 2.5"),
        (lambda each: each.translate(TWO, max_length=tf.constant(2.5)), "max_length .*got 2.5"),
        (lambda each: each.translate(TWO, max_length=[[3], [4]]), r"max_length must .*, got \[3\]"),
        (lambda each: each.translate(TWO, max_length=[1, True]), "max_length must .*, got True"),
        (lambda each: each.translate([2]), "sentences must be a string, got 2"),
        (lambda each: each.translate({"de": "a"}), "sentences must be a list .*got a dict"),
        (lambda each: each.score("two", TWO), "source must be a list of sentences, got one: 'tw"),
        (lambda each: each.align(TWO, "zwei"), "target must be a list of sentences, got one"),
        (lambda each: each.align(TWO, ["zwei"]), "as many sentences, got 2 and 1"),
    ],
)  # more of them in tests/client/test_client.py
def test_invalid_calls_are_rejected(translator, call, message):
    with pytest.raises(InputError, match=message):
        call(translator)


# A model that was trained for seconds


LONG = " ".join(["two"] * 13)  # 12 tokens are read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "remark", "rows"),
    [
        (lambda each: each.translate(TWO, prefix="q😀"), "options_ignored", [0, 1]),
        (lambda each: each.translate(TWO, prefix=["", "q😀"]), "options_ignored", [1]),
        (lambda each: each.translate(TWO, prefix=["", " " * 9999 + "x"]), "options_ignored", [1]),
        (lambda each: each.translate(TWO, max_extra_length=[None, 99]), "options_ignored", [1]),
        (lambda each: each.translate(["sun", LONG]), "source_cut", [1]),
        (lambda each: each.score(["sun", LONG], ["x"] * 2), "source_cut", [1]),
        (lambda each: each.align(["sun", LONG], ["x"] * 2), "source_cut", [1]),
        (lambda each: each.score(TWO, ["木 " * 18, "木"]), "is_cut", [0]),
    ],
)  # fmt: skip
def test_sentences_that_are_not_taken_as_they_are_are_reported(two_best, call, remark, rows):
    with pytest.warns(SentenceWarning) as caught:
        call(two_best)
    assert [(each.message.remark, each.message.rows) for each in caught] == [(remark, rows)]


def test_blank_sentences_have_one_empty_translation(make_translator, words):
    for options in ({}, dict(num_translations=3), dict(num_translations=3, method="sampling")):
        results = make_translator(**options).translate(["", "sun", " ", "\t \u3000", "two two"])
        blank = [results[row] for row in (0, 2, 3)]
        assert [(best.text, best.score, best.alternatives) for best in blank] == [("", 0.0, ())] * 3
        assert len(results[1].alternatives) == options.get("num_translations", 1) - 1
        if "method" not in options:
            assert _texts(results)[1::3] == [words["sun"], f"{words['two']} {words['two']}"]


@pytest.mark.parametrize("more", [-2, 3])
def test_vocabulary_of_another_size_is_rejected(trained, more):
    model, source, target = trained
    size = source.size + more
    sizes = dict(vocabulary_size=size, target_vocabulary_size=None, share_embeddings="all")
    other = Transformer(model.config.replace(**sizes))
    message = f"the model has {size} source tokens, the vocabulary {source.size}; give"
    with pytest.raises(InputError, match=message):
        Translator(other, source, target)


# Each case: sentences, unknown tokens that are forced, options, translations.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sentences", "count", "options", "expected"),
    [
        (["sun Владимир", "sun", "Zoë cat Владимир"], 1, {}, ["Владимир", "⁇", "Zoë"]),
        (["sun Владимир"], 2, dict(replace_unknowns=False), ["⁇ ⁇"]),
        (["sun Влад\x1bимир", "sun \x07"], 1, {}, ["Влад имир", "⁇"]),  # control characters
        (["Zoë sun Владимир", "Zoë"], 3, dict(prefix="😀"), ["⁇ Zoë Владимир", "⁇ Zoë Zoë"]),
        (["SPACES Zoë"], 1, {}, ["Zoë"]),  # as many as the model reads
        # A sentence of unknown tokens alone comes back as a whole.
        (["😀", " Москва,  木木\x07木 "], 1, {}, ["😀", "Москва,  木木 木"]),
        (["😀"], 1, dict(replace_unknowns=False), ["⁇"]),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::keras_transformer.sentences.SentenceWarning")
def test_unknown_words_are_copied_in_order(
    make_translator, words, sentences, count, options, expected
):
    options = dict(options)
    configured = {name: options.pop(name) for name in ("replace_unknowns",) if name in options}
    limits = dict(max_length=count, min_length=count)
    translator = make_translator(banned=tuple(words.values()), **configured)
    spaces = " " * translator.source.max_characters(12)
    sentences = [text.replace("SPACES ", spaces) for text in sentences]
    assert _texts(translator.translate(sentences, **limits, **options)) == expected


@pytest.mark.slow
def test_equal_texts_of_an_n_best_list_are_one_translation(trained, monkeypatch):
    search = SearchConfig(num_translations=4, max_source_length=12, max_extra_length=5)
    every = Translator(*trained, search).translate(["two cat", "sun"])
    translator = Translator(*trained, search)
    tokenizer = translator.functions.target_tokenizer
    detokenize = tokenizer.detokenize
    # As if the other words were segmentations of the first.
    monkeypatch.setattr(
        tokenizer, "detokenize", lambda ids: tf.strings.regex_replace(detokenize(ids), " .*", "")
    )
    results = translator.translate(["two cat", "sun"])
    for found, all_of_them in zip(results, every, strict=True):
        best = {}
        for each in n_best([all_of_them]):
            best.setdefault(each.text.split()[0], each)
        assert len(best) < 4
        found = n_best([found])
        assert [each.text for each in found] == list(best)
        np.testing.assert_allclose(
            [each.score for each in found], [each.score for each in best.values()], rtol=1e-5
        )


def test_set_random_seed_keeps_the_tokenizer_alive(translator, words):
    translator.translate(["sun"])
    keras.utils.set_random_seed(2)  # clears TensorFlow's cache of kernels, and what they own
    assert _texts(translator.translate(["sun"])) == [words["sun"]]


@pytest.mark.slow
def test_translations_follow_changed_weights(trained):
    model, *vocabularies = trained
    model = Transformer.from_config(model.get_config())
    model.set_weights(trained[0].get_weights())
    translator = Translator(model, *vocabularies)
    before = translator.translate(_SENTENCES)
    stored = Translator.from_functions(translator.functions.with_stored_projection().function)
    assert stored.translate(_SENTENCES) == before
    table = model.target_embedding.table
    table.assign(table[::-1])
    after = translator.translate(_SENTENCES)
    assert after == Translator(model, *vocabularies).translate(_SENTENCES) != before
    model.quantize("int8")  # the model has other variables then
    for variable in model.trainable_variables[-3:]:
        variable.assign(2 * variable)
    changed = translator.translate(_SENTENCES)
    assert changed == Translator(model, *vocabularies).translate(_SENTENCES)


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: Ensemble([model])])
def test_texts_are_cut_where_learned_positions_end(wrap):
    text, config = "abcdef" * 9, CONFIGS["transformer, learned"]  # 20 positions
    model = random_model(config.replace(target_vocabulary_size=None))
    translator = Translator(wrap(model), tiny_run.make_vocabulary())
    translator.functions.marks_cut_outputs = True
    with pytest.warns(SentenceWarning) as caught:
        translator.translate(text, min_length=19)
        (score,) = translator.score(["a"], [text])
        (attention,) = translator.attention([text], [text])
    remarks = [each.message.remark for each in caught]
    assert remarks == ["source_cut", "best_cut", "is_cut", "source_cut", "is_cut"]
    assert len(score.token_scores) == 19 and attention.weights.shape == (20, 20)
    for limit in (0, 20):  # a request cannot raise the limit
        with pytest.warns(SentenceWarning) as caught:
            longest = translator.translate(text, max_length=limit, min_length=19)
        assert {"options_ignored", "best_cut"} <= {each.message.remark for each in caught}
        assert longest.text == translator.translate(text, min_length=19).text


@pytest.mark.slow
def test_sources_and_outputs_are_cut_beyond_their_limits(trained):
    search = SearchConfig(max_source_length=12, max_extra_length=5)
    translator = Translator(*trained, search)
    translator.functions.marks_cut_outputs = True

    def remarks(sentence, **options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SentenceWarning)
            translator.translate(["", sentence], **options)
        assert all(each.message.rows == [1] for each in caught)
        return {each.message.remark for each in caught}

    for length in (11, 12, 13, 400):
        assert ("source_cut" in remarks(" ".join(["two"] * length))) == (length > 12)
    for limit in (1, 2, 3, 4):
        assert remarks("cat two sun", max_length=limit) == ({"best_cut"} if limit <= 3 else set())
