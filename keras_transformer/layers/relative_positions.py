"""Relative positions as vectors that are added to keys and values (Shaw et al. 2018).

Shapes: T queries, S keys, K key and U value dimension of a head, k the largest distance told apart.
"""

from keras import ops

from keras_transformer.decoding import Tensor


def relative_scores(query: Tensor, table: Tensor, distances: Tensor) -> Tensor:
    """Returns query a^K, float32 [..., T, S], to be added to query keys^T (3.2, eq. 4).

    Args:
        query: [..., T, K].
        table: [2k + 1, K], for distances from -k to k.
        distances: int [T, S], or [S] for all queries alike: the key's position less the query's.
    """
    equation = "...tk,tsk->...ts" if len(distances.shape) == 2 else "...tk,sk->...ts"
    return ops.cast(ops.einsum(equation, query, _rows(table, distances, query)), "float32")


def relative_values(weights: Tensor, table: Tensor, distances: Tensor) -> Tensor:
    """Returns weights a^V, [..., T, U], to be added to weights values (3.2, eq. 3).

    Args:
        weights: [..., T, S].
        table: [2k + 1, U], for distances from -k to k.
        distances: as for `relative_scores`.
    """
    equation = "...ts,tsu->...tu" if len(distances.shape) == 2 else "...ts,su->...tu"
    return ops.einsum(equation, weights, _rows(table, distances, weights))


def _rows(table: Tensor, distances: Tensor, like: Tensor) -> Tensor:
    largest = table.shape[0] // 2
    numbers = ops.clip(distances, -largest, largest) + largest
    return ops.take(ops.cast(table, like.dtype), numbers, axis=0)
