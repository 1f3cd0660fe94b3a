"""The results of a translator, as plain Python values, and how answers are read.

Functions that read the outputs of a signature raise ArithmeticError, LookupError, TypeError or
ValueError where these are not its outputs.

Shapes: S source tokens, T target tokens, both with EOS.
"""

import dataclasses
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from typing_extensions import Self

from keras_transformer.config import WORD_START
from keras_transformer.decoding import NO_SCORE
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    import numpy as np

# How a vocabulary of words shows what it does not know: one word, or several in a row.
_UNKNOWN_WORD = f"{WORD_START}<unk>"

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Translation:
    """The translation of a sentence; `str` and `print` show its text.

    Attributes:
        text: the translation.
        score: its log-probability divided by the length penalty; 0 for a blank sentence; -1e9
            where the search found no translation.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetailedTranslation(Translation):
    """A translation, how probable each of its tokens is, and what was cut.

    Attributes:
        text, score, alternatives: as in `Translation`.
        tokens: of the translation as text, T with EOS; none for a blank sentence.
        token_scores: the log-probability of each token in the search, with its
            repetition penalty; their sum is that of the translation.
        source_cut: whether the sentence is longer than the model reads; its end is not translated.
        output_cut: whether the translation has as many tokens as it may have: it had to end.
        source_tokens: S with EOS; these and the next two are empty if the model has no attention.
        attention: float32 [T, S]; row t is that from which token t was predicted: the mean of the
            last layer's heads.
        alignment: for each word of `text` the word of the source to which it attends most, in pairs
            (source word, target word), as in `SentenceTranslator.align`.
    """

    tokens: list[str]
    token_scores: list[float]
    source_cut: bool
    output_cut: bool
    source_tokens: list[str]
    attention: "np.ndarray"
    alignment: list[tuple[int, int]]


class Score(NamedTuple):
    """The probability of a given translation.

    Attributes:
        score: the log-probability of the whole translation, EOS included.
        token_scores: the log-probability of each of its tokens; their sum is `score`.
        is_cut: whether the translation is longer than any that the model can generate; its end
            does not count then.
    """

    score: float
    token_scores: list[float]
    is_cut: bool = False


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
    """Returns the translation of each sentence from the outputs of a signature.

    Empty places of an n-best list, marked by `NO_SCORE`, are dropped. A sentence for which the
    search found nothing has one empty translation with that score.
    """

    def in_place(row: int, place: int, **alternatives: Any) -> Translation:
        text, score = (answer[name][row][place] for name in ("translations", "scores"))
        return Translation(text=_checked_text(text), score=float(score), **alternatives)

    return _best_of_each(answer, in_place)


def check_details(outputs: Iterable[str]) -> None:
    """Raises `InputError` if these outputs of a signature have no details."""
    if "token_scores" not in outputs:
        raise InputError(
            "the model was exported without details; export it again with --details, or do not ask "
            "for them"
        )


def read_details(answer: Mapping[str, Any], sentences: Sequence[str]) -> list[DetailedTranslation]:
    """Returns the detailed translation of each of `sentences` from the outputs of a signature."""
    import numpy as np  # other requests do without it

    def in_place(row: int, place: int, **alternatives: Any) -> DetailedTranslation:
        text = _checked_text(answer["translations"][row][place])
        tokens = _read_pieces(answer["tokens"][row][place])
        source = _read_pieces(answer["source_tokens"][row]) if "source_tokens" in answer else []
        weights = answer["attention"][row][place] if "attention" in answer else [[]]
        attention = np.asarray(weights, np.float32)[: len(tokens), : len(source)]
        alignment = Alignment.of(attention, source, tokens)
        return DetailedTranslation(
            text=text,
            score=float(answer["scores"][row][place]),
            tokens=tokens,
            token_scores=[float(x) for x in answer["token_scores"][row][place][: len(tokens)]],
            source_cut=bool(answer["source_cut"][row]),
            output_cut=bool(answer["output_cut"][row][place]),
            source_tokens=source,
            attention=attention,
            alignment=in_words_of_texts([alignment], [sentences[row]], [text])[0],
            **alternatives,
        )

    return _best_of_each(answer, in_place)


def _best_of_each(answer: Mapping[str, Any], in_place: Callable[..., Result]) -> list[Result]:
    """Returns the best translation of each sentence, with its alternatives.

    Args:
        answer: the outputs of a signature.
        in_place: returns a translation by its row and its place in the n-best list.
    """
    best = []
    for row, (texts, scores) in enumerate(
        zip(answer["translations"], answer["scores"], strict=True)
    ):
        if not texts or len(texts) != len(scores):
            raise ValueError("expected a translation of each sentence, and a score of each")
        others = [place for place in range(1, len(texts)) if scores[place] > NO_SCORE]
        alternatives = tuple(in_place(row, place) for place in others)
        best.append(in_place(row, 0, alternatives=alternatives))
    return best


def read_scores(answer: Mapping[str, Any]) -> list[Score]:
    """Returns the score of each translation from the outputs of the signature `score`."""
    scores = answer["scores"]
    is_cut = answer.get("is_cut", [False] * len(scores))  # not in exports of other programs
    columns = (scores, answer["token_scores"], answer["lengths"], is_cut)
    return [
        Score(float(score), [float(value) for value in token_scores[:length]], bool(is_cut))
        for score, token_scores, length, is_cut in zip(*columns, strict=True)
    ]


def read_attention(answer: Mapping[str, Any]) -> list[Attention]:
    """Returns the attention of each sentence from the outputs of the signature `attention`."""
    import numpy as np  # other requests do without it

    columns = (answer["attention"], answer["source_pieces"], answer["target_pieces"])
    attentions = []
    for weights, *pieces in zip(*columns, strict=True):
        source, target = map(_read_pieces, pieces)
        weights = np.asarray(weights, np.float32)[: len(target), : len(source)]
        if weights.shape != (len(target), len(source)):
            raise ValueError("expected a row of attention for each token")
        attentions.append(Attention(weights, source, target))
    return attentions


def _read_pieces(values: Sequence[Any]) -> list[str]:
    """Returns the tokens of a row as text, without padding."""
    return [_checked_text(piece) for piece in values if piece != ""]


def _checked_text(value: Any) -> str:
    """Returns a value that must be text."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    value.encode()  # JSON may have lone surrogates
    return value


