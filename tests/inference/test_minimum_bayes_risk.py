"""Minimum Bayes risk: which of several translations is chosen, and from which."""

import math
import random

import numpy as np
import pytest
from sacrebleu.metrics.chrf import CHRF

from keras_transformer.decoding import NO_SCORE
from keras_transformer.errors import InputError
from keras_transformer.inference.minimum_bayes_risk import choose, chrf, utility_of
from keras_transformer.results import Translation
from keras_transformer.serving.export import export
from keras_transformer.tasks import TranslationTask, get_task


def same_words(texts):
    """Gives the number of words that two texts share."""
    sets = [set(text.split()) for text in texts]
    return np.array([[len(one & other) for other in sets] for one in sets], float)


def candidates(*texts):
    return [Translation(text, -float(index)) for index, text in enumerate(texts)]


# The choice


def test_translation_that_resembles_the_others_is_chosen():
    # With itself 3, 3, 3, 1; with the others 2 + 2, 2 + 1, 2 + 1, 0.
    best, *others = choose(candidates("x y z", "a b c", "a b d", "a e c", "q"), same_words, 3)
    assert best == Translation("a b c", (3 + 2 + 2) / 5)
    assert others == [Translation("a b d", 6 / 5), Translation("a e c", 6 / 5)]


def test_first_candidate_wins_a_tie():
    for texts in (["a b", "c d", "e f"], ["e f", "a b", "c d"]):
        assert choose(candidates(*texts), same_words) == [Translation(texts[0], round(2 / 3, 9))]


def test_candidate_counts_as_often_as_it_was_sampled():
    # Alone "a b c" has most words in common with the others; "q r" was drawn four times.
    texts = ["a b c", "a b d", "q r"]
    assert choose(candidates(*texts), same_words)[0].text == "a b c"
    assert choose(candidates(*texts, "q r", "q r", "q r"), same_words) == [
        Translation("q r", round(4 * 2 / 6, 9))
    ]


def test_sentence_without_translation_keeps_its_score():
    assert choose([Translation("", NO_SCORE)], chrf) == [Translation("", NO_SCORE)]


def test_candidates_of_an_n_best_list_count_by_the_exponential_of_their_score():
    found = [Translation("a b", math.log(0.6)), Translation("c", math.log(0.3))]
    found.append(Translation("c", math.log(0.1)))
    utility = lambda texts: np.array([[2.0, 1.0], [0.0, 5.0]])  # noqa: E731
    assert choose(found, utility, 2) == [
        Translation("c", round(2 / 3 * 5, 9)), Translation("a b", round(2 / 3 + 2 / 3, 9))
    ]  # fmt: skip
    best, second = choose(found, utility, 2, is_n_best=True)
    assert (best.text, second.text) == ("c", "a b")
    assert (best.score, second.score) == pytest.approx((0.4 * 5, 0.6 * 2 + 0.4))
    shifted = [each._replace(score=each.score - 2000) for each in found]
    assert choose(shifted, utility, 2, is_n_best=True) == [best, second]


def test_each_translation_is_returned_once():
    found = choose(candidates("a", "a", "b", "a"), same_words, 4)
    assert found == [Translation("a", 0.75), Translation("b", 0.25)]


# The utility


def test_chrf_is_that_of_sacrebleu():
    generator = random.Random(7)
    texts = ["", " ", "a", "a b", "aaaaaaaaa", "Zwei Hunde.", "ein  Hund und 2 Katzen", "ünïcödé"]
    texts += ["".join(generator.choices("ab cé.", k=generator.randint(1, 40))) for _ in range(25)]
    scores = chrf(texts)
    metric = CHRF()
    expected = [
        [metric.sentence_score(text, [reference]).score for reference in texts] for text in texts
    ]
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    assert chrf(["", " "]).tolist() == [[0, 0], [0, 0]]


def test_metric_of_the_task_compares_what_users_see():
    utility = utility_of("chrf", TranslationTask(remove_bpe=True), "x")
    assert utility(["un@@ happy", "unhappy"]).round(6).tolist() == [[100, 100], [100, 100]]
    bleu = utility_of("metric", TranslationTask(), "x")(["a b c d e", "a b c d f", "z"])
    assert bleu[0, 0] == pytest.approx(100)
    assert 0 < bleu[0, 1] < 100
    assert bleu[2].tolist() == [0, 0, 0]  # without four words BLEU is undefined
    pronunciation = get_task("pronunciation")()
    assert not pronunciation.metric.higher_is_better
    errors = utility_of("metric", pronunciation, "x")(["A B", "A C"])
    assert errors[0, 0] == errors[1, 1] > errors[0, 1]


# The candidates


def test_samples_are_the_candidates_and_seeds_reproduce_them(make_translator, words):
    sentences = ["two house", "sun nonsense cat", "", "tree hello cat two"]
    mbr = make_translator(method="mbr", mbr_samples=20, temperature=2.0, seed=5)
    sampling = make_translator(method="sampling", num_translations=20, temperature=2.0, seed=5)
    found = mbr.translate(sentences)
    for sentence, (best,), samples in zip(
        sentences, found, sampling.translate(sentences), strict=True
    ):
        utility = utility_of("chrf", TranslationTask(), sentence)
        assert best.text == choose(samples, utility)[0].text
        assert best.score == pytest.approx(choose(samples, utility)[0].score)
    assert found[2] == [Translation("", 0.0)]
    assert mbr.translate(sentences, batch_size=3) == found
    other = mbr.translate(sentences, seed=6)
    assert [each.score for (each,) in other] != [each.score for (each,) in found]
    assert mbr.with_cached_projection().translate(sentences)[3][0].text == found[3][0].text


def test_candidates_may_be_the_n_best_list(make_translator):
    sentences = ["two house cat", "sun nonsense nonsense"]
    mbr = make_translator(method="mbr", mbr_samples=0, beam_size=5, num_translations=2)
    beam = make_translator(beam_size=5, num_translations=5)
    for found, n_best in zip(mbr.translate(sentences), beam.translate(sentences), strict=True):
        utility = utility_of("chrf", TranslationTask(), "")
        assert found == choose(n_best, utility, 2, is_n_best=True)
    detailed = mbr.translate(sentences, details=True)
    assert [each.text for each in detailed[0]] == [
        each.text for each in mbr.translate(sentences)[0]
    ]
    assert detailed[0][0].tokens


def test_export_rejects_minimum_bayes_risk(make_translator, tmp_path):
    mbr = make_translator(method="mbr")
    with pytest.raises(InputError, match="method mbr compares translations in Python and cannot"):
        export(mbr, tmp_path / "exports")
    assert not list(tmp_path.rglob("saved_model.pb"))
    with pytest.raises(InputError, match="method mbr compares translations in Python"):
        mbr(["sun"])
