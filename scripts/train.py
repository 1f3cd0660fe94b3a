"""Trains a Transformer and leaves everything that later commands need in a run directory.

    python scripts/train.py --run_dir=runs/numbers --preset=tiny --dataset=number_names/en-de
    python scripts/train.py --run_dir=runs/mine --preset=base \\
        --train_source=train.en --train_target=train.de --dev_source=dev.en --dev_target=dev.de

The same command goes on with a run that was stopped. Numbers such as 5.4 in the help of flags are
sections of Vaswani et al. 2017.
"""

import sys
import time
from typing import TYPE_CHECKING

from absl import flags

import common
from keras_transformer.config import (
    PRESETS,
    TRAINING_PRESETS,
    DataConfig,
    ModelConfig,
    TrainingConfig,
)

if TYPE_CHECKING:
    from keras_transformer.data import TokenizedCorpus
    from keras_transformer.models import Transformer
    from keras_transformer.training import Checkpoints, RunDirectory

_RUN_DIR = flags.DEFINE_string("run_dir", None, "Directory of the run.", required=True)
_PRESET = flags.DEFINE_enum(
    "preset", "tiny", list(PRESETS), "Model and training settings, which other flags change."
)
_TENSORBOARD = flags.DEFINE_boolean(
    "tensorboard", False, "Write TensorBoard logs to <run_dir>/tensorboard."
)
_STRATEGY = flags.DEFINE_enum(
    "strategy",
    "auto",
    ["auto", "none", "mirrored"],
    "Devices to train on: mirrored takes all GPUs, none one device, auto all GPUs if several.",
)
# What is trained on where no data is named: small, built in, and few symbols are enough for it.
_DEFAULT_DATA = {"dataset": "number_names/en-de", "vocabulary_size": 200}

common.define_flags(
    ModelConfig,
    {field for field in ModelConfig.__dataclass_fields__ if not field.endswith("vocabulary_size")},
    PRESETS,
)
common.define_flags(DataConfig)
common.define_flags(TrainingConfig, presets=TRAINING_PRESETS)


def main(arguments: list[str]) -> None:
    common.refuse_arguments(arguments)
    start = time.perf_counter()
    data = _data_config()
    training = TrainingConfig.preset(_PRESET.value, **common.given_flags(TrainingConfig))
    # Bad settings are told before anything is read: the sizes here are not known yet.
    _model_config(data, data.vocabulary_size, data.vocabulary_size)
    common.load_tensorflow()
    from keras_transformer import training as stages

    run = stages.RunDirectory(_RUN_DIR.value)
    if run.exists:
        source, target = run.vocabularies()
        run.continue_with(_model_config(data, source.size, target.size), data, training)
        if _is_finished(run.checkpoints(), training.train_steps):
            return
    print("Reading the text ...", flush=True)
    text, held_out = stages.read_training_text(data), stages.read_validation_text(data)
    if not run.exists:
        print("Preparing the vocabulary ...", flush=True)
        source, target = stages.make_vocabularies(data, text)
    print(f"Tokenizing {len(text.source):,} sentence pairs ...", flush=True)
    corpus = stages.tokenize(text, (source, target), data.max_length)
    validation = None if held_out is None else stages.tokenize(held_out, (source, target))
    if not run.exists:
        run.create(_model_config(data, source.size, target.size), data, training, source, target)
    for reason, count in corpus.dropped.items():
        if count:
            print(f"Left out {count:,} pairs: {reason}.")
    del text, held_out

    model = _train(run, corpus, validation)
    averaged = len(run.checkpoints().steps()[-training.average_last :])
    print(
        f"Trained {model.count_params():,} parameters to step {training.train_steps:,} "
        f"in {time.perf_counter() - start:.0f} s; checkpoints, and the average of the last "
        f"{averaged}, are in {run.path / 'checkpoints'}."
    )


def _train(
    run: "RunDirectory", corpus: "TokenizedCorpus", validation: "TokenizedCorpus | None"
) -> "Transformer":
    """Trains the run, and tells on Ctrl-C what is left of it."""
    import tensorflow as tf

    from keras_transformer.training import make_strategy, train

    strategy = make_strategy(_STRATEGY.value)
    replicas = strategy.num_replicas_in_sync
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    devices = f"{replicas} {kind}s" if replicas > 1 else f"the {kind}"
    steps = run.checkpoints().steps()
    print(f"Training on {devices} from step {steps[-1] if steps else 0:,} on ...", flush=True)
    # Keras's progress bar is for terminals; a log file gets one line a checkpoint.
    verbose = 1 if sys.stdout.isatty() else 2
    try:
        return train(
            run,
            corpus,
            validation,
            strategy=strategy,
            tensorboard=_TENSORBOARD.value,
            verbose=verbose,
        )
    except KeyboardInterrupt:
        steps = run.checkpoints().steps()
        if not steps:
            raise KeyboardInterrupt(
                "stopped before the first checkpoint; the same command starts anew"
            ) from None
        raise KeyboardInterrupt(
            f"stopped; the checkpoint of step {steps[-1]:,} stays, and the same command goes on "
            "from there"
        ) from None


def _is_finished(checkpoints: "Checkpoints", train_steps: int) -> bool:
    """Says so where nothing is left to be done."""
    steps = checkpoints.steps()
    if not steps or steps[-1] < train_steps or checkpoints.find("auto") != "average":
        return False
    print(
        f"Nothing to do: the run is at step {steps[-1]:,} of {train_steps:,} already; "
        "give more --train_steps to go on with it."
    )
    return True


def _data_config() -> DataConfig:
    values = common.given_flags(DataConfig)
    if not any(name == "dataset" or name.endswith(("_source", "_target")) for name in values):
        values = _DEFAULT_DATA | values
    return DataConfig(**values)


def _model_config(data: DataConfig, source_size: int, target_size: int) -> ModelConfig:
    values = common.given_flags(ModelConfig) | {"vocabulary_size": source_size}
    own_target = not data.share_vocabulary or data.target_vocabulary is not None
    if own_target:
        values["target_vocabulary_size"] = target_size
        values.setdefault("share_embeddings", "target")
    return ModelConfig.preset(_PRESET.value, **values)


if __name__ == "__main__":
    common.run(main)
