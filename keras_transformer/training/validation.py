"""The loss and the task's metric on the dev sets, with the same search as at inference.

The number of sentences that are searched follows from the configuration, never from wall-clock
time: a resumed run gets the same values on any machine.

Shapes: B sentences, S source length, L length of the longest output.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config import SearchConfig, TrainingConfig
from keras_transformer.data import BatchPlan, ParallelText, evaluation_batches
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.inference import ModelFunctions
from keras_transformer.inference.compiled_search import gpu_shapes
from keras_transformer.models import Seq2SeqModel
from keras_transformer.sentences import batches_by_length, in_row_order
from keras_transformer.tasks import Task
from keras_transformer.text import Vocabulary
from keras_transformer.training.distribution import distributed
from keras_transformer.training.optimizer import WeightAverage
from keras_transformer.training.prepare import tokenize
from keras_transformer.training.settings import RunConfigs

# How many target tokens can be trained on in the time that a beam search of 4 takes for one
# reference token: about 5 for `tiny` on two cores, and more at first, when outputs are too long.
_SEARCH_COST = 8
_MAX_ROWS = 128  # sentences that a device searches at once


def check_validation(training: TrainingConfig, dev: ParallelText | None) -> None:
    """Raises `InputError` if an option of a run needs a dev set, and there is none."""
    defaults = TrainingConfig()
    needing = [
        name
        for name in training.fields_with(needs_dev_set=True)
        if getattr(training, name) != getattr(defaults, name)
    ]
    if dev is None and needing:
        raise InputError(
            f"{needing[0]} needs a dev set, and there is none; give dev_file, or dev_source and "
            f"dev_target, or remove {needing[0]}"
        )


class DevMetric:
    """The task's metric of a model on sentences taken evenly over a dev set.

    It takes as many as can be searched in about `validation_time_share` of the time between two
    validations, but at least `_MAX_ROWS`. A sentence with several references is searched once and
    compared with all of them. A batch has no more source tokens, padding included, than a part of
    a training batch: smaller parts help here too if memory runs out.

    Args:
        model: the model, built.
        text: the dev set.
        vocabularies: of source and target.
        task: evaluates outputs, and has a default search.
        training: limits how much is searched, and how much at once.
        search: instead of the task's search; finds one output per sentence.

    Attributes:
        num_sentences: how many different source sentences are searched.
        num_all: how many the dev set has.

    Example:
        >>> bleu = DevMetric(model, dev, run.vocabularies(), TranslationTask(), training)
        >>> bleu()
        37.2
    """

    def __init__(
        self,
        model: keras.Model,
        text: ParallelText,
        vocabularies: tuple[Vocabulary, Vocabulary],
        task: Task,
        training: TrainingConfig,
        search: SearchConfig | None = None,
    ) -> None:
        source, target = vocabularies
        self._model, self._task = model, task
        search = search or task.search_config(task.dev_search)
        task.check_references(text.target, target)
        tokens = training.event_steps[1] * training.batch_tokens
        learned = list(map(task.target_text, text.target))
        lengths = [len(ids) + 1 for ids in target.encode(learned)]
        affordable = training.validation_time_share * tokens / _SEARCH_COST
        count = int(affordable / np.mean(lengths))
        pairs_of: dict[str, list[int]] = {}
        for pair, sentence in enumerate(text.source):
            pairs_of.setdefault(sentence, []).append(pair)
        sentences = list(pairs_of)
        self.num_all = len(sentences)
        self.num_sentences = min(max(count, _MAX_ROWS), self.num_all)
        # Evenly: the file may be sorted, for example by length.
        middles = (2 * np.arange(self.num_sentences) + 1) * self.num_all // (2 * self.num_sentences)
        self._sentences = [sentences[index] for index in middles]
        pairs = sorted(pair for sentence in self._sentences for pair in pairs_of[sentence])
        self._texts = [text.source[pair] for pair in pairs]
        self._references = [text.target[pair] for pair in pairs]
        limit = search.max_source_length
        self._lengths = [len(ids[:limit]) + 1 for ids in source.encode(self._sentences)]
        strategy = model.distribute_strategy
        self._num_devices = 1
        if strategy.num_replicas_in_sync > 1:  # those of this process: all workers search the same
            self._num_devices = len(strategy.extended.worker_devices)
        share = self._num_devices / strategy.num_replicas_in_sync
        self._max_tokens = int(training.batch_tokens // training.accumulation_steps * share)
        shapes = gpu_shapes((_MAX_ROWS,)) if self._num_devices == 1 else None
        self._functions = ModelFunctions(model, source, target, search, shapes or False, task)
        self._translate_batch = tf.function(
            self._translate_on_each_device,
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )

    def __call__(self) -> float:
        """Returns the metric of the model as it is; its worst value if it is undefined."""
        return self._task.measure(self.translate(), self._references, self._texts)

    def translate(self) -> list[str]:
        """Returns the model's output for each searched pair, in their order."""
        strategy, batches, results = self._model.distribute_strategy, self.batches(), []
        with strategy.scope():
            for indices in batches:
                batch = tf.constant([self._sentences[index] for index in indices])
                by_device = strategy.experimental_local_results(self._translate_batch(batch))
                results.append(np.concatenate(by_device).tolist())
        texts = [text.decode("utf-8", "replace") for text in in_row_order(batches, results)]
        translation_of = dict(zip(self._sentences, texts, strict=True))
        return [translation_of[sentence] for sentence in self._texts]

    def batches(self) -> list[list[int]]:
        """Returns the indices of the sentences that are searched together, the longest first."""
        return batches_by_length(self._lengths, _MAX_ROWS * self._num_devices, self._max_tokens)

    def _translate_on_each_device(self, text: Tensor) -> Any:
        """Returns the best translations of text [B], string [B], by device."""
        devices = self._num_devices

        def translate(rows: Tensor) -> Tensor:
            return self._functions.translate_text(rows)["translations"][:, 0]

        def translate_share() -> Tensor:
            context = tf.distribute.get_replica_context()
            device = context.replica_id_in_sync_group % devices
            rows = tf.shape(text)[0]
            return translate(text[rows * device // devices : rows * (device + 1) // devices])

        if devices == 1:
            return translate(text)
        return self._model.distribute_strategy.run(translate_share)


class Validation:
    """Measures the model on the dev sets: the loss on the first, the task's metric on each.

    Args:
        model: compiled under the strategy that trains it.
        devs: at least one.
        vocabularies: of source and target.
        configs: of the run.
        max_shapes: how many shapes batches may have.
        average: the moving average of the weights, which is then measured.

    Attributes:
        dev_metrics: the metric of each dev set, and what measures it; none where validation is to
            take no time.
        batches: of the first dev set, for the loss.
    """

    def __init__(
        self,
        model: Seq2SeqModel,
        devs: Sequence[ParallelText],
        vocabularies: tuple[Vocabulary, Vocabulary],
        configs: RunConfigs,
        max_shapes: int,
        average: WeightAverage | None = None,
    ) -> None:
        self._model, self._average = model, average
        task, training = configs.task, configs.training
        search = configs.search_config(task.dev_search)
        self.dev_metrics = [
            (
                task.metric.of_dev_set(number),
                DevMetric(model, dev, vocabularies, task, training, search),
            )
            for number, dev in enumerate(devs, start=1)
            if training.validation_time_share
        ]
        learned = devs[0]._replace(target=list(map(task.target_text, devs[0].target)))
        corpus = tokenize(
            learned,
            vocabularies,
            max_length=configs.required_data.max_length,
            name="the dev set",
        )
        # As large as a part of a training batch, which is known to fit in memory, but with room
        # for the longest sentence.
        longest = max(int(lengths.max()) for lengths in corpus.lengths())
        size = max(training.batch_tokens // training.accumulation_steps, longest)
        bounds: Any = {"batch_tokens": size, "max_shapes": max_shapes}
        self._num_batches = BatchPlan(corpus, **bounds).batches_per_epoch
        self.batches = distributed(model.distribute_strategy, evaluation_batches, corpus, **bounds)
        model.make_test_function()

    def __call__(self) -> dict[str, float]:
        """Returns the values by name, of the moving averages if the run keeps any."""
        with self._average.applied() if self._average else contextlib.nullcontext():
            self._model.reset_metrics()
            stream, logs = iter(self.batches), {}
            for _ in range(self._num_batches):
                logs = self._model.test_function(stream)
            values = {f"val_{name}": float(value) for name, value in logs.items()}
            return values | {metric.name: measure() for metric, measure in self.dev_metrics}
