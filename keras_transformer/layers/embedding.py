"""Token embeddings (3.4).

Shapes: B batch, T length, D model dimension, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.base import Layer


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

    def call(self, ids: Tensor) -> Tensor:
        """Returns the vectors [..., D] of ids [...], times sqrt(D) if `scale` is set (3.4)."""
        # Under a strategy Keras builds the model's metrics with float ids.
        vectors = ops.take(self.table, ops.cast(ids, "int32"), axis=0)
        vectors = ops.cast(vectors, self.compute_dtype)
        return vectors * self.model_dim**0.5 if self.scale else vectors

    def project(self, x: Tensor) -> Tensor:
        """Returns logits [..., V]: vectors x [..., D] times the transposed matrix."""
        return ops.matmul(x, self.projection())

    def projection(self) -> Tensor:
        """Returns the transposed matrix [D, V]."""
        return ops.transpose(ops.cast(self.table, self.compute_dtype))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape, self.model_dim)
