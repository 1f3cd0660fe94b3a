"""How `fit` is called so that checkpoints and validations come at their steps."""

from keras_transformer.config import TrainingConfig


def intervals(step: int, training: TrainingConfig) -> list[tuple[int, int, int]]:
    """Returns the calls of `fit` that lead from `step` to the end.

    Each is (first epoch, last epoch, steps an epoch), where an epoch ends at a multiple of the
    smaller of `checkpoint_steps` and `validation_steps`, or at the end of training.
    """
    every, end = min(training.event_steps), training.train_steps
    calls = []
    while step < end:
        steps = min(every - step % every, end - step)
        count = (end - step) // every if steps == every else 1
        calls.append((step // every, step // every + count, steps))
        step += count * steps
    return calls


def epochs_with_validation(first: int, last: int, training: TrainingConfig) -> list[int]:
    """Returns the epochs of a call of `fit`, counted from 1, that end with a validation."""
    every, end = min(training.event_steps), training.train_steps
    epochs = range(first + 1, last + 1)
    return [epoch for epoch in epochs if training.is_validated(min(epoch * every, end))]
