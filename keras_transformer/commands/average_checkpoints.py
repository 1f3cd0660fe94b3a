"""Averages the weights of a run's checkpoints (Vaswani et al. 2017, section 6.1).

The result replaces the checkpoint "average", which later commands use. Scores that were measured
before are those of the old average.

keras-transformer average_checkpoints --run_dir=runs/mine --last=20
"""

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.errors import InputError

_RUN_DIR = command_flags.define_path("run_dir", "Directory of a training run.", required=True)
_LAST = flags.DEFINE_integer(
    "last",
    None,
    "Average this many of the newest checkpoints. Default: average_best or average_last of "
    "the run, or all if there are fewer.",
    lower_bound=1,
)


def main(arguments: list[str]) -> None:
    common.reject_arguments(arguments)
    common.load_tensorflow()
    from keras_transformer.models import build_model
    from keras_transformer.training.run import RunDirectory

    run = RunDirectory(_RUN_DIR.value)
    with run.lock():  # a running training would drop checkpoints, and go beyond this average
        configs = run.configs()
        checkpoints = run.checkpoints()
        if _LAST.value is None:
            training = configs.training
            steps = checkpoints.to_average(training.average_last, training.average_best)
        else:
            steps = checkpoints.newest(_LAST.value)
            if len(steps) < _LAST.value:
                raise InputError(
                    f"--last={_LAST.value} is more than the checkpoints that the run has, steps "
                    f"{', '.join(map(str, steps))}"
                )
        model = build_model(configs.model, dtype="float32")
        checkpoints.average(model, steps)
        checkpoints.save_weights(model)
        names = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
        print(f"Averaged {names} into {checkpoints.folder / 'average'}.")
