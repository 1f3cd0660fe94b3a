"""Scores of trees as EVALB computes them with COLLINS.prm (Sekine and Collins 1997).

EVALB ignores punctuation and traces of both trees, and compares brackets as multisets of label,
first and last word. It ignores TOP and brackets without words, cuts labels before "-" or "=", and
takes ADVP and PRT for the same. Trees whose words differ are errors, which no total counts.
"""

import collections
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from keras_transformer.tasks.parsing.trees import ROOT, TRACE, Tree, Word, base_label

SHORT = 40  # words, without traces; EVALB's second table covers sentences up to this length
PUNCTUATION_TAGS = (",", ":", "``", "''", ".")
_SAME_LABEL = {"PRT": "ADVP"}


class SentenceScore(NamedTuple):
    """What EVALB prints of a sentence; all counts are 0 unless the status is "ok".

    Attributes:
        status: "skip" if the output has no words, "error" if the words of the two trees differ.
        length: words of the reference, with punctuation.
        matched: brackets in both trees.
        reference: brackets of the reference.
        output: brackets of the output.
        crossing: brackets of the output that cross one of the reference.
        words: without punctuation.
        correct_tags: how many of these have the reference's tag.
    """

    status: Literal["ok", "error", "skip"]
    length: int
    matched: int = 0
    reference: int = 0
    output: int = 0
    crossing: int = 0
    words: int = 0
    correct_tags: int = 0


def score_tree(output: Tree, reference: Tree) -> SentenceScore:
    """Compares a tree with its reference."""
    words, brackets = _spans(reference)
    output_words, output_brackets = _spans(output)
    length = sum(isinstance(item, Word) and item.tag != TRACE for item in reference)
    if not output_words:
        return SentenceScore("skip", length)
    if [word.text for word in words] != [word.text for word in output_words]:
        return SentenceScore("error", length)
    return SentenceScore(
        "ok",
        length,
        matched=(collections.Counter(brackets) & collections.Counter(output_brackets)).total(),
        reference=len(brackets),
        output=len(output_brackets),
        crossing=sum(_crosses(bracket, brackets) for bracket in output_brackets),
        words=len(words),
        correct_tags=sum(a.tag == b.tag for a, b in zip(words, output_words, strict=True)),
    )


def summarize(scores: Iterable[SentenceScore]) -> dict[str, float]:
    """Returns EVALB's summary: counts, and shares in 0..100 over sentences without an error."""
    scores = list(scores)
    valid = [score for score in scores if score.status == "ok"]
    matched = sum(score.matched for score in valid)
    output = sum(score.output for score in valid)
    reference = sum(score.reference for score in valid)
    complete = sum(score.matched == score.output == score.reference for score in valid)
    crossing = [score.crossing for score in valid]
    return dict(
        sentences=len(scores),
        errors=sum(score.status == "error" for score in scores),
        skipped=sum(score.status == "skip" for score in scores),
        recall=_share(matched, reference),
        precision=_share(matched, output),
        f1=_share(2 * matched, reference + output),
        complete_match=_share(complete, len(valid)),
        average_crossing=_share(sum(crossing), len(valid)) / 100,
        no_crossing=_share(crossing.count(0), len(valid)),
        two_or_less_crossing=_share(sum(count <= 2 for count in crossing), len(valid)),
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


def _crosses(bracket: tuple[str, int, int], others: Sequence[tuple[str, int, int]]) -> bool:
    _, start, end = bracket
    return any(
        first < start < last < end or start < first < end < last for _, first, last in others
    )
