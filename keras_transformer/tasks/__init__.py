"""What a model is trained for: how text is read, outputs are completed and a metric decides.

A new task is a subclass of `Task` in its own file, with the decorator `register_task`.
"""

from keras_transformer.tasks.parsing import ParsingTask
from keras_transformer.tasks.pronunciation import PronunciationTask
from keras_transformer.tasks.task import (
    VALIDATION_METRICS,
    Metric,
    Task,
    get_task,
    register_task,
    registered_tasks,
)
from keras_transformer.tasks.translation import TranslationTask

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
