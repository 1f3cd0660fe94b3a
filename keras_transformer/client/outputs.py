"""The outputs of a translator, in this process or on a server, as plain Python values."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class Translation(NamedTuple):
    """One translation of a sentence.

    Attributes:
        text: the translation.
        score: its log-probability divided by the length penalty; 0 for a blank sentence.
    """

    text: str
    score: float


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


def read_translations(answer: Mapping[str, Any]) -> list[list[Translation]]:
    """Returns the translations of each sentence from the outputs of a signature.

    Raises:
        ArithmeticError, LookupError, TypeError, ValueError: it is no translator's answer.
    """
    rows = [
        [Translation(checked_text(text), float(score)) for text, score in zip(*row, strict=True)]
        for row in zip(answer["translations"], answer["scores"], strict=True)
    ]
    if not all(rows):
        raise ValueError("expected a translation of each sentence")
    return rows


def read_scores(answer: Mapping[str, Any]) -> list[Score]:
    """Returns the score of each translation from the outputs of the signature `score`.

    Raises:
        ArithmeticError, LookupError, TypeError, ValueError: these are not its outputs.
    """
    columns = (answer["scores"], answer["token_scores"], answer["lengths"])
    return [
        Score(float(score), [float(each) for each in token_scores[:length]])
        for score, token_scores, length in zip(*columns, strict=True)
    ]


def read_attention(answer: Mapping[str, Any]) -> list[Attention]:
    """Returns the attention of each sentence from the outputs of the signature `attention`.

    Raises:
        ArithmeticError, LookupError, TypeError, ValueError: these are not its outputs.
    """
    import numpy as np  # other requests do without it

    columns = (answer["attention"], answer["source_pieces"], answer["target_pieces"])
    found = []
    for weights, *pieces in zip(*columns, strict=True):
        source, target = ([piece for piece in side if piece] for side in pieces)
        weights = np.asarray(weights, np.float32)[: len(target), : len(source)]
        found.append(Attention(weights, source, target))
    return found


def checked_text(value: Any) -> str:
    """Returns a value that must be text; raises `TypeError` or `ValueError` where it is none."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    value.encode()  # JSON may have lone surrogates
    return value
