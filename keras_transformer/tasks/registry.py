"""The tasks by name, as --task and the configuration of a run name them."""

from typing import TypeVar

from keras_transformer.errors import InputError, check_choice
from keras_transformer.tasks.base import Task
from keras_transformer.tasks.metric import TRAINING_VALUES

AnyTask = TypeVar("AnyTask", bound=type[Task])

_TASKS: dict[str, type[Task]] = {}


def register_task(task: AnyTask) -> AnyTask:
    """Makes a task known by its name; also a decorator.

    Raises:
        InputError: another task has that name, or its metric is named like a value of training.
    """
    if _TASKS.get(task.name, task) is not task:
        raise InputError(f"there is a task {task.name!r} already; give this one another name")
    if task.metric.name in TRAINING_VALUES or task.metric.name.startswith(("val_", "train_")):
        raise InputError(
            f"the metric of task {task.name!r} may not be named {task.metric.name!r}, which is a "
            "value of training or validation; give it another name"
        )
    _TASKS[task.name] = task
    return task


def get_task(name: str) -> type[Task]:
    """Returns a task by its name.

    Raises:
        InputError: no task has that name.
    """
    check_choice("task", name, registered_tasks())
    return _TASKS[name]


def registered_tasks() -> tuple[str, ...]:
    """Returns the names of all tasks."""
    return tuple(_TASKS)
