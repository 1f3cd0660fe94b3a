"""Trains a model and leaves everything that later commands need in a run directory.

    keras-transformer train --run_dir=runs/numbers --preset=tiny --dataset=number_names/en-de
    keras-transformer train --run_dir=runs/mine --preset=base \\
        --train_source=train.en --train_target=train.de --dev_source=dev.en --dev_target=dev.de
    keras-transformer train --run_dir=runs/mine --train_steps=200000
    keras-transformer train --run_dir=runs/tuned --start_from=runs/opus \\
        --train_source=legal.en --train_target=legal.de

Where the run exists it is resumed; flags that are given replace its settings, as long as that does
not change what it has been trained for. Numbers such as 5.4 in the help of flags are sections of
Vaswani et al. 2017.
"""

import contextlib
import pathlib
import signal
import sys
from typing import TYPE_CHECKING

from absl import flags

from keras_transformer.commands import common, train_configs
from keras_transformer.commands.train_corpus import RunCorpus
from keras_transformer.commands.train_start import Start, absolute
from keras_transformer.errors import InputError
from keras_transformer.tasks import get_task

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_transformer.data import ParallelText, TokenizedCorpus
    from keras_transformer.training import RunConfigs, RunDirectory

_RUN_DIR = flags.DEFINE_string("run_dir", None, "Directory of the run.", required=True)
_START_FROM = flags.DEFINE_string(
    "start_from",
    None,
    "A run, or one of its checkpoints such as runs/mine/checkpoints/step-1000: the new run begins "
    "with its weights, vocabularies and model; data, training and task are its own. "
    "--learning_rate is a tenth of the paper's by default, and --preset is of training alone.",
)
_TENSORBOARD = flags.DEFINE_boolean(
    "tensorboard", False, "Write TensorBoard logs to <run_dir>/tensorboard."
)
_STRATEGY = flags.DEFINE_enum(
    "strategy",
    "auto",
    ["auto", "none", "mirrored", "multi_worker"],
    "Devices to train on: mirrored takes all GPUs of this machine, none one device, multi_worker "
    "those of all machines that TF_CONFIG names; auto as many as there are.",
)
_JIT_COMPILE = flags.DEFINE_enum(
    "jit_compile",
    "auto",
    ["auto", "true", "false"],
    "Whether XLA compiles the model, once for each shape of a batch; auto where there is a GPU.",
)
_CACHE_DIR = flags.DEFINE_string(
    "cache_dir",
    None,
    "Folder for the tokenized text, which several runs may share. Default: <run_dir>/tokens.",
)
_BEAM_OPTIONS = flags.DEFINE_string(
    "beam_options",
    None,
    'Tokenize in an Apache Beam pipeline with these options, such as "--runner=FlinkRunner '
    '--flink_master=host:8081"; needs the extra beam and a file system that all workers share.',
)
train_configs.define_flags()


def main(arguments: list[str]) -> None:
    common.refuse_arguments(arguments)
    is_new = not (pathlib.Path(_RUN_DIR.value) / "config.json").is_file()
    if is_new and _START_FROM.value is None:
        train_configs.new_configs()  # wrong settings are reported before TensorFlow is loaded
        _check_data()
    keeps_memory = common.load_tensorflow()
    from keras_transformer import training as stages
    from keras_transformer.training.distribution import heartbeat

    strategy = stages.make_strategy(_STRATEGY.value)  # of several machines: before anything else
    run = stages.RunDirectory(_RUN_DIR.value)
    configs, start = _find_configs(run)
    devs = _read_texts(configs)
    worker = stages.worker_of(strategy)
    text = RunCorpus(run, configs, worker, _CACHE_DIR.value, _BEAM_OPTIONS.value, start)
    if worker.is_chief:
        with heartbeat(run.path) if worker.count > 1 else contextlib.nullcontext():
            corpus = text.prepare()
    else:
        corpus = text.wait()
    if stages.is_finished(run):
        step = run.checkpoints().steps()[-1]
        print(
            f"Nothing to do: the run has ended at step {step:,} of "
            f"{configs.training.train_steps:,} already; give more --train_steps to train on."
        )
        return
    if run.configs().training.precision == "mixed_bfloat16" and not stages.computes_in_bfloat16():
        print(
            "This processor has no instructions for bfloat16, and trains slower in it than in "
            "float32: at 0.7 of the rate with AVX2. For a new run --precision=auto chooses."
        )
    _train(run, corpus, devs, strategy, keeps_memory)
    if worker.is_chief:
        _summarize(run, strategy)


