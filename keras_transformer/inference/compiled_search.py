"""Search compiled by XLA, for a few shapes of batches.

An XLA program has fixed shapes, so sentences are padded to given lengths and split into batches of
given sizes, of which the last is padded too. There is a program for each size and length, compiled
by its first request (a model server's warm-up). Batches of longer sentences use the plain graph.

Shapes: B sentences, S source length, N translations a sentence, L their longest length.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.search import Hypotheses

# From source ids [B, S] and the most tokens of a translation before EOS (None where shapes may
# change) to the translations.
Search = Callable[[Tensor, int | None], Hypotheses]


# The fixed cost of a batch, in sentences: 1 for `tiny` on a CPU, 2 for `base`.
_COST_OF_A_BATCH = 2


class XlaShapes(NamedTuple):
    """The shapes of batches that are compiled.

    Attributes:
        batch_sizes: sentences; a batch is padded to the next size, or split into smaller ones
            where that is faster, see `least_sentences`.
        lengths: tokens of the source, EOS included.
    """

    batch_sizes: tuple[int, ...] = (1, 8, 64)
    lengths: tuple[int, ...] = (16, 32, 64)

    def check(self) -> None:
        """Raises `InputError` unless both are positive and increasing."""
        for name, sizes in self._asdict().items():
            if not sizes or list(sizes) != sorted({size for size in sizes if size > 0}):
                raise InputError(
                    f"{name} of XLA must be positive and rising, such as "
                    f"{getattr(XlaShapes(), name)}, got {sizes}"
                )


class CompiledSearch:
    """A search whose batches are compiled.

    Args:
        search: the search to compile.
        shapes: shapes of the batches.
        max_extra_length: tokens by which a translation may be longer than its source.
    """

    def __init__(self, search: Search, shapes: XlaShapes, max_extra_length: int) -> None:
        shapes.check()
        self._search = search
        self._shapes = shapes
        self._extra = max_extra_length
        self._programs = {
            (size, length): self._compile(size, length)
            for size, length in itertools.product(*shapes)
        }

    def __call__(self, source: Tensor) -> Hypotheses:
        """Returns translations of source ids [B, S], as the plain search gives them."""
        num_sentences, length = tf.unstack(tf.shape(source))
        lengths = self._shapes.lengths
        is_one = (num_sentences > 0) & (num_sentences <= self._chosen_size(num_sentences))
        # One branch for all choices: each branch adds latency.
        branches: list[Callable[[Tensor], Hypotheses]] = [
            functools.partial(self._in_one, *shape) for shape in self._programs
        ]
        number = tf.where(is_one, self._shape_of(num_sentences, length), len(branches))
        number = tf.where(length <= lengths[-1], number, len(branches) + 1)
        branches += [self._in_batches, self._plain]
        return tf.switch_case(number, [functools.partial(each, source) for each in branches])

    def _compile(self, size: int, length: int) -> Any:
        """Returns the program for ids [size, length]."""

        inputs = [tf.TensorSpec([size, length], tf.int32)]

        @tf.function(input_signature=inputs, jit_compile=True, autograph=False)
        def program(source: Tensor) -> Hypotheses:
            return self._search(source, length - 1 + self._extra)

        return program

    def _shape_of(self, num_sentences: Tensor, length: Tensor) -> Tensor:
        """Returns the index of the smallest program that the sentences fit into."""
        sizes, lengths = self._shapes
        size = _first_at_least(num_sentences, sizes)
        return size * len(lengths) + _first_at_least(length, lengths)

    def _chosen_size(self, num_sentences: Tensor) -> Tensor:
        """Returns the size of the first batch of `num_sentences` sentences."""
        sizes = self._shapes.batch_sizes
        is_enough = num_sentences >= tf.constant(least_sentences(sizes))
        number = tf.reduce_sum(tf.cast(is_enough, tf.int32))
        return tf.gather(tf.constant(sizes), tf.maximum(number - 1, 0))

    def _plain(self, source: Tensor) -> Hypotheses:
        found = self._search(source, None)
        return found._replace(ids=tf.ensure_shape(found.ids, [None, found.ids.shape[1], None]))

    def _in_one(self, size: int, length: int, source: Tensor) -> Hypotheses:
        """Translates sentences that fit into one program."""
        found = self._programs[size, length](_pad(source, size, length))
        num_sentences = tf.shape(source)[0]
        return _cut(Hypotheses(*(part[:num_sentences] for part in found)))

    def _in_batches(self, source: Tensor) -> Hypotheses:
        """Translates any number of sentences that are short enough, batch by batch."""
        num_sentences, length = tf.unstack(tf.shape(source))
        sizes, lengths = self._shapes

        def go_on(first: Tensor, results: Hypotheses) -> tuple[Tensor, Hypotheses]:
            some = source[first : first + self._chosen_size(num_sentences - first)]
            count = tf.shape(some)[0]
            found = tf.switch_case(
                self._shape_of(count, length),
                [functools.partial(self._in_one, *shape, some) for shape in self._programs],
            )
            room = tf.shape(results.ids)[2] - tf.shape(found.ids)[2]
            found = found._replace(ids=tf.pad(found.ids, [[0, 0], [0, 0], [0, room]]))
            rows = tf.range(first, first + count)[:, None]
            return first + count, Hypotheses(
                *(
                    tf.tensor_scatter_nd_update(all_, rows, part)
                    for all_, part in zip(results, found, strict=True)
                )
            )

        none = self._programs[sizes[0], lengths[0]].get_concrete_function().structured_outputs
        count = none.ids.shape[1]
        empty = Hypotheses(
            ids=tf.zeros([num_sentences, count, length + self._extra], tf.int32),
            scores=tf.zeros([num_sentences, count]),
            log_probs=tf.zeros([num_sentences, count]),
            lengths=tf.zeros([num_sentences, count], tf.int32),
        )
        _, results = tf.while_loop(
            lambda first, _: first < num_sentences, go_on, (tf.constant(0), empty)
        )
        return _cut(results)


def least_sentences(sizes: Sequence[int]) -> list[int]:
    """Returns for each of increasing batch sizes the fewest sentences that are padded to it.

    Fewer are faster in batches of the size before.
    """

    def cost(size: int, count: int) -> int:
        return -(-count // size) * (size + _COST_OF_A_BATCH)

    least = [1]
    for smaller, size in itertools.pairwise(sizes):
        counts = range(smaller + 1, size + 1)
        least.append(next(n for n in counts if cost(size, n) <= cost(smaller, n)))
    return least


def _cut(results: Hypotheses) -> Hypotheses:
    """Returns results without the padding behind the longest one."""
    longest = tf.maximum(tf.reduce_max(results.lengths), 1)
    ids = results.ids[:, :, :longest]
    return results._replace(ids=tf.ensure_shape(ids, [None, ids.shape[1], None]))


def _first_at_least(value: Tensor, sizes: Sequence[int]) -> Tensor:
    """Returns the index of the first of increasing sizes that holds the value, or of the last."""
    number = tf.reduce_sum(tf.cast(tf.constant(sizes) < value, tf.int32))
    return tf.minimum(number, len(sizes) - 1)


def _pad(source: Tensor, size: int, length: int) -> Tensor:
    """Pads ids [B, S] to [size, length]; added rows have EOS only."""
    missing = size - tf.shape(source)[0]
    source = tf.pad(source, [[0, 0], [0, length - tf.shape(source)[1]]], constant_values=PAD_ID)
    blank = tf.one_hot(tf.zeros([missing], tf.int32), length, EOS_ID, PAD_ID, dtype=tf.int32)
    return tf.ensure_shape(tf.concat([source, blank], axis=0), [size, length])
