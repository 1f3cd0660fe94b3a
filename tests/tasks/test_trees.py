"""Trees are read, cleaned and linearized; scores by hand, and EVALB's own of 1,200 stored pairs."""

import pathlib
import re

import pytest

from keras_transformer.errors import InputError
from keras_transformer.files import read_lines
from keras_transformer.tasks.parsing import trees
from keras_transformer.tasks.parsing.trees import read_trees, score_tree, summarize

DATA = pathlib.Path(__file__).parents[1] / "data" / "trees"
PENN = """
( (S (NP-SBJ-1 (DT The)
        (NN dog) )
     (VP=2 (VBZ is) (S (NP (-NONE- *-1))
                       (ADJP (-LRB- -LRB-) (JJ old) (-RRB- -RRB-)))) (. .)))
(NN Yes) (TOP (X (A a)) (X (B b)))
"""


def read(text):
    return list(trees.read_trees(text.splitlines(), "name"))


def test_trees_are_read_over_line_breaks_and_cleaned():
    found = read(PENN)
    assert [line for line, _ in found] == [2, 6, 6]
    assert trees.to_text(found[0][1]) == (
        "( (S (NP-SBJ-1 (DT The) (NN dog)) (VP=2 (VBZ is) (S (NP (-NONE- *-1)) "
        "(ADJP (-LRB- -LRB-) (JJ old) (-RRB- -RRB-)))) (. .)))"
    )
    assert [trees.to_text(trees.clean(tree)) for _, tree in found] == [
        "(S (NP (DT The) (NN dog)) (VP (VBZ is) (S (ADJP (-LRB- -LRB-) (JJ old) (-RRB- -RRB-)))) "
        "(. .))",
        "(TOP (NN Yes))",
        "(TOP (X (A a)) (X (B b)))",
    ]
    assert trees.clean(trees.parse_tree("(S (NP (-NONE- *)) (VP (-NONE- *)))")) == []


def test_linearized_tree_has_labels_and_tags():
    tree = trees.clean(read(PENN)[0][1])
    assert trees.sentence_of(tree) == "The dog is ( old ) ."
    assert trees.linearize(tree) == (
        "(S (NP DT NN )NP (VP VBZ (S (ADJP -LRB- JJ -RRB- )ADJP )S )VP . )S"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a)))", "name, line 2: a bracket is closed that was not opened"),
        ("(S\n(NN a)", "name, line 2: this tree is not closed at the file's end"),
        ("word", "name, line 2: 'word' stands outside of brackets"),
        ("()", "name, line 2: an empty bracket"),
        ("(S (NN a)\n(NP))", "name, line 3: an empty bracket"),
        ("(S (NN a)\nb)", "name, line 3: 'b' has no tag"),
        ("(S (NN a b))", "name, line 2: 'a' has no tag"),
    ],
)
def test_malformed_tree_is_reported_with_its_line(text, message):
    with pytest.raises(InputError, match=message):
        read("\n" + text)


def test_scores_equal_evalbs_on_stored_pairs():
    gold, test = (
        [tree for _, tree in read_trees(read_lines(DATA / f"evalb_{name}.mrg.gz"), name)]
        for name in ("gold", "test")
    )
    scores = list(map(score_tree, test, gold))
    rows = [line.split("\t") for line in read_lines(DATA / "evalb.tsv.gz")][1:]
    ours = [list(map(str, score)) for score in scores]
    assert ours == [row[1:5] + row[6:] for row in rows]  # without crossing brackets
    printed = (DATA / "evalb_summary.txt").read_text().partition("-- len<=40 --")[0]
    theirs = [float(number) for number in re.findall(r"= +([\d.]+)", printed)]
    rows = (0, 1, 2, 4, 5, 6, 11)  # all but valid sentences, complete matches and crossings
    assert [*summarize(scores).values()] == pytest.approx(
        [theirs[row] for row in rows], abs=0.005001
    )