# Word alignments.


class Alignment(NamedTuple):
    """The source word that each target word attends to most.

    Attributes:
        pairs: indices of a source and a target word, in the words of the vocabulary.
        num_words: number of these words in the source and in the target.
        may_merge: whether one of these words may be several unknown words of the text, for both
            sides.
    """

    pairs: list[tuple[int, int]]
    num_words: tuple[int, int]
    may_merge: tuple[bool, bool] = (False, False)

    @classmethod
    def of(cls, attention: "np.ndarray", *pieces: Sequence[str]) -> Self:
        """Returns the alignment of source and target pieces by their attention."""
        source, target = (len(_words(side)) for side in pieces)
        may_merge = (_UNKNOWN_WORD in pieces[0], _UNKNOWN_WORD in pieces[1])
        return cls(align_by_attention(attention, *pieces), (source, target), may_merge)


def read_alignments(answer: Mapping[str, Any]) -> list[Alignment]:
    """Returns the alignment of each sentence from the outputs of the signature `attention`."""
    return [Alignment.of(*attention) for attention in read_attention(answer)]


def align_by_attention(
    attention: "np.ndarray", source_pieces: Sequence[str], target_pieces: Sequence[str]
) -> list[tuple[int, int]]:
    """Aligns each target word with the source word that it attends to most.

    The attention between words is the mean over the target word's tokens of the sum over the source
    word's tokens. EOS is not a word, and nothing is aligned to it.

    Args:
        attention: float [T, S].
        source_pieces: tokens of the source as text, EOS and then "" at the end.
        target_pieces: the same of the target.

    Returns:
        Pairs (source word, target word), counted from 0, in the target's order; none where either
        side is blank.
    """
    import numpy as np

    sources, targets = _words(source_pieces), _words(target_pieces)
    if not sources:
        return []
    attended = np.stack([attention[:, word].sum(axis=1) for word in sources], axis=1)
    return [
        (int(attended[word].mean(axis=0).argmax()), number) for number, word in enumerate(targets)
    ]


def in_words_of_texts(
    alignments: Sequence[Alignment], sources: Sequence[str], targets: Sequence[str]
) -> list[list[tuple[int, int]]]:
    """Returns the pairs of each alignment, with indices of words between the spaces of the texts.

    Where a vocabulary makes two words of one, as in "it´s", into which NFKC puts a space, that
    one gets the pairs of both. The list is empty where the words cannot be matched up.
    """
    in_texts: list[list[tuple[int, int]]] = []
    for (pairs, *words), *texts in zip(alignments, sources, targets, strict=True):
        source, target = map(word_indices, texts, *words)
        if not source or not target:
            pairs = []
        in_texts.append(list(dict.fromkeys((source[i], target[j]) for i, j in pairs)))
    return in_texts


def _words(pieces: Sequence[str]) -> list[list[int]]:
    """Returns the indices of each word's tokens."""
    words: list[list[int]] = []
    for index, piece in enumerate([piece for piece in pieces if piece][:-1]):  # without EOS
        if piece.startswith(WORD_START) or not words:
            words.append([])
        words[-1].append(index)
    return words


def word_indices(text: str, count: int, may_merge: bool = False) -> list[int]:
    """Returns the index in a text of each of `count` words that a vocabulary makes of it.

    They are fewer than the text's where it is truncated, or where the vocabulary keeps other spaces
    than " " in words, such as no-break ones; the first of the text's words then stands for such a
    word. Where they are more, or fewer and may be several unknown words each, the list is empty.
    """
    words = text.split()
    if len(words) == count or may_merge:
        return list(range(count)) if len(words) == count else []
    sizes = [len(word.split()) for word in text.split(" ") if word]
    if len(sizes) == count and all(sizes):
        return [0, *itertools.accumulate(sizes)][:-1]
    parts = [len(unicodedata.normalize("NFKC", _visible(word)).split()) for word in words]
    indices = [index for index, number in enumerate(parts) for _ in range(number)]
    return indices[:count] if len(indices) >= count else []


def _visible(word: str) -> str:
    """Returns a word as vocabularies read it, without characters that nobody sees."""
    word = word.replace("\u200b", " ")  # a space of no width
    return "".join(c for c in word if unicodedata.category(c) != "Cf" or c in "\u200c\u200d")
