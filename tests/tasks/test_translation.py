"""Translation: metrics, and words that were cut into pieces."""

import warnings

import pytest

from keras_transformer.tasks.translation import TranslationTask, join_pieces
from keras_transformer.text import learn_vocabulary


def evaluate(outputs, references, **options):
    task = TranslationTask(**options)
    return task.evaluate(task.postprocess(outputs, references), references, references)


def test_bleu_worked_by_hand():
    # 7 of 8 words, 5 of 7 pairs, 3 of 6 triples and 1 of 5 quadruples are in the reference,
    # and both have 8 words, so that there is no brevity penalty.
    scores = evaluate(["a b c x e f g h"], ["a b c d e f g h"])
    assert scores["bleu"] == pytest.approx(100 * (7 / 8 * 5 / 7 * 3 / 6 * 1 / 5) ** 0.25)
    assert scores["exact_match"] == 0
    assert "nrefs:1|case:mixed" in scores["bleu_signature"]
    assert "tok:13a" in scores["bleu_signature"]


def test_length_ratio_counts_tokens():
    assert evaluate(["a b c d e f"], ["a b c d"])["length_ratio"] == 1.5


def test_interval_of_bleu_holds_the_score():
    outputs = ["a b c d e", "a b c x e", "a b c d f", "the dog sleeps in the grass"] * 10
    references = ["a b c d e"] * 30 + ["the dog sleeps on the grass"] * 10
    task = TranslationTask()
    interval = task.intervals(outputs, references, references)["bleu"]
    bleu = task.evaluate(outputs, references, references)["bleu"]
    assert 0 < interval["low"] < bleu < interval["high"] < 100


def test_systems_that_do_not_differ_have_p_one():
    references = ["a b c d e", "the dog sleeps in the grass"] * 10
    better = ["a b c d x", "the dog sleeps in the grass"] * 10
    systems = {"first": better, "same": list(better), "worse": ["a b x d e", "the dog"] * 10}
    first, same, worse = TranslationTask().compare(systems, references, references).values()
    for name in ("bleu_p", "chrf_p"):
        assert (first[name], same[name]) == (None, 1.0)
        assert worse[name] < 0.05


def test_undefined_bleu_has_neither_p_nor_interval():
    systems, references = {"short": ["a", "b"], "long": ["a b c d", "b"]}, ["a b c d", "b"]
    for names in (("short", "long"), ("long", "short")):
        ordered = {name: systems[name] for name in names}
        results = TranslationTask().compare(ordered, references, references)
        assert results["short"]["bleu_interval"] is None
        assert [results[name]["bleu_p"] for name in names] == [None, None]
    assert TranslationTask().intervals(systems["short"], references, references) == {}


def test_bleu_lowercase_ignores_case():
    translation, reference = ["A Man Rides A Horse"], ["a man rides a horse"]
    assert evaluate(translation, reference)["bleu"] < 50
    assert evaluate(translation, reference, bleu_lowercase=True)["bleu"] == pytest.approx(100)


def test_bleu_is_none_without_four_words():
    scores = evaluate(["zweiundvierzig"], ["zweiundvierzig"])
    assert scores["bleu"] is None
    characters = evaluate(["zweiundvierzig"], ["zweiundvierzig"], bleu_tokenize="char")
    assert characters["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ("un@@ happy", "unhappy"),
        ("the un@@ ha@@ ppy dog .", "the unhappy dog ."),
        ("a @ b @@c mail@@home", "a @ b @@c mail@@home"),
        ("not finish@@", "not finish"),
        ("", ""),
    ],
)
def test_pieces_are_joined_to_words(pieces, text):
    assert join_pieces(pieces) == text


def test_remove_bpe_joins_all_answers_and_references(tmp_path):
    pieces = (["an un@@ happy dog ran"], ["an unhap@@ py dog ran"])
    assert evaluate(*pieces, remove_bpe=True)["bleu"] == pytest.approx(100)
    assert evaluate(*pieces)["exact_match"] == 0
    task = TranslationTask(remove_bpe=True)
    (tmp_path / "answers").write_text("an un@@ happy dog\n")
    assert task.read_answers(tmp_path / "answers") == ["an unhappy dog"]


@pytest.mark.parametrize(
    "reference", [" the  dog ", "the\u2028dog", "the\rdog\x85", "the\vdog", "the\tdog"]
)
def test_exact_matches_compare_what_a_vocabulary_can_write(reference):
    assert evaluate(["the dog"], [reference])["exact_match"] == 1
    assert evaluate(["the dogs"], [reference])["exact_match"] == 0


@pytest.mark.parametrize(
    ("references", "options", "part"),
    [
        (["the caf\u00e9", "a b"], {}, None),
        (["the cafe\u0301", "a b"], {}, "1 of 2 references"),
        (["the dog .", "a dog ."], {}, "2 of 2 references end in ' .'"),
        (["the dog .", "a dog."], {}, None),
        (["the dog .", "a dog ."], {"bleu_tokenize": "none"}, None),
    ],
)
def test_references_that_lower_scores_give_one_warning(references, options, part):
    vocabulary = learn_vocabulary(["the caf\u00e9 a b dog . s"] * 9, size=20, kind="char")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        TranslationTask(**options).check_references(references, vocabulary)
    assert [part in str(each.message) for each in caught] == [True] * (part is not None)
