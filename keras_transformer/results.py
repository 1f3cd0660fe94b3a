"""What goes into a translator and what comes out of it, as plain Python values.

`Client`, which asks a model server, and `BatchTranslator`, which computes in this process, send the
same inputs, in the same batches, and read the same outputs.

Shapes: S source tokens, T target tokens, both with EOS.
"""

import contextlib
import itertools
import math
import numbers
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from typing_extensions import Self

from keras_transformer.config import WORD_START, SearchConfig, check_options
from keras_transformer.decoding import NO_SCORE
from keras_transformer.errors import InputError, as_text, check_unicode

if TYPE_CHECKING:
    import numpy as np

# What an exported model takes for the option's value at export.
AS_EXPORTED: dict[str, Any] = {"DT_STRING": "", "DT_FLOAT": -1.0, "DT_INT32": -1, "DT_INT64": -1}

# How a vocabulary of words shows what it does not know: one word, or several in a row.
_UNKNOWN_WORD = f"{WORD_START}<unk>"

Result = TypeVar("Result")


# Inputs of a request.


class InputValues(NamedTuple):
    """One input of a request: a value for each sentence, and their `tensorflow.DataType`."""

    values: list[Any]
    dtype: str = "DT_STRING"


def text_input(name: str, texts: Sequence[str]) -> InputValues:
    """Returns sentences as an input: a list, or an array or eager tensor of strings.

    Raises:
        InputError: it is one string instead of a list, or an element is not text.
    """
    if hasattr(texts, "graph"):
        raise InputError(
            f"{name} must be a list of sentences, got a tensor of a graph: translate outside of "
            "tf.function and Dataset.map; inside, call a signature of the exported model"
        )
    if hasattr(texts, "numpy"):
        texts = texts.numpy().tolist()
    if isinstance(texts, str | bytes):
        raise InputError(f"{name} must be a list of sentences, got one: {texts[:40]!r}")
    values = [as_text(text) for text in texts]
    for text in values:
        if not isinstance(text, str):
            raise InputError(f"{name} must be text, got {text!r}")
        check_unicode(name, text)
    return InputValues(values)


def pair_inputs(source: Sequence[str], target: Sequence[str]) -> dict[str, InputValues]:
    """Returns sentences and their translations as inputs.

    Raises:
        InputError: their numbers differ, or as in `text_input`.
    """
    columns = {"source": text_input("source", source), "target": text_input("target", target)}
    sizes = [len(column.values) for column in columns.values()]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"source and target must have as many sentences, got {sizes[0]} and {sizes[1]}"
        )
    return columns


def option_inputs(
    options: Mapping[str, Any], inputs: Mapping[str, str], count: int
) -> dict[str, InputValues]:
    """Returns an input for each option of a model, given or not.

    Args:
        options: for each option one value for all sentences or a sequence of `count` values. A
            list of text is one value of an option that takes phrases, and a sequence of lists has
            the phrases of each sentence.
        inputs: the `tensorflow.DataType` of each input of the signature.
        count: sentences.

    Raises:
        InputError: the model has no such option, or a value is invalid.
    """
    known = {name: dtype for name, dtype in inputs.items() if name != "text"}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            f"the model has no option {', '.join(unknown)} that can change from sentence to "
            f"sentence; it has {', '.join(sorted(known)) or 'none'}"
        )
    columns = {}
    for name, dtype in known.items():
        values = _spread(name, options.get(name), count)
        columns[name] = InputValues([_as_sent(name, dtype, each) for each in values], dtype)
    # A model would silently use other values instead of invalid ones.
    names = [name for name in options if name in SearchConfig.__dataclass_fields__]
    for row in set(zip(*(columns[name].values for name in names), strict=True)):
        given = {}
        for name, value in zip(names, row, strict=True):
            if value != AS_EXPORTED[known[name]]:
                is_text = isinstance(value, str)
                given[name] = tuple(filter(str.strip, value.split("\n"))) if is_text else value
        check_options(given)
    return columns


def _spread(name: str, value: Any, count: int) -> list[Any]:
    """Returns a value for each sentence."""
    if value is None or isinstance(value, str | numbers.Real) or not isinstance(value, Iterable):
        return [value] * count
    values = list(value)
    if name == "banned_phrases" and all(isinstance(each, str) for each in values):
        return [values] * count
    if len(values) != count:
        raise InputError(
            f"{name} must be one value for all sentences or a list with one for each, got "
            f"{len(values)} for {count} sentences"
        )
    return values


