"""BLEU of the dev set while a model is trained, by the search that translates.

How many sentences are translated follows from the configuration and never from the clock: a run
that is resumed gets the scores that it would have had, on any machine.

Shapes: B sentences, S source length, L length of the longest translation.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, DataConfig, SearchConfig, TrainingConfig
from keras_transformer.data import ParallelText
from keras_transformer.data.tokenized import pad_ids
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.search import beam_search
from keras_transformer.text import Vocabulary, score_translations

# How many target tokens can be trained on in the time in which one token of a reference is
# searched for, with a beam of 4: about 5 in `tiny` on two cores, and more at first, when the
# translations are far too long. The rest is a margin.
SEARCH_COST = 8
_ROWS = 128  # sentences that a device translates at once


def check_validation(training: TrainingConfig, dev: ParallelText | None) -> None:
    """Raises `InputError` where a run is to go by a dev set, and has none."""
    needing = [name for name in ("average_best", "stop_metric") if getattr(training, name)]
    if dev is None and needing:
        raise InputError(
            f"{needing[0]} needs a dev set, and there is none; give dev_source and dev_target, or "
            "leave it out"
        )


class DevBleu:
    """CheckpointMetrics a model on the first sentences of a dev set.

    So many of them are taken that their translation costs about `bleu_share` of the time between
    two checkpoints, but at least one batch.

    Args:
        model: a Keras model that is a `TranslationModel`.
        text: the dev set.
        vocabularies: of source and target.
        data: says how BLEU is counted.
        training: says how much may be translated.
        search: gives beam size, length penalty and limits of length; the paper's by default.

    Attributes:
        num_sentences: how many are translated.

    Example:
        >>> bleu = DevBleu(model, read_validation_text(data), run.vocabularies(), data, training)
        >>> bleu()
        37.2
    """

    def __init__(
        self,
        model: keras.Model,
        text: ParallelText,
        vocabularies: tuple[Vocabulary, Vocabulary],
        data: DataConfig,
        training: TrainingConfig,
        search: SearchConfig | None = None,
    ) -> None:
        source, self._target = vocabularies
        self._model = model
        self._data = data
        self._search = search or SearchConfig()
        tokens = training.event_steps[1] * training.batch_tokens
        lengths = [len(ids) + 1 for ids in self._target.encode(text.target)]
        self.num_sentences = count_affordable(lengths, training.bleu_share * tokens / SEARCH_COST)
        self._references = text.target[: self.num_sentences]
        self._sources = [
            [*ids[: self._search.max_source_length], EOS_ID]
            for ids in source.encode(text.source[: self.num_sentences])
        ]
        self._translate_batch = tf.function(
            self._translate_on_each_device,
            input_signature=[tf.TensorSpec([None, None], tf.int32)],
            autograph=False,
        )

    def __call__(self) -> float:
        """Returns the BLEU of the model as it is, 0 to 100; 0 where no translation has 4 words."""
        scores = score_translations(
            self.translate(),
            self._references,
            tokenize=self._data.bleu_tokenize,
            lowercase=self._data.bleu_lowercase,
            remove_bpe=self._data.remove_bpe,
        )
        return scores["bleu"] or 0.0

    def translate(self) -> list[str]:
        """Returns the translations of the sentences that are scored, in their order."""
        strategy = self._model.distribute_strategy
        rows = _ROWS * _count_devices(strategy)
        order = sorted(range(self.num_sentences), key=lambda index: -len(self._sources[index]))
        translations = [""] * self.num_sentences
        with strategy.scope():
            for first in range(0, len(order), rows):
                indices = order[first : first + rows]
                batch = pad_ids([self._sources[index] for index in indices])
                texts = self._decode(self._translate_batch(tf.constant(batch)), strategy)
                for index, text in zip(indices, texts, strict=True):
                    # A blank sentence has the empty translation.
                    translations[index] = text if len(self._sources[index]) > 1 else ""
        return translations

    def _translate_on_each_device(self, source: Tensor) -> Any:
        """Returns the ids [B, L] of the translations of source ids [B, S], by device."""
        strategy = self._model.distribute_strategy
        devices = _count_devices(strategy)
        if devices == 1:
            return self._translate_rows(source)

        def translate_share() -> Tensor:
            context = tf.distribute.get_replica_context()
            device = context.replica_id_in_sync_group % devices
            rows = tf.shape(source)[0]
            share = source[rows * device // devices : rows * (device + 1) // devices]
            return self._translate_rows(share)

        return strategy.run(translate_share)

    def _translate_rows(self, source: Tensor) -> Tensor:
        lengths = tf.math.count_nonzero(source, axis=1, dtype=tf.int32) - 1  # without EOS
        hypotheses = beam_search(
            self._model.step,
            self._model.encode(source, num_hypotheses=self._search.beam_size),
            bos_ids=tf.fill(tf.shape(lengths), BOS_ID),
            max_lengths=lengths + self._search.max_extra_length,
            beam_size=self._search.beam_size,
            length_penalty=self._search.length_penalty,
        )
        return hypotheses.ids[:, 0]  # [B, L]

    def _decode(self, ids: Any, strategy: tf.distribute.Strategy) -> list[str]:
        parts = strategy.experimental_local_results(ids)
        return [text for part in parts for text in self._target.decode(np.asarray(part).tolist())]


def _count_devices(strategy: tf.distribute.Strategy) -> int:
    """Returns how many devices of this process take part; other workers translate the same."""
    # The strategy of one device does not tell its devices.
    return len(strategy.extended.worker_devices) if strategy.num_replicas_in_sync > 1 else 1


def count_affordable(lengths: Sequence[int], tokens: float) -> int:
    """Returns how many sentences, from the first on, are translated.

    Args:
        lengths: target tokens of each sentence.
        tokens: as many may be translated, but no less than one batch of sentences.
    """
    within = int(np.searchsorted(np.cumsum(lengths), tokens, side="right"))
    return min(max(within, _ROWS), len(lengths))


class ValidateBleu(keras.callbacks.Callback):
    """Adds `bleu` to the metrics of each checkpoint; stands before the callbacks that use them.

    Args:
        bleu: gives the score, as `DevBleu` does.
        weights_to_score: a context in which the model has the weights that are to be scored, such
            as moving averages.
        is_due: whether the epoch that ends has a validation.
    """

    def __init__(
        self,
        bleu: Callable[[], float],
        weights_to_score: Callable[[], contextlib.AbstractContextManager[Any]] = (
            contextlib.nullcontext
        ),
        is_due: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self.is_due = is_due
        self.bleu = bleu
        self.weights_to_score = weights_to_score

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None and self.is_due():
            with self.weights_to_score():
                logs["bleu"] = self.bleu()
