"""Averages the weights of a run's checkpoints into its checkpoint "average"
(Vaswani et al. 2017, section 6.1), which later commands then use.

keras-transformer average_checkpoints --run_dir=runs/mine --last=20
keras-transformer average_checkpoints --run_dir=runs/mine --best=5
"""

from typing import TYPE_CHECKING

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.training import Checkpoints

_RUN_DIR = command_flags.define_path("run_dir", None, "Directory of a training run.", required=True)
_LAST = flags.DEFINE_integer(
    "last",
    None,
    "Average this many of the newest. Default: average_best or average_last of the run, or as many "
    "as it has.",
    lower_bound=1,
)
_BEST = flags.DEFINE_integer(
    "best", None, "Average this many of the best by the dev metric, instead.", lower_bound=1
)
_STEPS = flags.DEFINE_list("steps", None, "Average these steps, instead, for example 800,1000.")


def main(arguments: list[str]) -> None:
    common.refuse_arguments(arguments)
    if sum(flag.value is not None for flag in (_LAST, _BEST, _STEPS)) > 1:
        raise InputError("give only one of --last, --best and --steps")
    if _STEPS.value is not None and not all(step.isdecimal() for step in _STEPS.value):
        raise InputError(f"--steps must be numbers, got {','.join(_STEPS.value)!r}")
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
    if _STEPS.value is not None:
        return [int(step) for step in _STEPS.value]
    if _BEST.value is None and _LAST.value is None:
        return checkpoints.to_average(training.average_last, training.average_best)
    if _BEST.value is not None:
        steps, flag, kind = checkpoints.best(_BEST.value), _BEST, "checkpoints with a dev metric"
    else:
        steps, flag, kind = checkpoints.newest(_LAST.value or 0), _LAST, "checkpoints"
    if len(steps) < (flag.value or 0):
        raise InputError(f"--{flag.name}={flag.value} is more than the {len(steps)} {kind}")
    return steps
