"""Reference alignments, for models whose attention is trained to align (Garg et al. 2019).

They come from a file, or from IBM model 1 of the corpus itself. Either way a target token has at
most one source token: the alignment of a corpus is a flat array beside its target tokens, which
becomes the rows "alignment" of its batches.

Shapes: N pairs; E pairs of a source and a target token of the same sentence pair, in G groups, one
for each target token.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from keras_transformer.config import PAD_ID, WORD_START
from keras_transformer.data.corpus import LengthFilter, PairSource, ParallelText, TokenizedCorpus
from keras_transformer.data.shortlist import lexical_probabilities, token_pairs
from keras_transformer.errors import InputError
from keras_transformer.files import Path, iterate_lines
from keras_transformer.results import word_indices
from keras_transformer.text import Vocabulary

Positions = npt.NDArray[np.int32]

_CHUNK_PAIRS = 10_000
_CHUNK_ENTRIES = 2_000_000
_LINK = re.compile(r"(\d+)-(\d+)", re.ASCII)


def read_alignment(
    paths: Sequence[Path],
    sources: Sequence[PairSource],
    vocabularies: tuple[Vocabulary, Vocabulary],
    length_filter: LengthFilter,
) -> Positions:
    """Returns the alignment of a corpus from files with a line of links for each of its pairs.

    A link is i-j, as FastAlign writes it: word j of the target translates word i of the source,
    words between spaces, counted from 0. Each token of a target word gets the first token of the
    source word; of several links of a target word the first counts. A pair gets none whose words a
    vocabulary joins, as one of whole words does with unknown ones.

    Args:
        paths: of the files, one after the other.
        sources: the text, as it was tokenized.
        vocabularies, length_filter: with which it was.

    Returns:
        int32 [target tokens of the pairs that the filter keeps]: 1 + the position of the source
        token within its sentence; 0 for none.

    Raises:
        InputError: there are not as many lines as pairs, or a line is not of links between words of
            its pair.
    """
    lines = _numbered_lines(paths)
    texts = itertools.chain.from_iterable(sources)
    starts_words = [_starts_words(vocabulary) for vocabulary in vocabularies]
    found: list[Positions] = [np.zeros(0, np.int32)]
    names, num_pairs = ", ".join(map(str, paths)), 0
    while (text := ParallelText.from_pairs(itertools.islice(texts, _CHUNK_PAIRS))).source:
        links = list(itertools.islice(lines, len(text.source)))
        num_pairs += len(text.source)
        if len(links) < len(text.source):
            num_lines = num_pairs - len(text.source) + len(links)
            more = sum(1 for _ in texts)
            raise _wrong_number(names, num_lines, num_pairs + more)
        ids = [vocabulary.encode(side) for vocabulary, side in zip(vocabularies, text, strict=True)]
        lengths = (np.array([len(row) for row in side]) for side in ids)
        keep, _ = length_filter(*lengths)
        for is_kept, words, (place, line), *pair in zip(
            keep, zip(*text, strict=True), links, *ids, strict=True
        ):
            pairs = _read_links(line, place, *(len(side.split()) for side in words))
            if is_kept:
                sides = map(_words_of_tokens, words, pair, starts_words)
                found.append(_align_tokens(pairs, *sides))
    if more := sum(1 for _ in lines):
        raise _wrong_number(names, num_pairs + more, num_pairs)
    return np.concatenate(found)


def learn_alignment(corpus: TokenizedCorpus, target_size: int) -> Positions:
    """Returns the alignment of a corpus by IBM model 1, as `read_alignment` does.

    Each target token has the source token from which it most probably comes; of equal ones, such
    as a token that occurs twice, the one nearest to the diagonal. It has none where that is the
    null token, or EOS.

    Args:
        corpus: to learn from and to align.
        target_size: of the target vocabulary.
    """
    sources, targets, probabilities = lexical_probabilities(corpus, target_size)
    known = sources.astype(np.int64) * target_size + targets  # ascending
    entries = np.diff(corpus.source_offsets) * np.diff(corpus.target_offsets)  # [N]
    chunk_of_pair = np.cumsum(entries) // _CHUNK_ENTRIES
    found: list[Positions] = [np.zeros(0, np.int32)]
    for pairs in np.split(np.arange(len(corpus)), np.flatnonzero(np.diff(chunk_of_pair)) + 1):
        keys, sizes = token_pairs(corpus, target_size, pairs)  # [E], [G]
        place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        scores = np.where(known[place] == keys, probabilities[place], 0.0)  # [E]
        starts = np.cumsum(sizes) - sizes
        positions = np.arange(len(keys)) - np.repeat(starts, sizes)  # [E], of the source token
        lengths = np.diff(corpus.target_offsets)[pairs]
        ends = np.cumsum(lengths)
        times = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)  # [G], of the target token
        diagonal = np.repeat(times / np.repeat(lengths, lengths), sizes)
        is_best = scores == np.repeat(np.maximum.reduceat(scores, starts), sizes)
        distance = np.where(is_best, np.abs(positions / np.repeat(sizes, sizes) - diagonal), 2.0)
        is_nearest = distance == np.repeat(np.minimum.reduceat(distance, starts), sizes)
        best = np.minimum.reduceat(np.where(is_nearest, positions, len(keys)), starts)  # [G]
        is_aligned = (keys[starts + best] // target_size != PAD_ID) & (scores[starts + best] > 0)
        found.append(np.where(is_aligned, best + 1, 0).astype(np.int32))
    return np.concatenate(found)


def _numbered_lines(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yields the place of each line, for messages, and the line."""
    for path in paths:
        for number, line in enumerate(iterate_lines(path), start=1):
            yield f"{path}, line {number}", line


