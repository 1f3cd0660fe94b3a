"""Searches that XLA compiles, for batches of a few shapes.

Shapes: B sentences, S source length, N translations a sentence, L their longest length.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.search import Hypotheses

# Takes source ids [B, S] and the maximum length of a translation before EOS (None where shapes may
# change).
Search = Callable[[Tensor, int | None], Hypotheses]


class XlaShapes(NamedTuple):
    """The shapes of batches that are compiled.

    Attributes:
        batch_sizes: sentences. On CPUs XLA makes a single one faster and larger batches slower.
        lengths: tokens of the source, EOS included.
    """

    batch_sizes: tuple[int, ...] = (1,)
    lengths: tuple[int, ...] = (16, 32, 64)


def gpu_shapes(batch_sizes: tuple[int, ...] = (1, 64)) -> XlaShapes | None:
    """Returns the shapes that are compiled where there is a GPU, None elsewhere.

    Three lengths for each batch size. On a GPU the operations of a step that is not compiled take
    longer to start than to run.
    """
    if not tf.config.list_physical_devices("GPU"):
        return None
    return XlaShapes(batch_sizes=batch_sizes, lengths=(32, 64, 128))


class CompiledSearch:
    """A search that XLA compiles for batches of some shapes.

    An XLA program has fixed shapes, so batches are padded to a few sizes and lengths. Each size and
    length has its program, compiled by its first request (a model server's warm-up). Larger
    batches, and those of longer sentences, use the plain graph. A translation may be longer than
    its source by `max_extra_length` tokens.
    """

    def __init__(self, search: Search, shapes: XlaShapes, max_extra_length: int) -> None:
        for name, sizes in shapes._asdict().items():
            if not sizes or list(sizes) != sorted({size for size in sizes if size > 0}):
                raise InputError(
                    f"{name} of XLA must be positive and increasing, for example "
                    f"{getattr(XlaShapes(), name)}, got {sizes}"
                )
        self._search = search
        self._shapes = shapes
        self._extra = max_extra_length
        self._programs = {
            (size, length): self._compile(size, length)
            for size, length in itertools.product(*shapes)
        }

    def __call__(self, source: Tensor) -> Hypotheses:
        """Returns the same translations of source ids [B, S] as the plain search."""
        num_sentences, length = tf.unstack(tf.shape(source))
        sizes, lengths = self._shapes
        fits = (num_sentences > 0) & (num_sentences <= sizes[-1]) & (length <= lengths[-1])

        def first_at_least(value: Tensor, sizes: Sequence[int]) -> Tensor:
            return tf.reduce_sum(tf.cast(tf.constant(sizes) < value, tf.int32))

        number = first_at_least(num_sentences, sizes) * len(lengths)
        number += first_at_least(length, lengths)
        # One branch for all choices: each branch adds latency.
        branches: list[Callable[[], Hypotheses]] = [
            functools.partial(self._padded, *shape, source) for shape in self._programs
        ]
        branches.append(lambda: _of_any_length(self._search(source, None)))
        return tf.switch_case(tf.where(fits, number, len(self._programs)), branches)

    def _compile(self, size: int, length: int) -> Callable[[Tensor], Hypotheses]:
        """Returns the program for ids [size, length]."""
        inputs = [tf.TensorSpec([size, length], tf.int32)]

        @tf.function(input_signature=inputs, jit_compile=True, autograph=False)
        def program(source: Tensor) -> Hypotheses:
            return self._search(source, length - 1 + self._extra)

        return program

    def _padded(self, size: int, length: int, source: Tensor) -> Hypotheses:
        """Translates ids [B, S] with a program for at least as many rows and columns."""
        num_sentences, width = tf.unstack(tf.shape(source))
        source = tf.pad(source, [[0, 0], [0, length - width]], constant_values=PAD_ID)
        blank = tf.one_hot(tf.zeros([size - num_sentences], tf.int32), length, EOS_ID, PAD_ID)
        source = tf.ensure_shape(tf.concat([source, blank], axis=0), [size, length])
        hypotheses = self._programs[size, length](source)
        hypotheses = tf.nest.map_structure(lambda part: part[:num_sentences], hypotheses)
        longest = tf.maximum(tf.reduce_max(hypotheses.lengths), 1)  # without the padding behind it
        return _of_any_length(hypotheses._replace(ids=hypotheses.ids[:, :, :longest]))


def _of_any_length(hypotheses: Hypotheses) -> Hypotheses:
    """Gives all branches results of the same static shapes."""
    ids = hypotheses.ids
    return hypotheses._replace(ids=tf.ensure_shape(ids, [None, ids.shape[1], None]))
