"""Trains a Transformer and leaves everything that later commands need in a run directory.

    python scripts/train.py --run_dir=runs/numbers --preset=tiny --dataset=number_names/en-de
    python scripts/train.py --run_dir=runs/mine --preset=base \\
        --train_source=train.en --train_target=train.de --dev_source=dev.en --dev_target=dev.de

The same command goes on with a run that was stopped.
"""

import sys
import time

from absl import flags

import common
from keras_transformer.config import PRESETS, DataConfig, ModelConfig, TrainingConfig

_RUN_DIR = flags.DEFINE_string("run_dir", None, "Directory of the run.", required=True)
_PRESET = flags.DEFINE_enum(
    "preset", "base", list(PRESETS), "Model and training settings, which the flags below change."
)
_TENSORBOARD = flags.DEFINE_boolean(
    "tensorboard", False, "Write TensorBoard logs to <run_dir>/tensorboard."
)
_DEFAULT_DATASET = "number_names/en-de"

common.define_flags(
    ModelConfig,
    {field for field in ModelConfig.__dataclass_fields__ if not field.endswith("vocabulary_size")},
)
common.define_flags(DataConfig)
common.define_flags(TrainingConfig)


def main(arguments: list[str]) -> None:
    common.refuse_arguments(arguments)
    from keras_transformer.training import (
        RunDirectory,
        make_vocabularies,
        read_training_text,
        read_validation_text,
        tokenize,
        train,
    )

    start = time.perf_counter()
    data = _data_config()
    training = TrainingConfig.preset(_PRESET.value, **common.given_flags(TrainingConfig))
    # Bad settings are told before the text is read: the sizes here are not known yet.
    _model_config(data, data.vocabulary_size, data.vocabulary_size)
    run = RunDirectory(_RUN_DIR.value)

    print("Reading the text ...", flush=True)
    text, held_out = read_training_text(data), read_validation_text(data)
    if run.exists:
        source, target = run.vocabularies()
        run.continue_with(_model_config(data, source.size, target.size), data, training)
    else:
        print("Preparing the vocabulary ...", flush=True)
        source, target = make_vocabularies(data, text)
        model = _model_config(data, source.size, target.size)
        run.create(model, data, training, source, target)

    print(f"Tokenizing {len(text.source):,} sentence pairs ...", flush=True)
    corpus = tokenize(text, (source, target), data.max_length)
    validation = None if held_out is None else tokenize(held_out, (source, target))
    for reason, count in corpus.dropped.items():
        if count:
            print(f"Left out {count:,} pairs: {reason}.")
    steps = run.checkpoints().steps()
    if steps:
        print(f"Going on from step {steps[-1]:,} of {training.train_steps:,}.", flush=True)
    del text, held_out

    # Keras's progress bar is for terminals; a log file gets one line a checkpoint.
    verbose = 1 if sys.stdout.isatty() else 2
    model = train(run, corpus, validation, tensorboard=_TENSORBOARD.value, verbose=verbose)
    averaged = len(run.checkpoints().steps()[-training.average_last :])
    print(
        f"Trained {model.count_params():,} parameters to step {training.train_steps:,} "
        f"in {time.perf_counter() - start:.0f} s; checkpoints, and the average of the last "
        f"{averaged}, are in {run.path / 'checkpoints'}."
    )


def _data_config() -> DataConfig:
    values = common.given_flags(DataConfig)
    if not {"dataset", "train_source", "train_target"} & set(values):
        values["dataset"] = _DEFAULT_DATASET
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
