"""Translation: metrics, and words that were cut into pieces."""

import warnings

import pytest

from keras_transformer.tasks.translation import TranslationTask, join_pieces
from keras_transformer.text import learn_vocabulary

SYSTEMS = {
    "first": ["a b c d x", "the dog sleeps in the grass"] * 10,
    "same": ["a b c d x", "the dog sleeps in the grass"] * 10,
    "worse": ["a b x d e", "the dog"] * 10,
    "short": ["a", "b"] * 10,
}
REFERENCES = ["a b c d e", "the dog sleeps in the grass"] * 10
PIECES = ("an un@@ happy dog ran", "an unhap@@ py dog ran")


@pytest.mark.parametrize(
    ("output", "reference", "options", "expected"),
    [
        # 7 of 8 words, 5 of 7 pairs, 3 of 6 triples and 1 of 5 quadruples are in the reference,
        # and both have 8 words, so that there is no brevity penalty.
        ("a b c x e f g h", "a b c d e f g h", {},
         dict(bleu=100 * (7 / 8 * 5 / 7 * 3 / 6 * 1 / 5) ** 0.25, exact_match=0, length_ratio=1)),
        ("a b c d e f", "a b c d", {}, dict(length_ratio=1.5)),
        ("zweiundvierzig", "zweiundvierzig", {}, dict(bleu=None, exact_match=1)),
        ("zweiundvierzig", "zweiundvierzig", {"bleu_tokenize": "char"}, dict(bleu=100)),
        ("A Man Rides A Horse", "a man rides a horse", {"bleu_lowercase": True}, dict(bleu=100)),
        (*PIECES, {"remove_bpe": True}, dict(bleu=100, exact_match=1)),
        (*PIECES, {}, dict(exact_match=0)),
        # Exact matches compare what a vocabulary can write.
        *(("the dog", text, {}, dict(exact_match=1)) for text in (
            " the  dog ", "the\u2028dog", "the\rdog\x85", "the\vdog", "the\tdog")),
        ("the dogs", " the  dog ", {}, dict(exact_match=0)),
    ],
)  # fmt: skip
def test_metrics_of_one_sentence(output, reference, options, expected):
    task = TranslationTask(**options)
    results = task.evaluate(task.postprocess([output], [""]), [reference], [""])
    assert {name: results[name] for name in expected} == pytest.approx(expected)
    tokenizer, case = options.get("bleu_tokenize", "13a"), "lc" if task.bleu_lowercase else "mixed"
    assert results["bleu_signature"].startswith(f"nrefs:1|case:{case}|eff:no|tok:{tokenizer}|")


def test_interval_of_bleu_holds_the_score():
    task = TranslationTask()
    interval = task.intervals(SYSTEMS["first"], REFERENCES, REFERENCES)["bleu"]
    bleu = task.evaluate(SYSTEMS["first"], REFERENCES, REFERENCES)["bleu"]
    assert 0 < interval["low"] < bleu < interval["high"] < 100
    assert task.intervals(SYSTEMS["short"], REFERENCES, REFERENCES) == {}


def test_systems_that_do_not_differ_have_p_one_and_undefined_ones_none():
    results = TranslationTask().compare(SYSTEMS, REFERENCES, REFERENCES)
    for name in ("bleu_p", "chrf_p"):
        assert (results["first"][name], results["same"][name]) == (None, 1.0)
        assert results["worse"][name] < 0.05
    for names in (("short", "worse"), ("worse", "short")):
        systems = {name: SYSTEMS[name] for name in names}
        results = TranslationTask().compare(systems, REFERENCES, REFERENCES)
        assert [results[name]["bleu_p"] for name in names] == [None, None]
        assert results["short"]["bleu_interval"] is None


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
def test_pieces_are_joined_to_words(pieces, text, tmp_path):
    assert join_pieces(pieces) == text
    (tmp_path / "answers").write_text(f"{pieces}\n")
    assert TranslationTask(remove_bpe=True).read_answers(tmp_path / "answers") == [text]


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
