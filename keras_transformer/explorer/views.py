"""What a model does with a sentence: its translation, all of its attention, and its search.

Shapes: L layers, H heads, Q tokens that attend, K tokens that are attended to.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.explorer.search_tree import SearchRecorder, SearchTree, make_tree
from keras_transformer.inference import BatchTranslator
from keras_transformer.inference.search_options import search_translations
from keras_transformer.tasks import Task
from keras_transformer.text import Vocabulary

KINDS = ("encoder", "decoder", "cross")


class View(NamedTuple):
    """One model's translation of one sentence.

    Attributes:
        model: the name of the model.
        sentence: the source text.
        translation: the best one, as the task finishes it.
        source: the source's tokens with EOS.
        read: the tokens that the decoder reads, BOS first.
        written: those that it predicts at these places, EOS last.
        attentions: float32 [L, H, Q, K] for those of `KINDS` that the model has. Rows of "cross"
            belong to the tokens `written`, as in the signature `attention`.
        tree: the search, where it can be watched.
        steps: how many steps each token of "source" and of "target", those `read`, took, where
            these differ.
    """

    model: str
    sentence: str
    translation: str
    source: list[str]
    read: list[str]
    written: list[str]
    attentions: dict[str, np.ndarray]
    tree: SearchTree | None = None
    steps: dict[str, list[int]] = {}  # noqa: RUF012 (not changed)

    def tokens(self, kind: str) -> tuple[list[str], list[str]]:
        """Returns the tokens of the rows and of the columns of one kind of attention."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.read, self.read),
            "cross": (self.written, self.source),
        }[kind]


Look = Callable[[str], View]  # at a sentence with one model


def look_into_model(
    name: str,
    model: Any,
    vocabularies: tuple[Vocabulary, Vocabulary],
    task: Task,
    search: SearchConfig,
) -> Look:
    """Returns a function that translates a sentence and shows all attention.

    Args:
        name: the name of the model.
        model: a `Seq2SeqModel`.
        vocabularies: of source and target.
        task: what the model was trained for.
        search: how to search.
    """
    source_vocabulary, target_vocabulary = vocabularies
    if search.method == "beam":
        search = search.replace(num_translations=search.beam_size)

    def look(sentence: str) -> View:
        (ids,) = source_vocabulary.encode([sentence], max_tokens=search.max_source_length)
        _check_not_blank(ids)
        source = tf.constant([[*ids, EOS_ID]])
        recorder = SearchRecorder()
        found = search_translations(
            model,
            source,
            search,
            target_vocabulary,
            constraints=[*task.constraints(source, vocabularies), recorder],
        )
        tree = make_tree(recorder.steps, found, target_vocabulary)
        written = found.ids[0, 0, : found.lengths[0, 0]].numpy().tolist()
        read = [BOS_ID, *written][:-1]
        inputs = {"source": source, "target": tf.constant([read])}
        weights = model.attentions(inputs)
        if not set(KINDS) & weights.keys():
            raise InputError(f"{name} has no attention to show")
        return View(
            name,
            sentence,
            _finish(task, tree.translations[0].text, sentence),
            source_vocabulary.pieces([*ids, EOS_ID]),
            target_vocabulary.pieces(read),
            target_vocabulary.pieces(written),
            {kind: np.asarray(weights[kind])[:, 0] for kind in KINDS if kind in weights},
            tree,
            _steps(model, inputs),
        )

    return look


def look_into_export(name: str, translator: BatchTranslator) -> Look:
    """Returns a function that shows what an export answers: the mean of the last layer's heads."""

    def look(sentence: str) -> View:
        _check_not_blank(sentence.split())
        translation = translator.translate([sentence])[0][0].text
        (found,) = translator.attention([sentence], [translation])
        read = ["<s>", *found.target][:-1]
        weights = {"cross": found.weights[None, None]}
        return View(name, sentence, translation, found.source, read, found.target, weights)

    return look


def _steps(model: Any, inputs: dict[str, tf.Tensor]) -> dict[str, list[int]]:
    values = model.token_values(inputs) if hasattr(model, "token_values") else {}
    steps = {
        name.removesuffix("_steps"): np.asarray(counts)[0].astype(int).tolist()
        for name, counts in values.items()
        if name.endswith("_steps")
    }
    return steps if any(len(set(counts)) > 1 for counts in steps.values()) else {}


def _finish(task: Task, output: str, sentence: str) -> str:
    """Returns what `translate.py` answers."""
    finished = task.finish(tf.constant([[output]]), tf.constant([sentence]))
    return task.postprocess([finished.numpy().item().decode()], [sentence])[0]


def _check_not_blank(tokens: list[Any]) -> None:
    if not tokens:
        raise InputError("the sentence is empty; give one with words")
