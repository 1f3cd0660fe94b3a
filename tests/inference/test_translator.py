"""Sentences in, translations out: the order, the cases without words, the options of search."""

import pathlib
import re
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import inference
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator
from keras_transformer.models import Transformer
from keras_transformer.objectives import SmoothedCrossEntropy

_SENTENCES = ["two house", "sun", "cat sun tree two", "hello", "tree hello cat", "two two"]


def _expected(sentences, words):
    return [" ".join(words[word] for word in sentence.split()) for sentence in sentences]


def _texts(results):
    return [best.text for best, *_ in results]


def test_a_trained_model_translates_what_it_has_learned(translator, words):
    assert _texts(translator.translate(_SENTENCES)) == _expected(_SENTENCES, words)


def test_each_side_can_have_its_own_vocabulary(separate_translator, words):
    assert _texts(separate_translator.translate(_SENTENCES)) == _expected(_SENTENCES, words)
    source, target = separate_translator.source_tokenizer, separate_translator.target_tokenizer
    assert source.vocabulary.fingerprint != target.vocabulary.fingerprint


def test_a_sentence_gets_the_same_translation_alone_and_in_any_batch(translator):
    alone = [translator.translate([sentence])[0][0] for sentence in _SENTENCES]
    for batch_size in (2, 4, 64):
        together = [best for (best,) in translator.translate(_SENTENCES, batch_size)]
        assert [best.text for best in together] == [best.text for best in alone]
        np.testing.assert_allclose(
            [best.score for best in together], [best.score for best in alone], atol=1e-5
        )


def test_translations_come_in_the_order_of_the_sentences(translator, words):
    sentences = [_SENTENCES[index] for index in (3, 1, 4, 1, 5, 0, 2, 0)]
    assert _texts(translator.translate(sentences, batch_size=3)) == _expected(sentences, words)


def test_no_sentences_give_no_translations(translator):
    assert translator.translate([]) == []
    answer = translator(tf.constant([], tf.string))
    assert answer["translations"].shape == answer["scores"].shape == (0, 1)


def test_a_sentence_without_words_has_the_empty_translation_among_others_that_have_words(
    translator, words
):
    results = translator.translate(["", "sun", " ", "\t \u3000", "two two"])
    assert _texts(results) == ["", words["sun"], "", "", f"{words['two']} {words['two']}"]
    assert [best.score for (best,) in results if not best.text] == [0.0] * 3


def test_a_new_random_seed_does_no_harm_to_a_translator(translator, words):
    translator.translate(["sun"])
    keras.utils.set_random_seed(2)  # clears TensorFlow's cache of kernels, and what they own
    assert _texts(translator.translate(["sun"])) == [words["sun"]]


def test_scores_are_log_probabilities(translator):
    assert all(-10 < best.score < 0 for (best,) in translator.translate(_SENTENCES))


def test_n_best_translations_are_different_and_sorted_by_score(separate_translator):
    for results in separate_translator.translate(_SENTENCES):
        first, second = results
        assert first.text != second.text
        assert first.score > second.score


def test_greedy_search_finds_what_the_beam_finds_where_the_model_is_sure(make_translator, words):
    greedy = make_translator(beam_size=1)
    assert _texts(greedy.translate(_SENTENCES)) == _expected(_SENTENCES, words)


def test_what_is_beyond_the_longest_source_is_not_read(translator, make_translator):
    limit = translator.search.max_source_length
    long = ["sun two cat"] * 10
    cut = " ".join(" ".join(long).split()[:limit])
    assert translator.translate([" ".join(long)]) == translator.translate([cut])
    shorter = make_translator(max_source_length=1)
    assert _texts(shorter.translate(["cat sun tree"])) == _texts(translator.translate(["cat"]))


def test_megabytes_are_read_and_answered_as_far_as_the_default_limits_go(trained, words):
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
    score = translator.score([text], [text])[0]
    assert len(score.token_scores) == longest + 1  # and the end
    assert np.isfinite(score.token_scores).all()


def test_a_translation_is_at_most_so_much_longer_than_its_source(make_translator, words):
    eager_to_go_on = make_translator(max_extra_length=0)
    (best,) = eager_to_go_on.translate(["hello nonsense"])[0]
    assert len(best.text.split()) <= 2


def test_the_search_is_the_papers_by_default(trained):
    assert Translator(*trained).search == SearchConfig()


def test_one_string_in_place_of_a_list_is_refused(translator):
    with pytest.raises(InputError, match="text must be a list of sentences, got one: 'two house'"):
        translator.translate("two house")


@pytest.mark.parametrize("batch_size", [0, -3])
def test_a_batch_has_at_least_one_sentence(translator, batch_size):
    with pytest.raises(InputError, match=f"batch_size must be at least 1, got {batch_size}"):
        translator.translate(_SENTENCES, batch_size)


def test_the_files_on_the_way_to_a_step_are_those_that_the_folder_lists(trained, monkeypatch):
    model, *_ = trained
    package = pathlib.Path(inference.__file__).parents[1]
    stacks = []

    def step(*arguments):
        stacks.append(traceback.extract_stack()[:-1])
        return Transformer.step(model, *arguments)

    monkeypatch.setattr(model, "step", step)
    Translator(*trained).with_cached_projection().translate(["two house"])
    (files,) = {
        tuple(dict.fromkeys(str(pathlib.Path(frame.filename).relative_to(package))
                            for frame in stack if package in pathlib.Path(frame.filename).parents))
        for stack in stacks
    }  # fmt: skip
    entry, *listed = re.findall(r"^\d\. `(.*?)`", inference.__doc__, re.M)
    assert entry == "line_io.py"
    # `Translator.translate` stands before the batches where a program calls it.
    assert set(files) == set(listed)
    assert len([entry, *listed]) <= 7


@pytest.mark.parametrize("change", ["fit", "assign", "set_weights"])
def test_a_precomputed_translator_notices_changed_weights(trained, change):
    model, *vocabularies = trained
    model = Transformer.from_config(model.get_config())
    model.set_weights(trained[0].get_weights())
    plain, fast = (
        Translator(model, *vocabularies),
        Translator(model, *vocabularies).with_cached_projection(),
    )
    before = fast.translate(_SENTENCES)
    assert before == plain.translate(_SENTENCES)
    if change == "fit":
        model.compile(keras.optimizers.SGD(1.0), loss=SmoothedCrossEntropy(0.1))
        ids = np.array([[5, 6, 7, 3]])
        model.fit({"source": ids, "target": ids}, ids, epochs=2, verbose=0)
    elif change == "assign":
        table = model.target_embedding.table
        table.assign(table[::-1])
    else:
        model.set_weights([0.5 * weights for weights in model.get_weights()])
    after = fast.translate(_SENTENCES)
    assert after == plain.translate(_SENTENCES) != before
    assert fast.score(["sun"], ["木"]) == plain.score(["sun"], ["木"])
    eager = fast(tf.constant(["sun two"]))["scores"]
    assert eager.numpy() == plain(tf.constant(["sun two"]))["scores"].numpy()
