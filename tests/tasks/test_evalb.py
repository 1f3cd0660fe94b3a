"""Scores of trees: worked out by hand, and EVALB's own of 1,200 stored pairs."""

import pathlib
import re

import pytest

from keras_transformer.files import read_lines
from keras_transformer.tasks.parsing.evalb import PUNCTUATION_TAGS, score_tree, summarize
from keras_transformer.tasks.parsing.trees import clean, parse_tree, read_trees, words_of

DATA = pathlib.Path(__file__).parents[1] / "data" / "trees"
GOLD = "(TOP (S (NP-SBJ (DT the) (NN dog)) (, ,) (VP (VBZ barks) (PRT (RP out))) (. .)))"


def score(output, reference=GOLD):
    return score_tree(parse_tree(output), parse_tree(reference))


def test_score_of_the_reference_itself():
    assert score(GOLD) == ("ok", 6, 4, 4, 4, 0, 4, 4)


def test_punctuation_and_functional_tags_are_ignored():
    # S, NP and ADVP (which PRT is) are right, VP begins a word too early and crosses NP.
    output = "(S (NP (DT the)) (VP (NN dog) (NP=2 (VB barks)) (ADVP (RP out) (, ,))) (. .))"
    output = output.replace("(, ,)", "").replace("(NN dog)", "(NN dog) (, ,)")
    assert score(output) == ("ok", 6, 2, 4, 5, 1, 4, 3)


def test_equal_brackets_are_a_multiset():
    assert score("(X (X (X (A a))))", "(X (X (A a)))")[2:5] == (2, 2, 3)


def test_status_of_other_words_and_no_words():
    assert score("(S (A a))").status == "error"
    assert score(GOLD.replace("(, ,)", "(NN ,)")).status == "error"
    assert score("(S (. .))", "(S (. .) (-NONE- *))") == ("skip", 1, *[0] * 6)


def test_summary_ignores_errors():
    scores = [score(GOLD), score("(S (A a))"), score("(X (X (X (A a))))", "(X (X (A a)))")]
    summary = summarize(scores)
    assert (summary["sentences"], summary["errors"], summary["complete_match"]) == (3, 1, 50)
    assert summary["recall"] == 100
    assert summary["precision"] == pytest.approx(100 * 6 / 7)
    assert summary["f1"] == pytest.approx(100 * 12 / 13)


def test_scores_equal_evalbs_on_stored_pairs():
    gold, test = (
        [tree for _, tree in read_trees(read_lines(DATA / f"evalb_{name}.mrg.gz"), name)]
        for name in ("gold", "test")
    )
    scores = list(map(score_tree, test, gold))
    rows = [line.split("\t") for line in read_lines(DATA / "evalb.tsv.gz")][1:]
    ours = [[score.status, *map(str, score[2:])] for score in scores]
    assert ours == [row[1:] for row in rows]
    printed = (DATA / "evalb_summary.txt").read_text()
    parts = [summarize(scores), summarize(each for each in scores if each.length <= 40)]
    for summary, text in zip(parts, printed.split("-- len<=40 --"), strict=True):
        theirs = [float(number) for number in re.findall(r"= +([\d.]+)", text)]
        assert theirs == pytest.approx(
            [
                summary["sentences"], summary["errors"], summary["skipped"],
                summary["sentences"] - summary["errors"] - summary["skipped"],
                summary["recall"], summary["precision"], summary["f1"], summary["complete_match"],
                summary["average_crossing"], summary["no_crossing"],
                summary["two_or_less_crossing"], summary["tagging_accuracy"],
            ],
            abs=0.005001,
        )  # fmt: skip


def right_branching(tree):
    """Returns (S first (VP second (VP third ...)) .) over the words of a tree."""
    *words, last = words_of(tree)
    end = [last] if last.tag in PUNCTUATION_TAGS else []
    words = words if end else [*words, last]
    opened = [item for word in words for item in ("(VP", word)][1:]
    return ["(S", *opened, *[")VP"] * (len(words) - 1), *end, ")S"]


def test_right_branching_baseline_on_gum():
    lines = read_lines(DATA / "gum_test.mrg.gz")
    trees = [clean(tree) for _, tree in read_trees(lines, "GUM")]
    summary = summarize(score_tree(right_branching(tree), tree) for tree in trees)
    assert (summary["sentences"], summary["errors"]) == (1464, 0)
    assert summary["f1"] == pytest.approx(17.10, abs=0.005)  # the figure in docs/results/parsing.md
