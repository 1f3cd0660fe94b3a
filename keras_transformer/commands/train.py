"""Trains a model and leaves everything that later commands need in a run directory.

    keras-transformer train --run_dir=runs/numbers --preset=tiny --dataset=number_names/en-de
    keras-transformer train --run_dir=runs/mine --preset=base \\
        --train_source=train.en --train_target=train.de --dev_source=dev.en --dev_target=dev.de
    keras-transformer train --run_dir=runs/mine --train_steps=200000

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

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_transformer.data import ParallelText, TokenizedCorpus
    from keras_transformer.models import Seq2SeqModel
    from keras_transformer.text import Vocabulary
    from keras_transformer.training import RunConfigs, RunDirectory

_RUN_DIR = flags.DEFINE_string("run_dir", None, "Directory of the run.", required=True)
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
train_configs.define_flags()


def main(arguments: list[str]) -> None:
    common.refuse_arguments(arguments)
    if not (pathlib.Path(_RUN_DIR.value) / "config.json").is_file():
        train_configs.new_configs()  # wrong settings are reported before TensorFlow is loaded
        if not train_configs.names_data():
            print("No data is named: training on number names, English to German.", flush=True)
    keeps_memory = common.load_tensorflow()
    from keras_transformer import training as stages
    from keras_transformer.training.heartbeat import heartbeat

    strategy = stages.make_strategy(_STRATEGY.value)  # of several machines: before anything else
    run = stages.RunDirectory(_RUN_DIR.value)
    if run.exists:
        configs = train_configs.changed_configs(run.configs())
    else:
        configs = stages.RunConfigs(*train_configs.new_configs())
    dev = _read_texts(configs)
    worker = stages.worker_of(strategy)
    if worker.is_chief:
        with heartbeat(run.path) if worker.count > 1 else contextlib.nullcontext():
            corpus = _prepare(run, configs)
    else:
        corpus = _wait_for(run, configs)
    if stages.is_finished(run):
        step = run.checkpoints().steps()[-1]
        print(
            f"Nothing to do: the run has ended at step {step:,} of "
            f"{configs.training.train_steps:,} already; give more --train_steps to go on with it."
        )
        return
    if run.configs().training.precision == "mixed_bfloat16" and not stages.computes_in_bfloat16():
        print(
            "This processor has no instructions for bfloat16, and trains slower in it than in "
            "float32: at 0.7 of the rate with AVX2. For a new run --precision=auto chooses."
        )
    model = _train(run, corpus, dev, strategy, keeps_memory)
    if worker.is_chief:
        _summarize(run, model, corpus, strategy)


def _read_texts(configs: "RunConfigs") -> "ParallelText | None":
    """Returns the dev set; what is wrong with it or the test files is found before the training."""
    from keras_transformer import training as stages

    dev = stages.read_validation_text(configs.data, configs.task)
    stages.check_validation(configs.training, configs.task, dev)
    if dev is None:
        print("There is no dev set; --dev_source and --dev_target name one.")
    if flags.FLAGS.test_source is not None:  # those of a run that is resumed may be gone
        stages.read_test_text(configs.data, task=configs.task)
    return dev


def _prepare(run: "RunDirectory", configs: "RunConfigs") -> "TokenizedCorpus":
    """Creates the run, or checks that the one that is there may go on so; returns its corpus."""
    from keras_transformer.training import is_finished, make_vocabularies

    if run.exists:
        run.continue_with(configs)
        corpus, is_new = _corpus(run, configs, run.vocabularies())
        steps = run.checkpoints().steps()
        if steps and is_new and not is_finished(run):
            print(
                "The text was not in the cache: if it has changed since the run began, the run "
                f"goes on from step {steps[-1]:,} with the text as it is now."
            )
        return corpus
    print("Preparing the vocabulary ...", flush=True)
    source, target = make_vocabularies(configs.data, configs.task)
    corpus, _ = _corpus(run, configs, (source, target))
    model = train_configs.model_config(configs.data, source.size, target.size)
    run.create(configs._replace(model=model), source, target)
    return corpus


def _wait_for(run: "RunDirectory", configs: "RunConfigs") -> "TokenizedCorpus":
    """Waits until the first worker has created the run, or made it longer; returns its corpus."""
    from keras_transformer.training.heartbeat import wait_for_first_worker

    def is_prepared() -> bool:
        return run.exists and run.configs().training == run.resolved(configs.training)

    wait_for_first_worker(run.path, is_prepared)
    return _corpus(run, configs, run.vocabularies())[0]


def _corpus(
    run: "RunDirectory", configs: "RunConfigs", vocabularies: "tuple[Vocabulary, Vocabulary]"
) -> "tuple[TokenizedCorpus, bool]":
    """Returns the text to train on as tokens, and whether it was tokenized just now."""
    from keras_transformer.training import training_corpus

    is_new = False

    def tell(pairs: int) -> None:
        nonlocal is_new
        is_new = True
        print(f"Tokenizing: {pairs:,} pairs ...", flush=True)

    cache, is_shared = run.path / "tokens", _CACHE_DIR.value is not None
    if _CACHE_DIR.value is not None:
        cache = pathlib.Path(_CACHE_DIR.value)
    corpus = training_corpus(
        configs.data, vocabularies, cache, tell, keep_others=is_shared, task=configs.task
    )
    for reason, count in corpus.dropped.items():
        if count:
            print(f"Left out {count:,} pairs: {reason}.")
    return corpus, is_new


def _train(
    run: "RunDirectory",
    corpus: "TokenizedCorpus",
    dev: "ParallelText | None",
    strategy: "tf.distribute.Strategy",
    keeps_memory: bool,
) -> "Seq2SeqModel":
    """Trains the run, and tells on SIGTERM or Ctrl-C what is left of it."""
    from keras_transformer import training as stages

    steps = run.checkpoints().steps()
    print(
        f"Training on {_devices(strategy)}{', memory kept,' * keeps_memory} with "
        f"{len(corpus):,} pairs in {stages.num_shapes(run, corpus)} shapes of batches, from step "
        f"{steps[-1] if steps else 0:,} on ...",
        flush=True,
    )
    try:
        return stages.train(
            run,
            corpus,
            dev,
            strategy=strategy,
            jit_compile={"true": True, "false": False}.get(str(_JIT_COMPILE.value), "auto"),
            tensorboard=_TENSORBOARD.value,
        )
    except stages.Stopped as stopped:
        text = (
            f"stopped; checkpoint step-{stopped.step} is saved in {run.path / 'checkpoints'}, "
            "and the same command goes on from there"
        )
        if stopped.signal == signal.SIGINT:
            raise KeyboardInterrupt(text) from None
        print(text)
        sys.exit(0)


def _summarize(
    run: "RunDirectory",
    model: "Seq2SeqModel",
    corpus: "TokenizedCorpus",
    strategy: "tf.distribute.Strategy",
) -> None:
    """Prints what the run has cost and what it leaves."""
    import keras
    import tensorflow as tf

    from keras_transformer.training import flops, metrics_file

    training = run.configs().training
    last = metrics_file.read_metrics(run.metrics_path)[-1]
    peak = flops.measured_peak(keras.DTypePolicy(training.precision).compute_dtype)
    gpus = strategy.num_replicas_in_sync if tf.config.list_physical_devices("GPU") else 1
    lengths = corpus.source_lengths, corpus.target_lengths
    for line in flops.summary_lines(model, lengths, last, peak * gpus):
        print(line)
    print(f"The checkpoints, and their average, are in {run.path / 'checkpoints'}.")


def _devices(strategy: "tf.distribute.Strategy") -> str:
    import tensorflow as tf

    replicas = strategy.num_replicas_in_sync
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return f"{replicas} {kind}s" if replicas > 1 else f"the {kind}"
