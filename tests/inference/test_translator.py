"""Sentences in, translations out, with a model that was trained for seconds."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import SearchConfig
from keras_transformer.inference import Translator
from keras_transformer.models import Transformer
from keras_transformer.objectives import SmoothedCrossEntropy

_SENTENCES = ["two house", "sun", "cat sun tree two", "hello", "tree hello cat", "two two"]


def _texts(results):
    return [best.text for best, *_ in results]


def test_blank_sentences_have_empty_translations(translator, words):
    results = translator.translate(["", "sun", " ", "\t \u3000", "two two"])
    assert _texts(results) == ["", words["sun"], "", "", f"{words['two']} {words['two']}"]
    assert [best.score for (best,) in results if not best.text] == [0.0] * 3


@pytest.mark.slow
def test_unknown_words_are_copied_where_they_are_attended_to(make_translator, words):
    every_word = [*words.values()]
    sentences = ["sun Владимир", "sun", "Zoë cat"]
    options = dict(banned_phrases=every_word, max_length=1)
    copied = make_translator().translate(sentences, **options)
    assert _texts(copied) == ["Владимир", "⁇", "Zoë"]
    kept = make_translator(replace_unknowns=False)
    assert _texts(kept.translate(sentences, **options)) == ["⁇"] * 3
    assert [best.score for (best,) in copied] == [
        best.score for (best,) in kept.translate(sentences, **options)
    ]
    # Spaces stand for control characters, and the token stays where nothing else is left.
    odd = make_translator().translate(["sun Влад\x1bимир", "sun\x07", "sun \x07"], **options)
    assert _texts(odd) == ["Влад имир", "sun", "⁇"]
    # The unknown word is found where spaces fill what is read of a text.
    short = make_translator(max_source_length=2)
    spaces = short.source_tokenizer.vocabulary.max_characters(2) * " "
    assert _texts(short.translate([f"{spaces}Zoë", f"{spaces}Zo"], **options)) == ["Zoë", "Zo"]
    # Of several unknown words, the one with the most attention to each.
    sentence, limit = "Владимир sun Zoë", dict(max_length=2, min_length=2)
    ((found,),) = make_translator().translate([sentence], banned_phrases=every_word, **limit)
    ((plain,),) = kept.translate([sentence], banned_phrases=every_word, details=True, **limit)
    attended = [["Владимир", "Zoë"][int(row[0] < row[2])] for row in plain.attention[:2]]
    assert found.text.split() == attended


@pytest.mark.parametrize("method", ["beam", "sampling"])
def test_blank_sentence_has_one_translation_of_an_n_best_list(make_translator, method):
    blank, other = make_translator(num_translations=3, method=method).translate(["", "sun"])
    assert [(each.text, each.score) for each in blank] == [("", 0.0)]
    assert len(other) == 3


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
        for each in all_of_them:
            best.setdefault(each.text.split()[0], each)
        assert len(best) < 4
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
    assert whole[0].text == cut[0].text
    assert whole[0].score == pytest.approx(cut[0].score, abs=1e-4)
    longest = limits.max_source_length + limits.max_extra_length
    assert 0 < len(whole[0].text.split()) <= longest
    assert known[0].text == f"{words['two']} {words['cat']}"
    with pytest.warns(UserWarning, match="1 of 2 translations are longer than the model can gen"):
        score, _ = translator.score([text, "two"], [" ".join([words["two"]] * 70_000), "x"])
    assert len(score.token_scores) == longest + 1  # and the end
    assert np.isfinite(score.token_scores).all()


@pytest.mark.slow
def test_cached_projection_follows_changed_weights(trained):
    model, *vocabularies = trained
    model = Transformer.from_config(model.get_config())
    model.set_weights(trained[0].get_weights())
    plain = Translator(model, *vocabularies)
    fast = plain.with_cached_projection()
    table = model.target_embedding.table

    def fit():
        model.compile(keras.optimizers.SGD(1.0), loss=SmoothedCrossEntropy(0.1))
        ids = np.array([[5, 6, 7, 3]])
        model.fit({"source": ids, "target": ids}, ids, epochs=2, verbose=0)

    before = fast.translate(_SENTENCES)
    assert before == plain.translate(_SENTENCES)
    for change in (
        fit,
        lambda: table.assign(table[::-1]),
        lambda: model.set_weights([0.5 * weights for weights in model.get_weights()]),
    ):
        change()
        after = fast.translate(_SENTENCES)
        assert after == plain.translate(_SENTENCES) != before
        assert fast.score(["sun"], ["木"]) == plain.score(["sun"], ["木"])
        eager = fast(tf.constant(["sun two"]))["scores"]
        assert eager.numpy() == plain(tf.constant(["sun two"]))["scores"].numpy()
        before = after
