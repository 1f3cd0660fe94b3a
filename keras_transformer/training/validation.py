"""The loss and the task's metric on the dev set, with the same search as at inference.

The number of sentences that are searched follows from the configuration, never from wall-clock
time: a resumed run gets the same values on any machine.
"""

from typing import Any

import numpy as np

from keras_transformer.config import SearchConfig, TrainingConfig
from keras_transformer.data.batches import BatchPlan, evaluation_batches
from keras_transformer.data.corpus import ParallelText
from keras_transformer.errors import InputError
from keras_transformer.inference import LocalTranslator
from keras_transformer.inference.compiled_search import gpu_shapes
from keras_transformer.models import Seq2SeqModel
from keras_transformer.tasks import VALIDATION_METRICS, Task
from keras_transformer.text import Vocabulary
from keras_transformer.training.distribution import distributed
from keras_transformer.training.prepare import tokenize
from keras_transformer.training.settings import RunConfigs

# How many target tokens can be trained on in the time that a beam search of 4 takes for one
# reference token: about 5 for `tiny` on two cores, and more at first, when outputs are too long.
_SEARCH_COST = 8
_WITHOUT_SEARCH = [metric.name for metric in VALIDATION_METRICS]
_BATCH_SIZE = 128  # sentences that are searched at once, and the fewest of a large dev set


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
    validations, but at least 128. A sentence with several references is searched once and compared
    with all of them.

    The search finds one output per sentence.

    Attributes:
        num_sentences: how many different source sentences are searched.
        num_all: how many the dev set has.
    """

    def __init__(
        self,
        model: Seq2SeqModel,
        text: ParallelText,
        vocabularies: tuple[Vocabulary, Vocabulary],
        task: Task,
        training: TrainingConfig,
        search: SearchConfig,
    ) -> None:
        source, target = vocabularies
        self._task = task
        task.check_references(text.target, target)
        tokens = training.checkpoint_steps * training.batch_tokens
        learned = list(map(task.target_text, text.target))
        lengths = [len(ids) + 1 for ids in target.encode(learned)]
        affordable = training.validation_time_share * tokens / _SEARCH_COST
        count = int(affordable / np.mean(lengths))
        sentences = list(dict.fromkeys(text.source))
        self.num_all = len(sentences)
        self.num_sentences = min(max(count, _BATCH_SIZE), self.num_all)
        # Evenly: the file may be sorted, for example by length.
        middles = (2 * np.arange(self.num_sentences) + 1) * self.num_all // (2 * self.num_sentences)
        self._sentences = [sentences[index] for index in middles]
        searched = set(self._sentences)
        self._pairs = [pair for pair in zip(*text, strict=True) if pair[0] in searched]
        has_replicas = model.distribute_strategy.num_replicas_in_sync > 1
        self._translator = LocalTranslator(
            model,
            source,
            target,
            search,
            xla=False if has_replicas else gpu_shapes((_BATCH_SIZE,)),
            task=task,
        )
        self._translator.batch_size = _BATCH_SIZE

    def __call__(self) -> float:
        """Returns the metric of the model as it is; its worst value if it is undefined."""
        sources, references = zip(*self._pairs, strict=True)
        return self._task.measure(self.translate(), references, sources)

    def translate(self) -> list[str]:
        """Returns the model's output for each searched pair, in their order."""
        outputs = [result.text for result in self._translator.translate(self._sentences)]
        output_of = dict(zip(self._sentences, outputs, strict=True))
        return [output_of[source] for source, _ in self._pairs]


class Validation:
    """Measures a compiled model on the dev set: the loss, and the task's metric.

    Attributes:
        dev_metric: measures the metric; None where validation is to take no time.
        batches: of the dev set, for the loss.
    """

    def __init__(
        self,
        model: Seq2SeqModel,
        dev: ParallelText,
        vocabularies: tuple[Vocabulary, Vocabulary],
        configs: RunConfigs,
        max_shapes: int,
    ) -> None:
        self._model = model
        task, training = configs.task, configs.training
        search = configs.search_config(task.dev_search)
        self._metric_name, self.dev_metric = task.metric.name, None
        if training.validation_time_share:
            self.dev_metric = DevMetric(model, dev, vocabularies, task, training, search)
        corpus = tokenize(
            dev._replace(target=list(map(task.target_text, dev.target))),
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
        """Returns loss, perplexity, accuracy and, if it is searched, the metric, by name."""
        self._model.reset_metrics()
        stream, logs = iter(self.batches), {}
        for _ in range(self._num_batches):
            logs = self._model.test_function(stream)
        values = {name: float(logs[name.removeprefix("val_")]) for name in _WITHOUT_SEARCH}
        return values | ({self._metric_name: self.dev_metric()} if self.dev_metric else {})
