"""Token embeddings (3.4) and positions: encodings added to them (3.5), and relative ones.

Shapes: B batch, T positions or queries, S keys, D model dimension, V vocabulary, K key and U value
dimension of a head, k the largest relative distance that is distinguished.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.layers.base import Layer, full_precision


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(Layer):
    """A matrix [V, D] that embeds tokens and, if shared, is the output projection too.

    Args:
        vocabulary_size: number of tokens, V.
        model_dim: width of a vector, D.
        scale: whether vectors are multiplied by sqrt(D).

    Example:
        >>> TokenEmbedding(100, 16)(np.array([[5, 6, 3]])).shape
        TensorShape([1, 3, 16])
    """

    def __init__(
        self, vocabulary_size: int, model_dim: int, scale: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # ids must not be rounded to half precision
        self.vocabulary_size = vocabulary_size
        self.model_dim = model_dim
        self.scale = scale

    def build(self, input_shape: Any = None) -> None:
        # Entries of variance 1/D: scaled by sqrt(D) they have variance 1 beside the sinusoids,
        # and as a projection of normalized vectors they give logits of variance 1.
        self.table = self.add_weight(
            name="table",
            shape=(self.vocabulary_size, self.model_dim),
            initializer=keras.initializers.RandomNormal(stddev=self.model_dim**-0.5),
        )

    def call(self, ids: Tensor, reverse: bool = False) -> Tensor:
        """Returns the vectors [..., D] of ids [...], times sqrt(D) if `scale` is set (3.4).

        With `reverse` the logits [..., V] of vectors [..., D]: their products with the matrix.
        """
        if reverse:
            return ops.matmul(ids, self.projection())
        # Under a strategy Keras builds the model's metrics with float ids.
        vectors = ops.take(self.table, ops.cast(ids, "int32"), axis=0)
        vectors = ops.cast(vectors, self.compute_dtype)
        return vectors * self.model_dim**0.5 if self.scale else vectors

    def projection(self) -> Tensor:
        """Returns the transposed matrix [D, V]."""
        return ops.transpose(ops.cast(self.table, self.compute_dtype))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape, self.model_dim)

    def compute_output_spec(self, ids: Any, reverse: bool = False) -> Any:
        shape = (*ids.shape[:-1], self.vocabulary_size) if reverse else (*ids.shape, self.model_dim)
        return keras.KerasTensor(shape, self.compute_dtype)


def sinusoids(
    positions: Tensor, model_dim: int, layout: str = "sinusoidal", dtype: str = "float32"
) -> Tensor:
    """Returns the sinusoidal encoding of positions [...] as float32 [..., D], or of another dtype.

    "sinusoidal" is Vaswani et al. 2017, 3.5, sine and cosine interleaved:
        PE(pos, 2i)   = sin(pos / 10000^(2i / D))
        PE(pos, 2i+1) = cos(pos / 10000^(2i / D))
    "concatenated" is what tensor2tensor, OpenNMT and fairseq compute: all D/2 sines, then all
    cosines, with wavelengths in a geometric progression from 2 pi to exactly 10000 * 2 pi.
    "halves" are the rates of "sinusoidal" in that order, as in Hugging Face's MarianMTModel.

    Raises:
        InputError: there is no such layout.
    """
    check_choice("layout", layout, ("sinusoidal", "concatenated", "halves"))
    num_rates = model_dim // 2
    steps = max(num_rates - 1, 1) if layout == "concatenated" else num_rates
    rates = ops.exp(ops.arange(num_rates, dtype=dtype) * (-math.log(10000.0) / steps))
    angles = ops.expand_dims(ops.cast(positions, dtype), -1) * rates  # [..., D/2]
    sines, cosines = ops.sin(angles), ops.cos(angles)
    if layout != "sinusoidal":
        return ops.concatenate([sines, cosines], axis=-1)
    pairs = ops.stack([sines, cosines], axis=-1)  # [..., D/2, 2]
    return ops.reshape(pairs, (*ops.shape(positions), model_dim))


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEncoding(Layer):
    """Adds an encoding of each position to embeddings (3.5).

    Args:
        model_dim: width of the embeddings, D.
        kind: "sinusoidal", "concatenated", "halves" (see `sinusoids`) or "learned" (Table 3 row E).
        first_position: position of the first token.
        max_positions: rows of the table of learned positions.
    """

    def __init__(
        self,
        model_dim: int,
        kind: str = "sinusoidal",
        first_position: int = 0,
        max_positions: int = 1024,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("kind", kind, ("sinusoidal", "concatenated", "halves", "learned"))
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: model_dim})  # no ids
        self.model_dim = model_dim
        self.kind = kind
        self.first_position = first_position
        self.max_positions = max_positions
        self.table = None

    def build(self, input_shape: Any = None) -> None:
        if self.kind == "learned":
            self.table = self.add_weight(
                name="table",
                shape=(self.max_positions, self.model_dim),
                initializer=keras.initializers.RandomNormal(stddev=self.model_dim**-0.5),
                autocast=False,  # its gradient is summed over tokens, in float32
            )

    def call(self, x: Tensor) -> Tensor:
        """Returns embeddings x [B, T, D] plus the encodings of the positions 0 to T - 1."""
        return x + self.encode(ops.arange(ops.shape(x)[1]))

    def encode(self, positions: Tensor) -> Tensor:
        """Returns the encodings [..., D] of integer positions [...], counted from 0.

        Positions beyond a learned table have its last row, as in CTranslate2: a sentence that is
        too long does not fail those that share its batch. Runs train on sentences that fit.
        """
        positions = positions + self.first_position
        if self.kind == "learned":
            vectors = ops.take(self.table, ops.minimum(positions, self.max_positions - 1), axis=0)
        else:
            dtype = full_precision(self.compute_dtype)
            vectors = sinusoids(positions, self.model_dim, self.kind, dtype)
        return ops.cast(vectors, self.compute_dtype)


def relative_scores(query: Tensor, table: Tensor, distances: Tensor) -> Tensor:
    """Returns query a^K, [..., T, S] in float32 at least, to be added to query keys^T.

    Shaw et al. 2018, 3.2, eq. 4: relative positions as vectors added to the keys.

    Args:
        query: [..., T, K].
        table: [2k + 1, K], for distances from -k to k.
        distances: int [T, S], or [S] for all queries alike: the key's position less the query's.
    """
    outer, pairs = _labels(query, distances)
    scores = ops.einsum(f"{outer}tk,{pairs}k->{outer}ts", query, _rows(table, distances, query))
    return ops.cast(scores, full_precision(query.dtype))


def relative_values(weights: Tensor, table: Tensor, distances: Tensor) -> Tensor:
    """Returns weights a^V, [..., T, U], to be added to weights values (Shaw et al. 2018, eq. 3).

    Args:
        weights: [..., T, S].
        table: [2k + 1, U], for distances from -k to k.
        distances: as for `relative_scores`.
    """
    outer, pairs = _labels(weights, distances)
    return ops.einsum(f"{outer}ts,{pairs}u->{outer}tu", weights, _rows(table, distances, weights))


def _labels(x: Tensor, distances: Tensor) -> tuple[str, str]:
    """Returns the labels in einsum of the outer axes of x and of the axes of distances.

    Named, since TensorFlow broadcasts over an ellipsis: its gradient of a table has all outer axes
    before they are summed, 6 GB for 128 rows of 150 tokens with 4 heads of 128.
    """
    return "abcdefgh"[: len(x.shape) - 2], "ts" if len(distances.shape) == 2 else "s"


def _rows(table: Tensor, distances: Tensor, like: Tensor) -> Tensor:
    largest = table.shape[0] // 2
    numbers = ops.clip(distances, -largest, largest) + largest
    # Cast after the lookup: the gradient of a row is a sum over many pairs of positions, which half
    # precision rounds away.
    return ops.cast(ops.take(table, numbers, axis=0), like.dtype)
