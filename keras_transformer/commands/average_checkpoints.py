"""Averages the weights of a run's checkpoints into its checkpoint "average"
(Vaswani et al. 2017, section 6.1), which later commands then use.

keras-transformer average_checkpoints --run_dir=runs/mine --last=20
keras-transformer average_checkpoints --run_dir=runs/mine --best=5
"""

from typing import TYPE_CHECKING

from absl import flags

from keras_transformer.commands import common
from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.training import Checkpoints

_RUN_DIR = flags.DEFINE_string("run_dir", None, "Directory of a training run.", required=True)
_LAST = flags.DEFINE_integer(
    "last",
    None,
    "How many of the newest. Default: the run's average_best or average_last, or fewer where there "
    "are fewer.",
    lower_bound=1,
)
_BEST = flags.DEFINE_integer(
    "best",
    None,
    "How many of those with the best metric, in place of --last.",
    lower_bound=1,
)
_STEPS = flags.DEFINE_list("steps", None, "The steps to average, in place of --last.")


def main(arguments: list[str]) -> None:
    common.refuse_arguments(arguments)
    if sum(flag.value is not None for flag in (_LAST, _BEST, _STEPS)) > 1:
        raise InputError("give one of --last, --best and --steps")
    if _STEPS.value is not None and not all(step.isdecimal() for step in _STEPS.value):
        raise InputError(f"--steps takes numbers, got {','.join(_STEPS.value)!r}")
    common.load_tensorflow()
    from keras_transformer.models import build_model
    from keras_transformer.training import RunDirectory

    run = RunDirectory(_RUN_DIR.value)
    configs = run.configs()
    checkpoints = run.checkpoints()
    steps = _steps(checkpoints, configs.training)
    model = build_model(configs.model, dtype="float32")
    checkpoints.average(model, steps)
    checkpoints.save_weights(model)
    print(f"Averaged steps {', '.join(map(str, steps))} into {checkpoints.folder / 'average'}.")


def _steps(checkpoints: "Checkpoints", training: TrainingConfig) -> list[int]:
    """Returns the steps to average."""
    if _STEPS.value is not None:
        return [int(step) for step in _STEPS.value]
    if _BEST.value is not None:
        steps, asked = checkpoints.best(_BEST.value), f"--best={_BEST.value}"
        there_are = f"{len(steps)} checkpoints with a metric of the dev set"
        enough = len(steps) == _BEST.value
    elif _LAST.value is not None:
        steps, asked = checkpoints.newest(_LAST.value), f"--last={_LAST.value}"
        there_are = f"{len(steps)} checkpoints"
        enough = len(steps) == _LAST.value
    else:
        return checkpoints.to_average(training.average_last, training.average_best)
    if not enough:
        raise InputError(f"{asked} is more than the {there_are} that there are")
    return steps
