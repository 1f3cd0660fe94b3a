"""The model card of an exported version: what its graph does not say of the model.

It names no machine and no folder.
"""

import contextlib
import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import split_list
from keras_transformer.inference.batch_translator import signature_inputs
from keras_transformer.inference.translator import Translator
from keras_transformer.text import Vocabulary
from keras_transformer.training import RunDirectory
from keras_transformer.training.checkpoint_files import AVERAGE
from keras_transformer.training.metric_logging import TOTALS
from keras_transformer.training.metrics_file import read_metrics

_PACKAGES = ("keras_transformer", "tensorflow", "tensorflow-text", "keras", "sentencepiece")
_PATHS = (
    "train_source", "train_target", "train_file", "dev_source", "dev_target", "dev_file",
    "test_source", "test_target", "test_file", "vocabulary", "target_vocabulary",
)  # fmt: skip


def make_model_card(
    translator: Translator,
    signatures: Mapping[str, Any],
    operations: list[str],
    training: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Returns the card as values for JSON.

    Args:
        translator: the model and its search.
        signatures: the functions that are exported, by name.
        operations: names of those that are not TensorFlow's own.
        training: the runs that the weights are from, several for an ensemble; see `describe_run`.
    """
    model = translator.model
    weights = [each for each in translator.variables_to_save if _is_weight(each.dtype)]
    return {
        "training": list(training),
        "model": model.config.to_dict(),
        "search": translator.search.to_dict(),
        "parameters": sum(weight.shape.num_elements() for weight in weights),
        "precision": {
            "weights": sorted({weight.dtype.name for weight in weights}),
            "computation": model.dtype_policy.compute_dtype,
        },
        "vocabularies": {
            "source": _describe_vocabulary(translator.source_tokenizer.vocabulary),
            "target": _describe_vocabulary(translator.target_tokenizer.vocabulary),
        },
        "signatures": {
            name: {
                "inputs": _describe_tensors(signature_inputs(function)),
                "outputs": _describe_tensors(function.structured_outputs),
            }
            for name, function in signatures.items()
        },
        "operations_of_tensorflow_text": operations,
        "packages": _packages(),
    }


def describe_run(run: RunDirectory, checkpoint: str) -> dict[str, Any]:
    """Returns the data, the settings and the dev metrics of a training run.

    Args:
        run: the training run.
        checkpoint: the full name of one of its checkpoints.

    Returns:
        "checkpoint"; "origin", of weights that were not trained here; "task", "data" and
        "settings", the configurations, files without their folders; "cost", totals of the run so
        far, see `metric_logging`; and "dev_metrics", those on
        the dev set by checkpoint, as the run's weights had them: of this one or, where it is the
        average, which has none of its own, of the last one.
    """
    configs = run.configs()
    values = {} if configs.data is None else configs.data.to_dict()
    for name in _PATHS:
        if values.get(name) is not None:
            values[name] = ",".join(map(os.path.basename, split_list(values[name])))
    metrics = {f"step-{step}": each for step, each in run.checkpoints().metrics.read().items()}
    measured = next(reversed(metrics), None) if checkpoint == AVERAGE else checkpoint
    return {
        "checkpoint": checkpoint,
        "task": configs.to_dict()["task"],
        "origin": {
            name: _model_name(value) if name == "start_from" else value
            for name, value in configs.origin.items()
        },
        "data": values,
        "settings": configs.training.to_dict(),
        "cost": _cost(run, None if checkpoint == AVERAGE else int(checkpoint.partition("-")[2])),
        "dev_metrics": {name: each for name, each in metrics.items() if name == measured},
    }


def _model_name(path: str) -> str:
    """Returns the name of a run, or those of a run and its checkpoint, without folders around."""
    *_, run, folder, name = ("", "", *pathlib.PurePath(path).parts)
    return f"{run}/{name}" if folder == "checkpoints" else name


def _cost(run: RunDirectory, step: int | None) -> dict[str, float]:
    """Returns what a run had cost at a step, or in all."""
    rows = read_metrics(run.metrics_path) if run.metrics_path.exists() else []
    *_, last = [{}, *(row for row in rows if step is None or row["step"] <= step)]
    return {name: last[name] for name in ("step", *TOTALS) if name in last}


def _is_weight(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype == tf.int8  # others are the seeds of dropout


def _describe_vocabulary(vocabulary: Vocabulary) -> dict[str, Any]:
    return {"size": vocabulary.size, "sha256": vocabulary.fingerprint}


def _describe_tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {"type": tensor.dtype.name, "shape": tensor.shape.as_list()}
        for name, tensor in tensors.items()
    }


def _packages() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # on the path only
            versions[name] = importlib.metadata.version(name)
    return versions
