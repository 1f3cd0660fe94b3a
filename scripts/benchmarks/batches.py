"""The batches of a benchmark, the same for every engine, as a stream without an end.

A batch is named as on the command line: "128x16" has so many rows of so many random symbols and no
padding, "multi30k:2048" is the corpus in batches of at most 2,048 tokens a side.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.data import Batch, TokenizedCorpus, training_batches
from keras_transformer.errors import InputError

DEFAULT_BATCH_TOKENS = 2048
_SEED = 1


@dataclasses.dataclass(frozen=True)
class BatchKind:
    """Fixed batches of random ids, or those of the corpus.

    Attributes:
        rows, length: of a fixed batch; 0 for the corpus.
        batch_tokens: of the corpus's batches; 0 for a fixed batch.
    """

    rows: int = 0
    length: int = 0
    batch_tokens: int = 0

    @classmethod
    def parse(cls, text: str) -> "BatchKind":
        """Reads "128x16", "multi30k" or "multi30k:8192"; else raises `InputError`."""
        fixed = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        real = re.fullmatch(r"multi30k(?::([1-9]\d*))?", text)
        if fixed:
            return cls(rows=int(fixed[1]), length=int(fixed[2]))
        if real:
            return cls(batch_tokens=int(real[1] or DEFAULT_BATCH_TOKENS))
        raise InputError(
            f"a batch must be rows x length, such as 128x16, or multi30k, or multi30k:8192 for "
            f"other batch_tokens, got {text!r}"
        )

    @property
    def is_real(self) -> bool:
        return self.batch_tokens > 0

    def __str__(self) -> str:
        return f"multi30k:{self.batch_tokens}" if self.is_real else f"{self.rows}x{self.length}"


def stream(kind: BatchKind, vocabulary_size: int, corpus: str | None) -> Iterator[Batch]:
    """Yields batches for ever.

    Args:
        kind: which.
        vocabulary_size: bound on the random ids.
        corpus: what `save_corpus` wrote; needed for real batches only.
    """
    if corpus is not None and kind.is_real:
        return training_batches(load_corpus(corpus), batch_tokens=kind.batch_tokens, seed=_SEED)
    random = np.random.default_rng(_SEED)
    source, target, labels = (
        random.integers(EOS_ID + 1, vocabulary_size, (kind.rows, kind.length), np.int32)
        for _ in range(3)
    )
    return itertools.repeat(({"source": source, "target": target}, labels))


def real_tokens(labels: npt.ArrayLike) -> int:
    """Counts the target symbols that are no padding."""
    return int(np.count_nonzero(np.asarray(labels) != PAD_ID))


def save_corpus(corpus: TokenizedCorpus, path: str) -> None:
    """Writes the arrays of a corpus for the processes that measure."""
    arrays = {name: value for name, value in vars(corpus).items() if name != "dropped"}
    np.savez(path, **arrays)


def load_corpus(path: str) -> TokenizedCorpus:
    """Reads what `save_corpus` wrote."""
    with np.load(path) as arrays:
        return TokenizedCorpus(**arrays)
