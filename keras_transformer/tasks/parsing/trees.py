"""Bracketed trees (Penn Treebank): read, cleaned, written out, linearized, and scored.

A tree is a flat list of its brackets and words from left to right, so that no function here is
recursive: "(NP" opens a bracket, ")NP" closes it, and `Word` is a word with its part of speech.

Scores are those of EVALB with COLLINS.prm (Sekine and Collins 1997). EVALB ignores punctuation and
traces of both trees, and compares brackets as multisets of label, first and last word. It ignores
TOP and brackets without words, cuts labels before "-" or "=", and takes ADVP and PRT for the same.
Trees whose words differ are errors, which no total counts.
"""

import collections
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias

from keras_transformer.errors import InputError
from keras_transformer.files import PairFile, iterate_lines

ROOT = "TOP"
TRACE = "-NONE-"
_ROOTS = ("", ROOT, "ROOT", "S1")
# Mark brackets and tags among words, which hardly ever begin with these characters.
MARKS = {"(": "⟨", ")": "⟩", "tag": "∕"}
_ESCAPED = {"(": "-LRB-", ")": "-RRB-"}
PUNCTUATION_TAGS = (",", ":", "``", "''", ".")
_SAME_LABEL = {"PRT": "ADVP"}
_TOKEN = re.compile(r"\(|\)|[^\s()]+", re.ASCII)


class Word(NamedTuple):
    """A word of a tree, with its part of speech."""

    tag: str
    text: str


Tree: TypeAlias = list[str | Word]


class TreeFile(PairFile):
    """A file of bracketed trees, plain or .gz: pairs of a sentence and its tree on one line."""

    kind = "trees"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for _, tree in read_trees(iterate_lines(self.path), str(self.path)):
            yield sentence_of(tree), to_text(tree)


def read_trees(lines: Iterable[str], name: str, first_line: int = 1) -> Iterator[tuple[int, Tree]]:
    """Yields each tree of a text, on one or many lines, and the number of its first line.

    Messages have the text's name; `first_line` is the number of its first line.

    Raises:
        InputError: a bracket is not closed, was not opened or has no words; a word stands outside
            brackets, or beside others in one.
    """
    numbered: list[tuple[int, str]] = []  # tokens of the current tree, with their lines
    depth = 0
    for number, line in enumerate(lines, start=first_line):
        for token in _TOKEN.findall(line):
            depth += {"(": 1, ")": -1}.get(token, 0)
            if depth < 0:
                raise InputError(f"{name}, line {number}: a bracket is closed that was not opened")
            if not depth and token != ")":
                raise InputError(f"{name}, line {number}: {token!r} stands outside of brackets")
            numbered.append((number, token))
            if not depth:
                yield numbered[0][0], _make_tree(numbered, name)
                numbered = []
    if numbered:
        raise InputError(
            f"{name}, line {numbered[0][0]}: this tree is not closed at the file's end"
        )


def _make_tree(numbered: list[tuple[int, str]], name: str) -> Tree:
    """Returns the tree of tokens whose brackets are balanced."""
    tree: Tree = []
    stack: list[str] = []
    tokens = [token for _, token in numbered]
    place = 0
    while place < len(tokens):
        kinds = [token if token in ("(", ")") else "a" for token in tokens[place : place + 4]]
        if kinds == ["(", "a", "a", ")"]:
            tree.append(Word(*tokens[place + 1 : place + 3]))
            place += 4
        elif kinds[0] == "(" and kinds[1] != ")":
            stack.append(tokens[place + 1] if kinds[1] == "a" else "")
            tree.append("(" + stack[-1])
            place += 1 + (kinds[1] == "a")
        elif kinds[0] == ")" and not _is_opening(tree[-1]):
            tree.append(")" + stack.pop())
            place += 1
        else:
            wrong = "an empty bracket" if kinds[0] != "a" else f"{tokens[place]!r} has no tag"
            raise InputError(
                f"{name}, line {numbered[place][0]}: {wrong}; expected brackets around brackets, "
                "or around a tag and its word"
            )
    return tree


def _is_opening(item: str | Word) -> bool:
    return isinstance(item, str) and item.startswith("(")


def parse_tree(text: str) -> Tree:
    """Returns the tree of a text; errors as in `read_trees`."""
    trees = [tree for _, tree in read_trees([text], repr(text[:40]))]
    if len(trees) != 1:
        raise InputError(f"expected one tree, got {len(trees)}: {text[:80]!r}")
    return trees[0]


def to_text(tree: Tree) -> str:
    """Returns a tree in brackets, on one line."""
    items = (
        f"({item.tag} {item.text})" if isinstance(item, Word) else f"({item[1:]} "
        if item.startswith("(") else ")"
        for item in tree
    )  # fmt: skip
    return re.sub(r"(?<=\))(?=\()", " ", "".join(items))


def sentence_of(tree: Tree) -> str:
    """Returns the words from left to right, without traces and with plain parentheses."""
    words = [item for item in tree if isinstance(item, Word) and item.tag != TRACE]
    return _unescaped(" ".join(word.text for word in words))


def _unescaped(text: str) -> str:
    for plain, escaped in _ESCAPED.items():
        text = text.replace(escaped, plain)
    return text


