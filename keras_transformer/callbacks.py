"""Callbacks for Keras's `fit`."""

from typing import Any

import keras

from keras_transformer.data.preprocessor import read_pairs
from keras_transformer.inference import LocalTranslator
from keras_transformer.tasks import TranslationTask
from keras_transformer.text import Vocabulary


class TranslationMetrics(keras.callbacks.Callback):
    """Translates a dev set at the end of each epoch, and adds BLEU and chrF to the logs.

    The progress line and the history show `val_bleu` and `val_chrf`, sacreBLEU's from 0 to 100.
    `EarlyStopping`, `ModelCheckpoint` and `ReduceLROnPlateau` monitor them with `mode="max"`.
    Give it before them in the list, and after `SwapEMAWeights` to measure the averaged weights.

    Args:
        pairs: the dev set, see `read_pairs`.
        source, target: the vocabularies; None as the target means the same.
        task: evaluates the translations; `TranslationTask(bleu_tokenize="char")` suits texts of
            fewer than four words, whose BLEU is undefined, and 0 here.
        **search: fields of `SearchConfig`, such as `beam_size`.

    Raises:
        InputError: there are no pairs, or an option of the search is unknown or out of range.

    Example:
        >>> bleu = TranslationMetrics(dev, vocabulary, beam_size=1)
        >>> stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=3)
        >>> model.fit(train, epochs=50, callbacks=[bleu, stop])
    """

    def __init__(
        self,
        pairs: Any,
        source: Vocabulary,
        target: Vocabulary | None = None,
        task: TranslationTask | None = None,
        **search: Any,
    ) -> None:
        super().__init__()
        self._text = read_pairs(pairs)
        self._vocabularies = source, target or source
        self._task = task or TranslationTask()
        self._search = self._task.search_config({**self._task.dev_search, **search})

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._translator = LocalTranslator(
            self.model, *self._vocabularies, self._search, task=self._task
        )
        source, references = self._text
        self._task.check_references(references, self._vocabularies[1])
        self._task.measure(references, references, source)  # warns if BLEU is undefined for all

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        translations = self._translator.translate(self._text.source)
        outputs = self._task.postprocess(list(map(str, translations)), self._text.source)
        results = self._task.evaluate(outputs, self._text.target, self._text.source)
        if logs is not None:
            logs |= {"val_bleu": results["bleu"] or 0.0, "val_chrf": results["chrf"]}
