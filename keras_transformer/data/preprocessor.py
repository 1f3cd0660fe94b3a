"""From pairs of text to what `fit` takes, in memory: for a Keras program without a run directory.

Shapes: B pairs, S source length, T target length, both with EOS.
"""

import itertools
import warnings
from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, PAD_ID, TrainingConfig
from keras_transformer.data.batches import (
    MAX_COMPILED_SHAPES,
    MAX_SHAPES,
    Batch,
    BatchPlan,
    to_dataset,
    training_batches,
)
from keras_transformer.data.corpus import ParallelText, TokenizedCorpus
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError, as_text
from keras_transformer.text import Tokenizer, Vocabulary
from keras_transformer.text.tokenizer import with_eos

_READ_PAIRS = 1024  # to convert at a time


class Seq2SeqPreprocessor:
    """Turns pairs of text into the inputs and labels of a `Seq2SeqModel`.

    `batches` makes the data set for `fit`. To build a pipeline of your own, call the preprocessor
    with lists of text, or map a `tf.data.Dataset` of (source, target) strings, batched or not.

    Args:
        source: the vocabulary of the source.
        target: that of the target; None means the same.
        max_length: the most tokens of a text, without BOS and EOS.

    Attributes:
        source, target, max_length: as in the arguments.
        dropped: pairs that the last call of `batches` left out, by reason: "empty", "too long".

    Example:
        >>> preprocessor = Seq2SeqPreprocessor(vocabulary)
        >>> model.fit(preprocessor.batches([("a dog", "ein Hund"), ("a cat", "eine Katze")]))
    """

    def __init__(
        self, source: Vocabulary, target: Vocabulary | None = None, *, max_length: int = 256
    ) -> None:
        if max_length < 1:
            raise InputError(f"max_length must be at least 1, got {max_length}")
        self.source, self.target = source, target or source
        self.max_length = max_length
        self.dropped: dict[str, int] = {}
        self._tokenizers = Tokenizer(self.source), Tokenizer(self.target)

    def __call__(self, source: Any, target: Any) -> tuple[dict[str, Tensor], Tensor]:
        """Returns the inputs and labels of pairs, padded to the longest; truncates longer texts.

        Args:
            source, target: strings [B], or one string each.

        Returns:
            ({"source": [B, S], "target": [B, T]}, labels [B, T]), int32: `source` and `labels` end
            with EOS, `target` begins with BOS. Without B for one string each.
        """
        texts = tuple(tf.convert_to_tensor(text, tf.string) for text in (source, target))
        shapes = [text.shape for text in texts]
        if not shapes[0].is_compatible_with(shapes[1]) or (shapes[0].rank or 0) > 1:
            raise InputError(
                f"expected as many sources as targets, [B], got shapes {shapes[0]} and {shapes[1]}"
            )
        is_single = texts[0].shape.rank == 0
        source_tokens, target_tokens = (
            tokenizer.tokenize(tf.reshape(text, [-1]), self.max_length)
            for tokenizer, text in zip(self._tokenizers, texts, strict=True)
        )
        bos = tf.fill([target_tokens.nrows(tf.int32), 1], BOS_ID)
        shifted = tf.concat([bos, target_tokens], axis=1).to_tensor(PAD_ID)
        batch = {"source": with_eos(source_tokens), "target": shifted}, with_eos(target_tokens)
        return tf.nest.map_structure(lambda ids: ids[0] if is_single else ids, batch)

    def batches(
        self, pairs: Any, *, batch_tokens: int = 4096, shuffle: bool = True, seed: int = 0
    ) -> tf.data.Dataset:
        """Returns batches of pairs of similar length, for `fit` and `evaluate`.

        The pairs are read and tokenized at once, and their ids are kept in memory. Empty pairs and
        those with more than `max_length` tokens on a side are left out, with a warning.

        Args:
            pairs: see `read_pairs`.
            batch_tokens: the most tokens of a batch on either side, padding included.
            shuffle: whether each pass over the data set has other batches, in another order.
            seed: of the order, at least 0.

        Returns:
            A data set of one epoch whose number of batches Keras knows, as `__call__` makes them.

        Raises:
            InputError: there are no pairs, a pair has no room in `batch_tokens`, or a number is out
                of its range.
        """
        TrainingConfig(batch_tokens=batch_tokens, seed=seed)  # checks them
        text = read_pairs(pairs)
        corpus = TokenizedCorpus.from_ids(
            self.source.encode(text.source),
            self.target.encode(text.target),
            max_length=self.max_length,
        )
        self.dropped = corpus.dropped
        if any(self.dropped.values()):
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
            message = f"left out of {len(text.source)} pairs: {reasons}"
            warnings.warn(f"{message} (max_length={self.max_length})", stacklevel=2)
        has_gpu = bool(tf.config.list_physical_devices("GPU"))  # where XLA compiles each shape
        options: dict[str, Any] = {
            "batch_tokens": batch_tokens,
            "max_shapes": MAX_COMPILED_SHAPES if has_gpu else MAX_SHAPES,
        }
        count = BatchPlan(corpus, **options).batches_per_epoch
        passes = itertools.count()

        def batches_of_pass() -> Iterator[Batch]:
            epoch = next(passes) if shuffle else 0
            first = epoch * count
            return training_batches(
                corpus, seed=seed, first_step=first, epochs=epoch + 1, **options
            )

        return to_dataset(batches_of_pass).apply(tf.data.experimental.assert_cardinality(count))


def read_pairs(pairs: Any) -> ParallelText:
    """Reads pairs of a source and a target text into memory.

    Args:
        pairs: an iterable of (source, target), such as `zip(sources, targets)`; or a
            `tf.data.Dataset` of (source, target) strings, batched or not, as TensorFlow Datasets
            gives it with `as_supervised=True`. Text is str, or UTF-8 in bytes.

    Raises:
        InputError: something else was given, or there are no pairs.
    """
    if isinstance(pairs, Mapping | Set):
        raise InputError(f"expected a list of pairs of text, got a {type(pairs).__name__}")
    text = ParallelText([], [])
    for pair in _pairs_of_dataset(pairs) if hasattr(pairs, "element_spec") else pairs:
        is_pair = isinstance(pair, list | tuple | np.ndarray) and len(pair) == 2
        if not is_pair or not all(isinstance(side, str | bytes) for side in pair):
            raise InputError(f"expected pairs of text, (source, target), got {repr(pair)[:80]}")
        text.source.append(as_text(pair[0]))
        text.target.append(as_text(pair[1]))
    if not text.source:
        raise InputError("there are no pairs of text; an iterator can be read once only")
    return text


def _pairs_of_dataset(dataset: tf.data.Dataset) -> Iterator[tuple[bytes, bytes]]:
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or [getattr(side, "dtype", None) for side in spec] != [
        tf.string, tf.string
    ]:  # fmt: skip
        raise InputError(
            f"expected a data set of pairs of strings, (source, target), got {spec}; load one of "
            "TensorFlow Datasets with as_supervised=True"
        )
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise InputError("the data set repeats without end; remove repeat()")
    if spec[0].shape.rank == 0:
        dataset = dataset.batch(_READ_PAIRS)
    for sources, targets in dataset.as_numpy_iterator():
        yield from zip(sources, targets, strict=True)
