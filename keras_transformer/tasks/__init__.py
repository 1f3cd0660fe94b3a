"""What a model is trained for: how text is read, outputs are completed and a metric decides.

A new task is a subclass of `Task` in its own file, with the decorator `register_task`.
"""

from keras_transformer.tasks.parsing import ParsingTask as ParsingTask
from keras_transformer.tasks.pronunciation import PronunciationTask as PronunciationTask
from keras_transformer.tasks.task import VALIDATION_METRICS as VALIDATION_METRICS
from keras_transformer.tasks.task import Metric as Metric
from keras_transformer.tasks.task import Task as Task
from keras_transformer.tasks.task import get_task as get_task
from keras_transformer.tasks.task import register_task as register_task
from keras_transformer.tasks.task import registered_tasks as registered_tasks
from keras_transformer.tasks.translation import TranslationTask as TranslationTask