def _as_sent(name: str, dtype: str, value: Any) -> Any:
    """Returns a value of an option as JSON and protocol buffers represent it."""
    if value is None:
        return AS_EXPORTED[dtype]
    if dtype == "DT_STRING":
        if isinstance(value, list | tuple):
            if any("\n" in str(phrase) for phrase in value):
                raise InputError(f"{name} must be phrases of one line each, got {value!r}")
            value = "\n".join(map(str, value))
        if isinstance(value, str):
            check_unicode(name, value)
            return value
        rule = "text or a list of phrases"
    elif dtype == "DT_FLOAT":
        with contextlib.suppress(OverflowError):  # of a whole number
            if isinstance(value, numbers.Real) and math.isfinite(value):
                return float(value)
        rule = "a finite number"
    else:
        bits = int(dtype.removeprefix("DT_INT"))
        if isinstance(value, numbers.Integral) and -1 << bits - 1 <= int(value) < 1 << bits - 1:
            return int(value)
        rule = f"a whole number of {bits} bits"
    raise InputError(f"{name} must be {rule}, got {value!r}")


# Batches of rows of similar length, and their results back in the order of the rows.


def batches_by_length(
    lengths: Sequence[int], batch_size: int, max_padded_length: int | None = None
) -> list[list[int]]:
    """Returns the indices of rows in batches, the longest rows first.

    Rows of similar length share a batch, so that little of it is padding.

    Args:
        lengths: of each row.
        batch_size: the most rows of a batch.
        max_padded_length: the largest product of a batch's rows and its longest length; a longer
            row has its own batch. None for no limit.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batches = []
    first = 0
    while first < len(order):
        size = batch_size
        if max_padded_length is not None:
            size = min(size, max(max_padded_length // max(lengths[order[first]], 1), 1))
        batches.append(order[first : first + size])
        first += size
    return batches


def in_row_order(
    batches: Sequence[Sequence[int]], results: Iterable[Sequence[Result]]
) -> list[Result]:
    """Returns the result of each row, given the results of each of `batches_by_length`."""
    by_row: dict[int, Result] = {}
    for batch, some in zip(batches, results, strict=True):
        by_row.update(zip(batch, some, strict=True))
    return [by_row[row] for row in range(len(by_row))]


# Results. The functions that read them from the outputs of a signature raise ArithmeticError,
# LookupError, TypeError or ValueError where these are not its outputs.


class Translation(NamedTuple):
    """One translation of a sentence.

    Attributes:
        text: the translation.
        score: its log-probability divided by the length penalty; 0 for a blank sentence; -1e9
            where the search found no translation.
    """

    text: str
    score: float

    def __str__(self) -> str:
        return self.text


class DetailedTranslation(NamedTuple):
    """One translation of a sentence, how probable each of its tokens is, and what was cut.

    Attributes:
        text, score: as in `Translation`.
        tokens: of the translation as text, T with EOS; none for a blank sentence.
        token_scores: the log-probability of each token in the search, with its
            repetition penalty; their sum is that of the translation.
        source_cut: whether the sentence is longer than the model reads; its end is not translated.
        output_cut: whether the translation has as many tokens as it may have: it had to end.
        source_tokens: S with EOS; these and the next two are empty if the model has no attention.
        attention: float32 [T, S]; row t is that from which token t was predicted: the mean of the
            last layer's heads.
        alignment: for each word of `text` the word of the source to which it attends most, in pairs
            (source word, target word), as in `BatchTranslator.align`.
    """

    text: str
    score: float
    tokens: list[str]
    token_scores: list[float]
    source_cut: bool
    output_cut: bool
    source_tokens: list[str]
    attention: "np.ndarray"
    alignment: list[tuple[int, int]]

    def __str__(self) -> str:
        return self.text


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


def read_translations(answer: Mapping[str, Any]) -> list[list[Translation]]:
    """Returns the translations of each sentence from the outputs of a signature.

    Empty places of an n-best list, marked by `NO_SCORE`, are dropped, but for the first: a sentence
    for which the search found nothing has one empty translation with that score.
    """
    rows = [
        [Translation(_checked_text(text), float(score)) for text, score in zip(*row, strict=True)]
        for row in zip(answer["translations"], answer["scores"], strict=True)
    ]
    if not all(rows):
        raise ValueError("expected a translation of each sentence")
    return [[first, *(each for each in rest if each.score > NO_SCORE)] for first, *rest in rows]


def check_details(outputs: Iterable[str]) -> None:
    """Raises `InputError` if these outputs of a signature have no details."""
    if "token_scores" not in outputs:
        raise InputError(
            "the model was exported without details; export it again with --details, or do not ask "
            "for them"
        )


def read_details(answer: Mapping[str, Any]) -> list[list[DetailedTranslation]]:
    """Returns what `read_translations` does, with details; `with_alignments` adds alignments."""
    import numpy as np  # other requests do without it

    found: list[list[DetailedTranslation]] = []
    names = ("tokens", "token_scores", "output_cut", "attention")
    for row, translations in enumerate(read_translations(answer)):
        source = answer.get("source_tokens", [[]] * (row + 1))[row]
        source = [_checked_text(piece) for piece in source if piece != ""]
        found.append([])
        for place, translation in enumerate(translations):
            values = {name: answer[name][row][place] for name in names if name in answer}
            tokens = [_checked_text(piece) for piece in values["tokens"] if piece != ""]
            size = len(tokens)
            weights = np.asarray(values.get("attention", [[]]), np.float32)[:size, : len(source)]
            found[-1].append(
                DetailedTranslation(
                    *translation,
                    tokens,
                    [float(score) for score in values["token_scores"][:size]],
                    bool(answer["source_cut"][row]),
                    bool(values["output_cut"]),
                    source,
                    weights,
                    [],
                )
            )
    return found


def with_alignments(
    results: Sequence[Sequence[DetailedTranslation]], sentences: Sequence[str]
) -> list[list[DetailedTranslation]]:
    """Returns translations of sentences with their alignments."""

    def aligned(each: DetailedTranslation, sentence: str) -> DetailedTranslation:
        found = Alignment.of(each.attention, each.source_tokens, each.tokens)
        (pairs,) = in_words_of_texts([found], [sentence], [each.text])
        return each._replace(alignment=pairs)

    rows = zip(results, sentences, strict=True)
    return [[aligned(each, sentence) for each in row] for row, sentence in rows]


def read_scores(answer: Mapping[str, Any]) -> list[Score]:
    """Returns the score of each translation from the outputs of the signature `score`."""
    scores = answer["scores"]
    is_cut = answer.get("is_cut", [False] * len(scores))  # not in exports of other programs
    columns = (scores, answer["token_scores"], answer["lengths"], is_cut)
    return [
        Score(float(score), [float(each) for each in token_scores[:length]], bool(is_cut))
        for score, token_scores, length, is_cut in zip(*columns, strict=True)
    ]


def warn_about_cut(scores: Sequence[Score]) -> None:
    """Warns, at the caller's caller, if translations were cut before scoring."""
    if num_cut := sum(each.is_cut for each in scores):
        warnings.warn(
            f"{num_cut} of {len(scores)} translations are longer than the model can generate and "
            "were cut before scoring; raise max_source_length or max_extra_length",
            stacklevel=3,
        )


