"""Sentences in, translations out, with a model that was trained for seconds."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Translator
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer
from keras_transformer.sentences import SentenceWarning

_SENTENCES = ["two house", "sun", "cat sun tree two", "hello", "tree hello cat", "two two"]


def _texts(results):
    return [best.text for best in results]


def test_blank_sentences_have_empty_translations(translator, words):
    results = translator.translate(["", "sun", " ", "\t \u3000", "two two"])
    assert _texts(results) == ["", words["sun"], "", "", f"{words['two']} {words['two']}"]
    assert [best.score for best in results if not best.text] == [0.0] * 3


@pytest.mark.parametrize("more", [-2, 3])
def test_vocabulary_of_another_size_is_rejected(trained, more):
    model, source, target = trained
    size = source.size + more
    sizes = dict(vocabulary_size=size, target_vocabulary_size=None, share_embeddings="all")
    other = Transformer(model.config.replace(**sizes))
    message = f"the model has {size} source tokens, the vocabulary {source.size}; give"
    with pytest.raises(InputError, match=message):
        Translator(other, source, target)


@pytest.fixture(scope="module")
def translate_unknowns(make_translator, words):
    """Translates each sentence to so many unknown tokens."""

    def translate(sentences, count=1, *, replace_unknowns=True, **options):
        translator = make_translator(replace_unknowns=replace_unknowns)
        limits = dict(max_length=count, min_length=count, banned_phrases=[*words.values()])
        return [best.text for best in translator.translate(sentences, **limits, **options)]

    return translate


@pytest.mark.slow
def test_unknown_tokens_show_the_unknown_words_in_order(translate_unknowns):
    sentences = ["sun Владимир", "sun", "Zoë cat Владимир sun 木木木"]
    assert translate_unknowns(sentences) == ["Владимир", "⁇", "Zoë"]
    assert translate_unknowns(sentences, 2) == ["Владимир Владимир", "⁇ ⁇", "Zoë Владимир"]
    assert translate_unknowns(sentences, 2, replace_unknowns=False) == ["⁇ ⁇"] * 3


def test_unknown_tokens_of_a_prefix_stay(translate_unknowns):
    with pytest.warns(SentenceWarning, match="the vocabulary lacks characters of the prefix"):
        (text,) = translate_unknowns(["Zoë sun Владимир"], 3, prefix=["😀"])
    assert text == "⁇ Zoë Владимир"


def test_sentence_of_unknown_tokens_alone_comes_back(make_translator):
    sentences = ["😀", " Москва,  木木\x07木 ", "😀 sun"]
    *copied, other = _texts(make_translator().translate(sentences))
    assert copied == ["😀", "Москва,  木木 木"] and other != "😀"
    assert _texts(make_translator(replace_unknowns=False).translate(sentences))[0] != "😀"


def test_copied_words_have_no_control_characters_and_are_utf8(translate_unknowns, make_translator):
    assert translate_unknowns(["sun Влад\x1bимир", "sun \x07"]) == ["Влад имир", "⁇"]
    translator = make_translator()
    answer = translator(tf.constant([b"ein \xe4 Kind", b"Vladim\xff\xfer", b"\xe4", "Zoë"]))
    for text in answer["translations"].numpy().ravel():
        assert "\ufffd" not in text.decode()


def test_unknown_word_behind_many_spaces_is_copied(make_translator, words):
    short = make_translator(max_source_length=2)
    spaces = short.source_tokenizer.vocabulary.max_characters(2) * " "
    options = dict(banned_phrases=[*words.values()], max_length=1)
    assert _texts(short.translate([f"{spaces}Zoë", f"{spaces}Zo"], **options)) == ["Zoë", "Zo"]


@pytest.mark.parametrize("method", ["beam", "sampling"])
def test_blank_sentence_has_one_translation_of_an_n_best_list(make_translator, method):
    blank, other = make_translator(num_translations=3, method=method).translate(["", "sun"])
    assert (blank.text, blank.score, blank.alternatives) == ("", 0.0, ())
    assert len(other.alternatives) == 2


@pytest.mark.slow
def test_equal_texts_of_an_n_best_list_are_one_translation(trained, monkeypatch):
    search = SearchConfig(num_translations=4, max_source_length=12, max_extra_length=5)
    every = Translator(*trained, search).translate(["two cat", "sun"], details=True)
    translator = Translator(*trained, search)
    tokenizer = translator.target_tokenizer
    detokenize = tokenizer.detokenize
    # As if the other words were segmentations of the first.
    monkeypatch.setattr(
        tokenizer, "detokenize", lambda ids: tf.strings.regex_replace(detokenize(ids), " .*", "")
    )
    for found, all_of_them in zip(
        translator.translate(["two cat", "sun"], details=True), every, strict=True
    ):
        best = {}
        for each in (all_of_them, *all_of_them.alternatives):
            best.setdefault(each.text.split()[0], each)
        assert len(best) < 4
        found = [found, *found.alternatives]
        assert [each.text for each in found] == list(best)
        assert [each.tokens for each in found] == [each.tokens for each in best.values()]
        np.testing.assert_allclose(
            [each.score for each in found], [each.score for each in best.values()], rtol=1e-5
        )


def test_set_random_seed_keeps_the_tokenizer_alive(translator, words):
    translator.translate(["sun"])
    keras.utils.set_random_seed(2)  # clears TensorFlow's cache of kernels, and what they own
    assert _texts(translator.translate(["sun"])) == [words["sun"]]


@pytest.mark.slow
def test_megabytes_are_cut_at_the_default_limits(trained, words):
    translator = Translator(*trained)
    limits = translator.search
    text = "two sun house " * 70_000
    whole, cut, known = translator.translate(
        [text, " ".join(text.split()[: limits.max_source_length]), "two cat"]
    )
    assert whole.text == cut.text
    assert whole.score == pytest.approx(cut.score, abs=1e-4)
    longest = limits.max_source_length + limits.max_extra_length
    assert 0 < len(whole.text.split()) <= longest
    assert known.text == f"{words['two']} {words['cat']}"
    with pytest.warns(UserWarning, match="1 of 2 sentences: the translation is longer"):
        score, _ = translator.score([text, "two"], [" ".join([words["two"]] * 70_000), "x"])
    assert len(score.token_scores) == longest
    assert np.isfinite(score.token_scores).all()


@pytest.mark.slow
def test_translations_follow_changed_weights(trained):
    model, *vocabularies = trained
    model = Transformer.from_config(model.get_config())
    model.set_weights(trained[0].get_weights())
    translator = Translator(model, *vocabularies)
    before = translator.translate(_SENTENCES)
    stored = Translator(model, *vocabularies).with_stored_projection()
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
