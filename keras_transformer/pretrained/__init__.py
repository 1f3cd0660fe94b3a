"""Models that come with the package: a folder here for each, which loads without a network.

Each is a run directory whose only checkpoint, `step-0`, has the weights in float16, without data
and training; README.md is the model's card: data, licence, figures, limits.
"""

import pathlib
from typing import Any

import numpy as np

from keras_transformer.errors import InputError, writing
from keras_transformer.files import Path, atomic_folder, local_path
from keras_transformer.training.run import RunDirectory


def pack(run: RunDirectory, folder: Path, card: Path, checkpoint: str = "auto") -> pathlib.Path:
    """Writes a run's model in the format of this folder, atomically, and returns its path.

    Args:
        run: the trained run.
        folder: a path that does not exist; its name becomes the model's.
        card: a Markdown file about the model: data, licence, figures, limits.
        checkpoint: see `Checkpoints.find`.

    Raises:
        InputError: the run has no such checkpoint, a weight is too large for float16, or the
            folder exists or cannot be written.

    Example:
        >>> pack(RunDirectory("runs/en-de"), "keras_transformer/pretrained/en-de", "card.md")
    """
    path = local_path(folder)
    if path.exists():
        raise InputError(f"{path} exists already; give a path that does not")
    configs, model = run.configs(), run.load_model(checkpoint, dtype="float16")
    for weight in model.weights:
        if not np.isfinite(weight.numpy()).all():
            raise InputError(f"{weight.path} is too large for float16; train with a lower rate")
    origin: dict[str, Any] = {"model": path.name}
    if configs.training_options is not None:
        origin["training"] = configs.training_options
    configs = configs._replace(data=None, origin=origin)  # no paths of this machine
    text = local_path(card).read_text(encoding="utf-8")
    with writing(f"the model {path}"), atomic_folder(path) as aside:
        RunDirectory(aside).write(configs, *run.vocabularies(), model)
        (aside / "README.md").write_text(text, encoding="utf-8")
    return path