def _check_data() -> None:
    """Says what a new run trains on where a task is named and no data."""
    if train_configs.names_data():
        return
    built_in = get_task(flags.FLAGS.task).built_in_data
    if not flags.FLAGS["task"].present:  # perhaps a run was meant that is elsewhere
        raise InputError(
            f"{_RUN_DIR.value} has no run yet, and no data is named for one; give --train_source "
            f"and --train_target, --train_file or --dataset ({built_in['dataset']} is built in), "
            "or the --run_dir of a run"
        )
    print(f"No data is named: training on the built-in {built_in['dataset']}.", flush=True)


def _find_configs(run: "RunDirectory") -> "tuple[RunConfigs, Start | None]":
    """Returns the configurations from now on, and what the run starts from where it is new.

    Raises:
        InputError: a flag has a wrong value, or the run is resumed that started otherwise.
    """
    from keras_transformer import training as stages

    path = _START_FROM.value
    if not run.exists:
        if path is None:
            return stages.RunConfigs(*train_configs.new_configs()), None
        start = Start.find(path)
        return start.new_configs(path), start
    configs = train_configs.changed_configs(run.configs())
    theirs = configs.origin.get("start_from")
    if path is not None and absolute(path) != theirs:
        raise InputError(
            f"run directory {run.path} holds another run: start_from is {theirs!r} there and "
            f"{path!r} here; leave it out to go on with it, or give another --run_dir"
        )
    return configs, None


def _read_texts(configs: "RunConfigs") -> "list[ParallelText]":
    """Returns the dev sets; what is wrong with the files is found before the training."""
    from keras_transformer import training as stages

    devs = stages.read_validation_texts(configs.corpora, configs.task)
    stages.check_validation(configs.training, configs.task, devs[0] if devs else None)
    if not devs:
        print("There is no dev set; --dev_source and --dev_target name one.")
    # Those of a run that is resumed may be gone.
    if (flags.FLAGS.test_source, flags.FLAGS.test_file) != (None, None):
        stages.read_test_text(configs.corpora, task=configs.task)
    return devs


def _train(
    run: "RunDirectory",
    corpus: "TokenizedCorpus",
    devs: "list[ParallelText]",
    strategy: "tf.distribute.Strategy",
    keeps_memory: bool,
) -> None:
    """Trains the run, and says on SIGTERM or Ctrl-C what is saved."""
    from keras_transformer import training as stages

    steps = run.checkpoints().steps()
    print(
        f"Training on {_devices(strategy)}{', memory kept,' * keeps_memory} with "
        f"{len(corpus):,} pairs in {stages.num_shapes(run, corpus)} shapes of batches, from step "
        f"{steps[-1] if steps else 0:,} on ...",
        flush=True,
    )
    try:
        stages.train(
            run,
            corpus,
            devs,
            strategy=strategy,
            jit_compile={"true": True, "false": False}.get(str(_JIT_COMPILE.value), "auto"),
            tensorboard=_TENSORBOARD.value,
        )
    except stages.Stopped as stopped:
        text = (
            f"stopped; checkpoint step-{stopped.step} is saved in {run.path / 'checkpoints'}, "
            "and the same command resumes from there"
        )
        if stopped.signal == signal.SIGINT:
            raise KeyboardInterrupt(text) from None
        print(text)
        sys.exit(0)


def _summarize(run: "RunDirectory", strategy: "tf.distribute.Strategy") -> None:
    """Prints what the run has cost and what it leaves."""
    import keras
    import tensorflow as tf

    from keras_transformer.training import flops, metrics

    training = run.configs().training
    last = metrics.read_metrics(run.metrics_path)[-1]
    peak = flops.measured_peak(keras.DTypePolicy(training.precision).compute_dtype)
    gpus = strategy.num_replicas_in_sync if tf.config.list_physical_devices("GPU") else 1
    for line in flops.flops_summary(last, peak * gpus, training):
        print(line)
    print(f"The checkpoints, and their average, are in {run.path / 'checkpoints'}.")


def _devices(strategy: "tf.distribute.Strategy") -> str:
    import tensorflow as tf

    replicas = strategy.num_replicas_in_sync
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return f"{replicas} {kind}s" if replicas > 1 else f"the {kind}"