def clean(tree: Tree) -> Tree:
    """Returns the tree that a parser should find: no traces, functional tags or root bracket.

    The root's bracket stays if it is the only one, or contains several others. A tree of traces
    only becomes the empty list.
    """
    items: Tree = []
    for item in tree:
        if isinstance(item, Word):
            if item.tag != TRACE:
                items.append(item)
        elif item.startswith(")") and items and _is_opening(items[-1]):
            items.pop()  # it contained only traces
        else:
            items.append(item[0] + base_label(item[1:]))
    if len(items) == 1:
        items = [f"({ROOT}", *items, f"){ROOT}"]
    if items and isinstance(items[0], str) and items[0][1:] in _ROOTS:
        inside = items[1:-1]
        items = inside if _is_one_bracket(inside) else [f"({ROOT}", *inside, f"){ROOT}"]
    return items


def base_label(label: str) -> str:
    """Returns a label without functional tags and indices: "NP" for "NP-SBJ-1" and "NP=2"."""
    return re.split("(?<=.)[-=]", label, maxsplit=1)[0]


def _is_one_bracket(tree: Tree) -> bool:
    depths = itertools.accumulate(
        0 if isinstance(item, Word) else 1 if item.startswith("(") else -1 for item in tree
    )
    return 0 not in list(depths)[:-1] and _is_opening(tree[0])


def linearize(tree: Tree, *, copy_words: bool = False) -> str:
    """Returns a tree as a model generates it (Vinyals et al. 2015): closing brackets have labels.

    Args:
        tree: the tree.
        copy_words: write the word itself before its tag; `MARKS` distinguish brackets and tags
            from words then.

    Example:
        >>> tree = parse_tree("(S (NP (NN dogs)) (VP (VB bark)))")
        >>> linearize(tree)
        '(S (NP NN )NP (VP VB )VP )S'
        >>> linearize(tree, copy_words=True)
        '⟨S ⟨NP dogs ∕NN ⟩NP ⟨VP bark ∕VB ⟩VP ⟩S'
    """

    def write(item: str | Word) -> str:
        if isinstance(item, str):
            return MARKS[item[0]] + item[1:] if copy_words else item
        return f"{_unescaped(item.text)} {MARKS['tag']}{item.tag}" if copy_words else item.tag

    return " ".join(map(write, tree))


def with_comparable_root(tree: Tree, other: Tree) -> Tree:
    """Returns a tree whose root is renamed TOP if it is a treebank's and the other's differs.

    EVALB ignores brackets named TOP, and counts "(", "(ROOT" and "(S1" like all others.
    """
    if not tree or not other or tree[0] == other[0] or tree[0][1:] not in _ROOTS:
        return tree
    return [f"({ROOT}", *tree[1:-1], f"){ROOT}"]


class SentenceScore(NamedTuple):
    """What EVALB counts in a sentence; all counts are 0 unless the status is "ok".

    Attributes:
        status: "skip" if the output has no words, "error" if the words of the two trees differ.
        matched: brackets in both trees.
        reference: brackets of the reference.
        output: brackets of the output.
        words: without punctuation.
        correct_tags: how many of these have the reference's tag.
    """

    status: Literal["ok", "error", "skip"]
    matched: int = 0
    reference: int = 0
    output: int = 0
    words: int = 0
    correct_tags: int = 0


def score_tree(output: Tree, reference: Tree) -> SentenceScore:
    """Compares a tree with its reference."""
    words, brackets = _spans(reference)
    output_words, output_brackets = _spans(output)
    if not output_words:
        return SentenceScore("skip")
    if [word.text for word in words] != [word.text for word in output_words]:
        return SentenceScore("error")
    return SentenceScore(
        "ok",
        matched=(collections.Counter(brackets) & collections.Counter(output_brackets)).total(),
        reference=len(brackets),
        output=len(output_brackets),
        words=len(words),
        correct_tags=sum(a.tag == b.tag for a, b in zip(words, output_words, strict=True)),
    )


def summarize(scores: Iterable[SentenceScore]) -> dict[str, float]:
    """Returns totals of EVALB's summary, and shares in 0..100 over sentences without an error."""
    scores = list(scores)
    valid = [score for score in scores if score.status == "ok"]
    matched = sum(score.matched for score in valid)
    output = sum(score.output for score in valid)
    reference = sum(score.reference for score in valid)
    return dict(
        sentences=len(scores),
        errors=sum(score.status == "error" for score in scores),
        skipped=sum(score.status == "skip" for score in scores),
        recall=_share(matched, reference),
        precision=_share(matched, output),
        f1=_share(2 * matched, reference + output),
        tagging_accuracy=_share(
            sum(score.correct_tags for score in valid), sum(score.words for score in valid)
        ),
    )


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _spans(tree: Tree) -> tuple[list[Word], list[tuple[str, int, int]]]:
    """Returns the words that count, and label, first and last word (plus 1) of each bracket."""
    words: list[Word] = []
    brackets = []
    starts: list[int] = []
    for item in tree:
        if isinstance(item, Word):
            if item.tag not in (TRACE, *PUNCTUATION_TAGS):
                words.append(item)
        elif item.startswith("("):
            starts.append(len(words))
        else:
            label, start = base_label(item[1:]), starts.pop()
            if label != ROOT and start < len(words):
                brackets.append((_SAME_LABEL.get(label, label), start, len(words)))
    return words, brackets
