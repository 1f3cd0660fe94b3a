"""Trees are read, cleaned and linearized."""

import gzip
import pathlib

import pytest

from keras_transformer.errors import InputError
from keras_transformer.files import read_lines
from keras_transformer.tasks.parsing import trees

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


def test_read_trees_ignores_line_breaks():
    found = read(PENN)
    assert [line for line, _ in found] == [2, 6, 6]
    assert trees.to_text(found[0][1]) == (
        "( (S (NP-SBJ-1 (DT The) (NN dog)) (VP=2 (VBZ is) (S (NP (-NONE- *-1)) "
        "(ADJP (-LRB- -LRB-) (JJ old) (-RRB- -RRB-)))) (. .)))"
    )


def test_clean_removes_traces_functions_and_root():
    cleaned = [trees.to_text(trees.clean(tree)) for _, tree in read(PENN)]
    assert cleaned == [
        "(S (NP (DT The) (NN dog)) (VP (VBZ is) (S (ADJP (-LRB- -LRB-) (JJ old) (-RRB- -RRB-)))) "
        "(. .))",
        "(TOP (NN Yes))",
        "(TOP (X (A a)) (X (B b)))",
    ]
    assert trees.clean(trees.parse_tree("(S (NP (-NONE- *)) (VP (-NONE- *)))")) == []


def test_linearize():
    tree = trees.clean(read(PENN)[0][1])
    assert trees.sentence_of(tree) == "The dog is ( old ) ."
    assert trees.linearize(tree, pos_tags=False) == (
        "(S (NP XX XX )NP (VP XX (S (ADJP XX XX XX )ADJP )S )VP XX )S"
    )
    assert trees.linearize(tree, pos_tags=True) == (
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


def test_tree_file_reads_gzip(tmp_path):
    path = tmp_path / "trees.mrg.gz"
    path.write_bytes(gzip.compress(PENN.encode()))
    pairs = list(trees.TreeFile(path))
    assert [sentence for sentence, _ in pairs] == ["The dog is ( old ) .", "Yes", "a b"]
    assert pairs[1][1] == "(NN Yes)"


def test_treebank_round_trip():
    lines = read_lines(DATA / "gum_test.mrg.gz")
    found = trees.read_trees(lines, "GUM")
    assert [trees.to_text(tree) for _, tree in found] == lines
