"""The results of a translator, as plain Python values, and how answers are read.

Functions that read the outputs of a signature raise ArithmeticError, LookupError, TypeError or
ValueError where these are not its outputs.

Shapes: S source tokens, T target tokens, both with EOS.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from typing_extensions import Self

from keras_transformer.decoding import NO_SCORE

if TYPE_CHECKING:
    import numpy as np

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Translation:
    """The translation of a sentence; `str` and `print` show its text.

    Attributes:
        text: the translation.
        score: its log-probability divided by the length penalty, plus the coverage penalty; 0 for
            a blank sentence; -1e9 where the search found no translation.
        alternatives: the other translations of an n-best list, best first; they have none.

    Example:
        >>> best = translator.translate("two hundred")
        >>> [best.text, *map(str, best.alternatives)]
        ['zweihundert', 'zwei hundert']
    """

    text: str
    score: float
    alternatives: Sequence[Self] = ()

    def __str__(self) -> str:
        return self.text


class Score(NamedTuple):
    """The probability of a given translation.

    Attributes:
        score: the log-probability of the whole translation, EOS included.
        token_scores: the log-probability of each of its tokens; their sum is `score`.
    """

    score: float
    token_scores: list[float]


class Attention(NamedTuple):
    """The attention of a translation to its source.

    Attributes:
        weights: float32 [T, S]; row t is that from which token t was predicted.
        source: the source's tokens as text, S with EOS.
        target: the translation's, T with EOS.
    """

    weights: "np.ndarray"
    source: list[str]
    target: list[str]


def read_translations(answer: Mapping[str, Any]) -> list[Translation]:
    """Reads the translation of each sentence from the outputs of a signature.

    Empty places of an n-best list, marked by `NO_SCORE`, are dropped. A sentence for which the
    search found nothing has one empty translation with that score.
    """
    results = []
    for texts, scores in zip(answer["translations"], answer["scores"], strict=True):
        if not scores or len(scores) != len(texts):
            raise ValueError("expected a translation of each sentence, and a score of each")
        best, *others = (
            Translation(_checked_text(text), float(score))
            for place, (text, score) in enumerate(zip(texts, scores, strict=True))
            if place == 0 or score > NO_SCORE
        )
        results.append(dataclasses.replace(best, alternatives=tuple(others)))
    return results


def read_scores(answer: Mapping[str, Any]) -> list[Score]:
    """Reads the score of each translation from the outputs of the signature `score`."""
    scores = answer["scores"]
    columns = (scores, answer["token_scores"], answer["lengths"])
    return [
        Score(float(score), [float(value) for value in token_scores[:length]])
        for score, token_scores, length in zip(*columns, strict=True)
    ]


def read_attention(answer: Mapping[str, Any]) -> list[Attention]:
    """Reads the attention of each sentence from the outputs of the signature `attention`."""
    import numpy as np  # other requests do without it

    columns = (answer["attention"], answer["source_pieces"], answer["target_pieces"])
    attentions = []
    for weights, *pieces in zip(*columns, strict=True):
        source, target = ([_checked_text(piece) for piece in row if piece != ""] for row in pieces)
        weights = np.asarray(weights, np.float32)[: len(target), : len(source)]
        if weights.shape != (len(target), len(source)):
            raise ValueError("expected a row of attention for each token")
        attentions.append(Attention(weights, source, target))
    return attentions


def _checked_text(value: Any) -> str:
    """Returns a value that must be text."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    value.encode()  # JSON may have lone surrogates
    return value


def read_alignments(answer: Mapping[str, Any]) -> list[list[tuple[int, int]]]:
    """Reads the alignment of each sentence from the outputs of the signature `attention`."""
    columns = (read_attention(answer), answer["source_words"], answer["target_words"])
    return [
        align_words(attention.weights, source, target)
        for attention, source, target in zip(*columns, strict=True)
    ]


def align_words(
    attention: "np.ndarray", source_words: Sequence[int], target_words: Sequence[int]
) -> list[tuple[int, int]]:
    """Aligns each target word with the source word that it attends to most.

    The attention between words is the mean over the target word's tokens of the sum over the source
    word's tokens.

    Args:
        attention: float [T, S].
        source_words: the number of the word of each source token, or -1 for none; S or more.
        target_words: the same of the target; T or more.

    Returns:
        Pairs (source word, target word), in the target's order; none where a side has no words.
    """
    import numpy as np

    length, source_length = attention.shape
    sources, targets = np.array(source_words)[:source_length], np.array(target_words)[:length]
    numbers = sorted({*sources.tolist()} - {-1})
    if not numbers:
        return []
    attended = np.stack([attention[:, sources == number].sum(axis=1) for number in numbers], axis=1)
    return [
        (numbers[int(attended[targets == word].mean(axis=0).argmax())], word)
        for word in sorted({*targets.tolist()} - {-1})
    ]
