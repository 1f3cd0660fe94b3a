"""Trains a model in a run directory, which holds all that later commands need.

    keras-transformer train --run_dir=runs/numbers --preset=tiny --dataset=number_names/en-de
    keras-transformer train --run_dir=runs/mine --preset=base \\
        --train_source=train.en --train_target=train.de --dev_source=dev.en --dev_target=dev.de
    keras-transformer train --run_dir=runs/mine --train_steps=200000
    keras-transformer train --run_dir=runs/tuned --start_from=runs/opus \\
        --train_source=legal.en --train_target=legal.de

An existing run is resumed. Flags then change only settings that leave updates as they are; any
other difference is an error that shows both values. The value none unsets an option, as in
--stop_metric=none. Numbers such as 5.4 in the help are sections of Vaswani et al. 2017.
"""

import functools
import signal
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.config import (
    TRAINING_PRESETS,
    DataConfig,
    TrainingConfig,
    architectures,
)
from keras_transformer.errors import InputError
from keras_transformer.files import local_path
from keras_transformer.tasks import registered_tasks
from keras_transformer.training import settings

if TYPE_CHECKING:
    from keras_transformer.data.corpus import ParallelText
    from keras_transformer.training.run import RunDirectory
    from keras_transformer.training.settings import RunConfigs

_RUN_DIR = command_flags.define_path("run_dir", "Directory of the run.", required=True)
_START_FROM = command_flags.define_path(
    "start_from",
    "A run, one of its checkpoints such as runs/mine/checkpoints/step-1000, or a model of the "
    "package such as en-de. The new run begins with its weights, vocabularies and model; data and "
    "training are new; the task stays unless --task is given. --learning_rate is a tenth of the "
    "paper's by default; --preset sets the training only.",
)
_TENSORBOARD = flags.DEFINE_boolean(
    "tensorboard", False, "Write TensorBoard logs to <run_dir>/tensorboard."
)
_STRATEGY = flags.DEFINE_enum(
    "strategy",
    "auto",
    ["auto", "none", "mirrored", "multi_worker"],
    "Devices to train on: none is one device, mirrored all GPUs of this machine, "
    "multi_worker all machines that TF_CONFIG names, auto whatever there is.",
)
_JIT_COMPILE = flags.DEFINE_enum(
    "jit_compile",
    "auto",
    ["auto", "true", "false"],
    "Whether XLA compiles updates (of several devices gradients), by batch shape; auto: on GPUs.",
)
flags.DEFINE_enum(
    "preset",
    settings.DEFAULT_PRESET,
    list(TRAINING_PRESETS),
    "Settings of model and training; other flags change them.",
)
flags.DEFINE_enum(
    "architecture",
    settings.DEFAULT_ARCHITECTURE,
    list(architectures()),
    "Kind of model, of the size that --preset names.",
)
flags.DEFINE_enum(
    "task", settings.DEFAULT_TASK, registered_tasks(), "What the model is trained for."
)

# The help of a field that several architectures have shows the defaults of the first one's presets.
for _config in architectures().values():
    _names = {name for name in _config.__dataclass_fields__ if "vocabulary_size" not in name}
    command_flags.define_flags(_config, _names - set(flags.FLAGS), _config.PRESETS)
command_flags.define_flags(DataConfig)
command_flags.define_task_options()
command_flags.define_flags(TrainingConfig, presets=TRAINING_PRESETS)


