"""Shortlists: the target tokens that each source token may become, learned from a corpus.

A search limited to these computes logits for a tenth of the vocabulary (Jean et al. 2015,
section 4; Devlin 2017).

Shapes: U source vocabulary, M candidates of a token, F target tokens that any sentence may have; E
pairs of a source and a target token of the same sentence pair, K different ones of them.
"""

import dataclasses
import io
import os
import zipfile
import zlib

import numpy as np
import numpy.typing as npt

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.data.corpus import TokenizedCorpus
from keras_transformer.errors import InputError
from keras_transformer.files import write_atomically
from keras_transformer.text.vocabulary import RESERVED_IDS

Ids = npt.NDArray[np.int32]

_MOST_CANDIDATES = 100  # of a source token
_MOST_COMMON = 100
# A larger corpus is sampled evenly down to about this many token pairs.
_MOST_ENTRIES = 50_000_000


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Shortlist:
    """Candidates of each source token, and tokens that are candidates in any sentence.

    Attributes:
        common: int32 [F], the special tokens and the most frequent of the target.
        candidates: int32 [U, M], the most probable first; PAD where there are fewer.

    Example:
        >>> Shortlist.learn(corpus, 8000, 8000).first(50).candidates.shape
        (8000, 50)
    """

    common: Ids
    candidates: Ids

    @classmethod
    def learn(cls, corpus: TokenizedCorpus, source_size: int, target_size: int) -> "Shortlist":
        """Learns the candidates with IBM model 1 (Brown et al. 1993).

        Args:
            corpus: to learn from.
            source_size, target_size: of the vocabularies.
        """
        counts = np.bincount(corpus.target_ids, minlength=target_size)
        counts[list(RESERVED_IDS)] = 0
        frequent = np.argsort(-counts, kind="stable")[:_MOST_COMMON]
        sources, targets, probabilities = lexical_probabilities(corpus, target_size)
        order = np.lexsort((targets, -probabilities, sources))
        sources, targets = sources[order], targets[order]
        rank = np.arange(len(sources)) - np.searchsorted(sources, sources)
        is_kept = (rank < _MOST_CANDIDATES) & (sources != PAD_ID)
        candidates = np.full((source_size, _MOST_CANDIDATES), PAD_ID, np.int32)
        candidates[sources[is_kept], rank[is_kept]] = targets[is_kept]
        common = np.concatenate([RESERVED_IDS, frequent[counts[frequent] > 0]])
        return cls(common=common.astype(np.int32), candidates=candidates)

    def first(self, count: int) -> "Shortlist":
        """Returns the shortlist of the `count` most probable candidates of each token."""
        most = self.candidates.shape[1]
        if not 0 < count <= most:
            raise InputError(f"shortlist may be from 1 to {most} candidates a token, got {count}")
        return Shortlist(common=self.common, candidates=self.candidates[:, :count])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file that `load` reads."""
        content = io.BytesIO()
        np.savez_compressed(content, common=self.common, candidates=self.candidates)
        write_atomically(path, content.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Shortlist":
        """Reads a file that `save` wrote; raises `InputError` where it is damaged."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return cls(common=arrays["common"], candidates=arrays["candidates"])
        except (ValueError, KeyError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise InputError(
                f"{os.fspath(path)} cannot be read ({error}); remove it: it will be learned again"
            ) from error


def lexical_probabilities(
    corpus: TokenizedCorpus, target_size: int, iterations: int = 5
) -> tuple[Ids, Ids, npt.NDArray[np.float64]]:
    """Returns translation probabilities by IBM model 1 (Brown et al. 1993, section 4.1).

    Expectation maximization from equal probabilities. Each sentence also has a null source token,
    PAD, from which target tokens without a counterpart come; EOS is ignored.

    Returns:
        Source tokens, target tokens and the probability of the target token given the source
        token, [K], sorted by the tokens.
    """
    num_entries = int((corpus.source_lengths * np.diff(corpus.target_offsets)).sum())
    sample = np.arange(0, len(corpus), max(1, -(-num_entries // _MOST_ENTRIES)))
    keys, group_sizes = token_pairs(corpus, target_size, sample)  # [E], [target tokens]
    pairs, index = np.unique(keys, return_inverse=True)  # [K], [E]
    index = index.astype(np.int32)
    sources = (pairs // target_size).astype(np.int32)
    starts = np.cumsum(group_sizes) - group_sizes
    probabilities = np.ones(len(pairs))
    for _ in range(iterations):
        weights = probabilities[index]
        # Which source token made a target token: each in proportion to its probability.
        weights /= np.repeat(np.add.reduceat(weights, starts), group_sizes)
        counts = np.bincount(index, weights, minlength=len(pairs))
        probabilities = counts / np.bincount(sources, counts)[sources]
    return sources, (pairs % target_size).astype(np.int32), probabilities


def token_pairs(
    corpus: TokenizedCorpus, target_size: int, pairs: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the keys of all token pairs of some sentence pairs, grouped by the target tokens.

    Returns:
        Keys source * `target_size` + target, int64 [E], where PAD, the null token, is the last
        source token; and the size of each group, int64 [target tokens].
    """
    # With EOS, which the null token replaces.
    source_lengths = corpus.source_offsets[pairs + 1] - corpus.source_offsets[pairs]
    target_lengths = corpus.target_offsets[pairs + 1] - corpus.target_offsets[pairs]
    # Each target token, and where its sentence's source tokens begin.
    targets = _positions(corpus.target_offsets[pairs], target_lengths)
    group_sizes = np.repeat(source_lengths, target_lengths)
    first_sources = np.repeat(corpus.source_offsets[pairs], target_lengths)
    sources = np.asarray(corpus.source_ids)[_positions(first_sources, group_sizes)].astype(np.int64)
    sources[sources == EOS_ID] = PAD_ID
    return sources * target_size + np.repeat(
        np.asarray(corpus.target_ids)[targets].astype(np.int64), group_sizes
    ), group_sizes


def _positions(
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns start, start + 1, ... of each range."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
