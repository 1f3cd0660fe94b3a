"""Averages the weights of a run's checkpoints into its checkpoint "average"
(Vaswani et al. 2017, section 6.1), which later commands then use.

python scripts/average_checkpoints.py --run_dir=runs/mine --last=20
"""

from absl import flags

import common
from keras_transformer.errors import InputError

_RUN_DIR = flags.DEFINE_string("run_dir", None, "Directory of a training run.", required=True)
_LAST = flags.DEFINE_integer(
    "last",
    None,
    "How many of the newest. Default: the run's average_last, or fewer where there are fewer.",
    lower_bound=1,
)
_STEPS = flags.DEFINE_list("steps", None, "The steps to average, in place of --last.")


def main(arguments: list[str]) -> None:
    common.refuse_arguments(arguments)
    if _STEPS.value is not None and not all(step.isdecimal() for step in _STEPS.value):
        raise InputError(f"--steps takes numbers, got {','.join(_STEPS.value)!r}")
    common.load_tensorflow()
    import keras

    from keras_transformer.models import Transformer
    from keras_transformer.training import RunDirectory

    run = RunDirectory(_RUN_DIR.value)
    model_config, _, training = run.configs()
    checkpoints = run.checkpoints()
    steps = checkpoints.steps()
    if _STEPS.value is not None:
        steps = [int(step) for step in _STEPS.value]
    elif _LAST.value is not None and _LAST.value > len(steps):
        raise InputError(
            f"--last={_LAST.value} is more than the {len(steps)} checkpoints that there are"
        )
    else:
        steps = steps[-(_LAST.value or training.average_last) :]
    model = Transformer(model_config, dtype=keras.DTypePolicy("float32"))
    checkpoints.average(model, steps)
    checkpoints.save_average(model)
    print(f"Averaged steps {', '.join(map(str, steps))} into {checkpoints.folder / 'average'}.")


if __name__ == "__main__":
    common.run(main)
