"""What is translated: sentences as ids, and the batches in which every engine gets them."""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.config import EOS_ID

_SEED = 1
_RANDOM_BATCHES = 4  # of different sentences


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentences:
    """Source sentences, the longest first.

    Attributes:
        name: in the table.
        ids: of each sentence, without END.
        batch_size: sentences of a batch, B.
        forced_length: symbols that every translation must have before END; None where the model
            is trained and translations end by themselves.
    """

    name: str
    ids: list[list[int]]
    batch_size: int
    forced_length: int | None = None

    @classmethod
    def random(cls, *, vocabulary_size: int, length: int, batch_size: int) -> "Sentences":
        """Makes sentences of random symbols, whose translations are to be as long as they are."""
        shape = (_RANDOM_BATCHES * batch_size, length)
        ids = np.random.default_rng(_SEED).integers(EOS_ID + 1, vocabulary_size, shape)
        return cls(
            name=f"{length} forced", ids=ids.tolist(), batch_size=batch_size, forced_length=length
        )

    @classmethod
    def real(cls, name: str, ids: Sequence[list[int]], batch_size: int) -> "Sentences":
        """Takes the sentences of a test set."""
        return cls(name=name, ids=sorted(ids, key=len, reverse=True), batch_size=batch_size)

    def batches(self) -> list[list[int]]:
        """Returns the numbers of the sentences of each batch."""
        numbers = range(len(self.ids))
        return [
            list(numbers[first : first + self.batch_size])
            for first in range(0, len(numbers), self.batch_size)
        ]

    def batches_of_round(self, count: int) -> list[list[int]]:
        """Returns `count` batches of random sentences; a test set is translated as a whole."""
        if self.forced_length is None:
            return self.batches()
        return list(itertools.islice(itertools.cycle(self.batches()), count))

    def singles_of_round(self, number: int, count: int) -> list[list[int]]:
        """Returns `count` batches of one sentence each, in every round others."""
        order = np.random.default_rng(_SEED).permutation(len(self.ids)).tolist()
        taken = itertools.islice(itertools.cycle(order), number * count, (number + 1) * count)
        return [[sentence] for sentence in taken]

    def one_of_each_length(self) -> list[list[int]]:
        """Returns batches of one sentence each, of all the lengths that there are."""
        numbers = {len(ids): number for number, ids in enumerate(self.ids)}
        return [[number] for number in numbers.values()]

    def save(self, path: pathlib.Path) -> None:
        """Writes them for the processes that measure."""
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, path: pathlib.Path) -> "Sentences":
        values: dict[str, Any] = json.loads(path.read_text())
        return cls(**values)
