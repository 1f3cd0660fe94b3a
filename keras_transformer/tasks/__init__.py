"""What a model is trained for: how text is read, outputs are repaired and a metric decides.

A task of one's own is a `Task` in a file of its own and a line in `_BUILT_IN`, or a call of
`register_task`.
"""

from keras_transformer.tasks.base import (
    VALIDATION_METRICS,
    Metric,
    Task,
    get_task,
    register_task,
    registered_tasks,
)
from keras_transformer.tasks.parsing import ParsingTask
from keras_transformer.tasks.pronunciation import PronunciationTask
from keras_transformer.tasks.translation import TranslationTask

_BUILT_IN = (TranslationTask, ParsingTask, PronunciationTask)
for _task in _BUILT_IN:
    register_task(_task)

__all__ = [
    "VALIDATION_METRICS",
    "Metric",
    "ParsingTask",
    "PronunciationTask",
    "Task",
    "TranslationTask",
    "get_task",
    "register_task",
    "registered_tasks",
]