def main(arguments: list[str]) -> None:
    common.reject_arguments(arguments)
    known = sorted(settings.option_names() & set(flags.FLAGS))
    options = {name: flags.FLAGS[name].value for name in known if flags.FLAGS[name].present}
    is_new = not (local_path(_RUN_DIR.value) / "config.json").is_file()
    if is_new and _START_FROM.value is None:
        if not settings.names_data(options):  # perhaps a run was meant that is elsewhere
            raise InputError(
                f"{_RUN_DIR.value} has no run yet, and no data is named for one; give "
                "--train_source and --train_target, --train_file or --dataset, or another --run_dir"
            )
        settings.new_configs(options)  # reports wrong settings before TensorFlow is loaded
    keeps_memory = common.load_tensorflow()
    common.print_warnings()
    from keras_transformer.training import distribution, trainer
    from keras_transformer.training.run import RunDirectory, prepare_run

    strategy = distribution.make_strategy(_STRATEGY.value)  # the first thing that TensorFlow does
    run = RunDirectory(_RUN_DIR.value)
    configs = _find_configs(run, options)
    dev = _read_texts(configs)
    say = functools.partial(print, flush=True)
    corpus = prepare_run(run, configs, strategy=strategy, say=say)
    if run.is_finished():
        print(f"Nothing to do: {_end_of(run)}.")
        return
    steps = run.checkpoints().steps()
    devices = distribution.describe_devices(strategy)
    say(
        f"Training on {devices}{', freed memory kept,' * keeps_memory} with "
        f"{len(corpus):,} pairs, from step {steps[-1] if steps else 0:,} on ..."
    )
    jit_compile: Any = {"true": True, "false": False}.get(str(_JIT_COMPILE.value), "auto")
    try:
        trainer.train(
            run,
            corpus,
            dev,
            strategy=strategy,
            jit_compile=jit_compile,
            tensorboard=bool(_TENSORBOARD.value),
        )
    except trainer.Stopped as stopped:
        report = (
            f"stopped; checkpoint step-{stopped.step} is saved in {run.path / 'checkpoints'}, "
            "and the same command resumes from there"
        )
        if stopped.signal == signal.SIGINT:
            raise KeyboardInterrupt(report) from None
        print(report)
        return
    if distribution.worker_index(strategy) == 0:
        from keras_transformer.training.metrics import cost_summary, read_metrics

        print(cost_summary(read_metrics(run.metrics_path)[-1]))
        print(f"Done: {_end_of(run)}; the checkpoints are in {run.path / 'checkpoints'}.")


def _end_of(run: "RunDirectory") -> str:
    """Returns why a run has ended, and how to train on."""
    training, step = run.configs().training, run.checkpoints().steps()[-1]
    if step < training.train_steps:
        return (
            f"{training.stop_metric} stopped the run early, at step {step:,} of "
            f"{training.train_steps:,}; raise --stop_patience to train on"
        )
    is_over = training.schedule == "cosine"  # its rate has come to 0
    way = "begin another run with --start_from" if is_over else "raise --train_steps"
    return f"the run has reached its last step, {step:,}; {way} to train on"


def _find_configs(run: "RunDirectory", options: dict[str, Any]) -> "RunConfigs":
    """Returns the configurations of the run from now on.

    Raises:
        InputError: a flag has a wrong value, or the run exists and started from something else.
    """
    path = _START_FROM.value
    if not run.exists:
        return run.make_configs(options, path)
    configs = settings.changed_configs(run.configs(), options)
    theirs = configs.origin.get("start_from")
    from keras_transformer.training.run import start_path

    if path is not None and start_path(path) != theirs:
        raise InputError(
            f"run directory {run.path} holds another run: start_from is {theirs!r} there and "
            f"{path!r} here; remove it to resume the run, or give another --run_dir"
        )
    return configs


def _read_texts(configs: "RunConfigs") -> "ParallelText | None":
    """Returns the dev set; reports faults of dev and test files before training."""
    from keras_transformer.training.prepare import read_dev_text, read_test_text
    from keras_transformer.training.validation import check_validation

    dev = read_dev_text(configs.required_data, configs.task)
    check_validation(configs.training, dev)
    if dev is None:
        print("There is no dev set; name one with --dev_source and --dev_target, or --dev_file.")
    # Those of a run that is resumed may be gone.
    if (flags.FLAGS.test_source, flags.FLAGS.test_file) != (None, None):
        read_test_text(configs.required_data, task=configs.task)
    return dev