def _wrong_number(names: str, num_lines: int, num_pairs: int) -> InputError:
    return InputError(
        f"guided_alignment must have a line of links for each pair of the training text: {names} "
        f"has {num_lines:,} lines for {num_pairs:,} pairs; align exactly that text"
    )


def _read_links(line: str, place: str, num_source: int, num_target: int) -> list[tuple[int, int]]:
    """Returns the links (source word, target word) of a line."""
    pairs = []
    for link in line.split():
        if not (found := _LINK.fullmatch(link)):
            raise InputError(
                f"{place}: expected links such as 0-0 1-2 between a source and a target word, got "
                f"{link!r}; fix the line"
            )
        source, target = int(found[1]), int(found[2])
        if source >= num_source or target >= num_target:
            raise InputError(
                f"{place}: link {link} is out of range: this pair has {num_source} source and "
                f"{num_target} target words between spaces, counted from 0; align exactly the "
                "text that is trained on"
            )
        pairs.append((source, target))
    return pairs


def _starts_words(vocabulary: Vocabulary) -> npt.NDArray[np.bool_]:
    """Returns which tokens of a vocabulary begin a word."""
    pieces = vocabulary.pieces(range(vocabulary.size))
    return np.array([piece.startswith(WORD_START) for piece in pieces])


def _words_of_tokens(
    text: str, ids: Sequence[int], starts_words: npt.NDArray[np.bool_]
) -> list[int]:
    """Returns the word between spaces of each token; -1 for all if they cannot be counted."""
    is_start = starts_words[ids]
    is_start[0] = True
    numbers = np.cumsum(is_start)
    count = int(numbers[-1])
    words = word_indices(text, count) if count >= len(text.split()) else []
    return [words[number - 1] for number in numbers] if words else [-1] * len(ids)


def _align_tokens(
    links: Sequence[tuple[int, int]], sources: Sequence[int], targets: Sequence[int]
) -> Positions:
    """Returns 1 + the position of the source token of each target token, given their words."""
    first_token = {word: len(sources) - place for place, word in enumerate(reversed(sources))}
    source_word = {target: source for source, target in reversed(links)}
    linked = [source_word.get(word) for word in targets]
    positions = [0 if word is None else first_token.get(word, 0) for word in linked]
    return np.array(positions, np.int32)
