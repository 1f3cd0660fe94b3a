"""What each head does, in numbers.

Shapes: L layers, H heads, Q tokens that attend, K tokens that are attended to, R rows of all
sentences.
"""

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def head_statistics(attentions: Sequence[Array], kind: str) -> dict[str, Array]:
    """Returns means over the tokens of all sentences, each [L, H].

    A row's own place among the columns is on the diagonal of the matrix, from corner to corner.

    Args:
        attentions: of each sentence, [L, H, Q, K], rows that sum to 1.
        kind: "encoder", "decoder" or "cross".

    Returns:
        "previous", "diagonal", "next": the weight on the place before the row's own, on it, and
        after it; "end": the weight on EOS, or on BOS for "decoder", which reads no EOS; "entropy":
        in bits; "distance": the mean distance from the row's own place in tokens.
    """
    end = 0 if kind == "decoder" else -1
    rows = [_of_rows(weights, end) for weights in attentions]
    joined = {name: np.concatenate([each[name] for each in rows], axis=-1) for name in rows[0]}
    return {
        name: np.nansum(each, axis=-1) / np.maximum(np.sum(~np.isnan(each), axis=-1), 1)
        for name, each in joined.items()
    }


def _of_rows(weights: Array, end: int) -> dict[str, Array]:
    """Returns the same of each row, [L, H, Q]; NaN where a row has no such place."""
    num_rows, num_columns = weights.shape[2:]
    # [Q]
    own = np.rint(np.arange(num_rows) * (num_columns - 1) / max(num_rows - 1, 1)).astype(int)
    padded = np.pad(weights, [(0, 0)] * 3 + [(1, 1)], constant_values=np.nan)
    logarithms = np.log2(weights, where=weights > 0, out=np.zeros_like(weights))
    distances = np.abs(np.arange(num_columns) - own[:, None])  # [Q, K]
    return {
        "previous": padded[:, :, np.arange(num_rows), own],
        "diagonal": padded[:, :, np.arange(num_rows), own + 1],
        "next": padded[:, :, np.arange(num_rows), own + 2],
        "end": weights[..., end],
        "entropy": -np.sum(weights * logarithms, axis=-1),
        "distance": np.sum(weights * distances, axis=-1),
    }