def read_attention(answer: Mapping[str, Any]) -> list[Attention]:
    """Returns the attention of each sentence from the outputs of the signature `attention`."""
    import numpy as np  # other requests do without it

    columns = (answer["attention"], answer["source_pieces"], answer["target_pieces"])
    found = []
    for weights, *pieces in zip(*columns, strict=True):
        source, target = (
            [_checked_text(piece) for piece in side if piece != ""] for side in pieces
        )
        weights = np.asarray(weights, np.float32)[: len(target), : len(source)]
        if weights.shape != (len(target), len(source)):
            raise ValueError("expected a row of attention for each token")
        found.append(Attention(weights, source, target))
    return found


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
        """Returns the alignment of source and target pieces, see `align_by_attention`."""
        source, target = (len(_words(side)) for side in pieces)
        may_merge = (_UNKNOWN_WORD in pieces[0], _UNKNOWN_WORD in pieces[1])
        return cls(align_by_attention(attention, *pieces), (source, target), may_merge)


def read_alignments(answer: Mapping[str, Any]) -> list[Alignment]:
    """Returns the alignment of each sentence from the outputs of the signature `attention`."""
    return [Alignment.of(*each) for each in read_attention(answer)]


def align_by_attention(
    attention: "np.ndarray", source_pieces: Sequence[str], target_pieces: Sequence[str]
) -> list[tuple[int, int]]:
    """Returns for each target word the source word that it attends to most.

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
    found: list[list[tuple[int, int]]] = []
    for (pairs, *words), *texts in zip(alignments, sources, targets, strict=True):
        source, target = map(word_indices, texts, *words)
        if not source or not target:
            pairs = []
        found.append(list(dict.fromkeys((source[i], target[j]) for i, j in pairs)))
    return found


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
    kept = [len(word.split()) for word in text.split(" ") if word]
    if len(kept) == count and all(kept):
        return [0, *itertools.accumulate(kept)][:-1]
    parts = [len(unicodedata.normalize("NFKC", word).split()) for word in words]
    indices = [index for index, number in enumerate(parts) for _ in range(number)]
    return indices[:count] if len(indices) >= count else []
