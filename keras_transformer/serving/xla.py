"""Search compiled by XLA, for a few shapes of batches.

A program of XLA has one shape, so sentences are cut into batches of given sizes and padded to
given lengths: as many programs as there are pairs of them, compiled at the first request of each
(the warm-up of a model server) or where a model is loaded into a program of one's own. Sentences
that are too long go through the plain graph.

Shapes: B sentences, S source length, N translations a sentence, L their longest length.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import END_ID, PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.search import Hypotheses

Tensor = Any

# From source ids [B, S] and the most symbols that their translations may have before END (None
# where that need not be known) to the translations.
Search = Callable[[Tensor, int | None], Hypotheses]


class XlaShapes(NamedTuple):
    """The shapes of batches that are compiled.

    Attributes:
        batch_sizes: sentences; a batch is padded to the next one, and cut where it is larger
            than the largest.
        lengths: symbols of the source, END included.
    """

    batch_sizes: tuple[int, ...] = (1, 8, 64)
    lengths: tuple[int, ...] = (16, 32, 64)

    def check(self) -> None:
        """Raises `InputError` unless both are positive and rising."""
        for name, sizes in self._asdict().items():
            if not sizes or list(sizes) != sorted({size for size in sizes if size > 0}):
                raise InputError(
                    f"{name} of XLA must be positive and rising, such as "
                    f"{getattr(XlaShapes(), name)}, got {sizes}"
                )


class CompiledSearch:
    """A search whose batches are compiled.

    Args:
        search: gives translations of ids of known shape.
        shapes: of the batches.
        max_extra_length: symbols that a translation may have more than the source.
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
        is_short = tf.shape(source)[1] <= self._shapes.lengths[-1]
        return tf.cond(is_short, lambda: self._in_batches(source), lambda: self._plain(source))

    def _compile(self, size: int, length: int) -> Any:
        """Returns the program for ids [size, length]."""

        @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([size, length], tf.int32)])
        def program(source: Tensor) -> Hypotheses:
            return self._search(source, length - 1 + self._extra)

        return program

    def _plain(self, source: Tensor) -> Hypotheses:
        found = self._search(source, None)
        return found._replace(ids=tf.ensure_shape(found.ids, [None, found.ids.shape[1], None]))

    def _in_batches(self, source: Tensor) -> Hypotheses:
        """Translates sentences that are short enough, some at a time."""
        sizes, lengths = self._shapes
        num_sentences, length = tf.unstack(tf.shape(source))
        column = _first_at_least(length, lengths)
        # The length of a result: that of the plain search.
        room = tf.gather(lengths, column) + self._extra

        def branch(size: int, length: int) -> Callable[[Tensor], Hypotheses]:
            def translate(some: Tensor) -> Hypotheses:
                rows = tf.shape(some)[0]
                found = self._programs[size, length](_pad(some, size, length))
                return Hypotheses(*(part[:rows] for part in found))

            return translate

        branches = [branch(size, each) for size, each in itertools.product(sizes, lengths)]

        def go_on(first: Tensor, results: Hypotheses) -> tuple[Tensor, Hypotheses]:
            some = source[first : first + sizes[-1]]
            count = tf.shape(some)[0]
            number = _first_at_least(count, sizes) * len(lengths) + column
            found = tf.switch_case(number, [lambda each=each: each(some) for each in branches])
            places = tf.range(first, first + count)[:, None]
            return first + count, Hypotheses(
                *(
                    tf.tensor_scatter_nd_update(all_, places, part)
                    for all_, part in zip(results, found, strict=True)
                )
            )

        none = self._programs[sizes[0], lengths[0]].get_concrete_function().structured_outputs
        count = none.ids.shape[1]
        empty = Hypotheses(
            ids=tf.zeros([num_sentences, count, room], tf.int32),
            scores=tf.zeros([num_sentences, count]),
            log_probs=tf.zeros([num_sentences, count]),
            lengths=tf.zeros([num_sentences, count], tf.int32),
        )
        _, results = tf.while_loop(
            lambda first, _: first < num_sentences, go_on, (tf.constant(0), empty)
        )
        longest = tf.maximum(tf.reduce_max(results.lengths), 1)
        return results._replace(ids=results.ids[:, :, :longest])


def _first_at_least(value: Tensor, sizes: Sequence[int]) -> Tensor:
    """Returns the number of the first of rising sizes that holds the value, or of the last."""
    number = tf.reduce_sum(tf.cast(tf.constant(sizes) < value, tf.int32))
    return tf.minimum(number, len(sizes) - 1)


def _pad(source: Tensor, size: int, length: int) -> Tensor:
    """Pads ids [B, S] to [size, length]; the rows that are added hold nothing but END."""
    missing = size - tf.shape(source)[0]
    source = tf.pad(source, [[0, 0], [0, length - tf.shape(source)[1]]], constant_values=PAD_ID)
    blank = tf.one_hot(tf.zeros([missing], tf.int32), length, END_ID, PAD_ID, dtype=tf.int32)
    return tf.ensure_shape(tf.concat([source, blank], axis=0), [size, length])
