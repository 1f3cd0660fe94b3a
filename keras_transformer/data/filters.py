"""Which pairs of sentences are not trained on, and how many there were of each kind."""

import dataclasses

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthFilter:
    """Drops pairs by their number of tokens, start and end tokens aside.

    Attributes:
        max_length: pairs with more tokens on a side are dropped; None keeps all.
        max_length_ratio: pairs whose longer side has more than so many times the tokens of the
            shorter one are dropped; None keeps all. Pairs with an empty side always are.

    Example:
        >>> keep, dropped = LengthFilter(max_length=9)(np.array([5, 10]), np.array([0, 4]))
        >>> keep.tolist(), dropped
        ([False, False], {'empty': 1, 'too long': 1, 'length ratio': 0})
    """

    max_length: int | None = None
    max_length_ratio: float | None = None

    def __call__(
        self, source_lengths: npt.NDArray[np.integer], target_lengths: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.bool_], dict[str, int]]:
        """Returns which of N pairs to keep, bool [N], and the others' number by first reason."""
        shorter = np.minimum(source_lengths, target_lengths)
        longer = np.maximum(source_lengths, target_lengths)
        reasons = {
            "empty": shorter == 0,
            "too long": longer > (self.max_length or np.inf),
            "length ratio": longer / np.maximum(shorter, 1) > (self.max_length_ratio or np.inf),
        }
        keep = np.ones(len(shorter), bool)
        dropped = {}
        for reason, applies in reasons.items():
            dropped[reason] = int(np.count_nonzero(keep & applies))
            keep &= ~applies
        return keep, dropped

    def nothing_left(self, dropped: dict[str, int], text: str = "") -> InputError:
        """Returns the error for a text of which every pair was dropped."""
        found = [f"{dropped['empty']} have an empty side"]
        if self.max_length is not None:
            found.append(f"{dropped['too long']} are longer than {self.max_length} tokens")
        if self.max_length_ratio is not None:
            found.append(
                f"{dropped['length ratio']} have a length ratio above {self.max_length_ratio}"
            )
        return InputError(
            f"no pair of sentences is left of {sum(dropped.values())}{text and f' in {text}'}: "
            + ", ".join(found)
        )
