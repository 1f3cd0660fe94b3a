"""Models that come with the package: a folder here for each, which loads without a network.

config.json          the model's hyperparameters, its task and how it searches
source.model         the source's SentencePiece vocabulary; the target's too if it is shared
target.model         the target's vocabulary, if it has its own
weights.safetensors  the weights in float16
README.md            the model's card: data, licence, figures, limits
"""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
from keras import ops
from safetensors.numpy import save

from keras_transformer.errors import InputError, writing
from keras_transformer.files import Path, atomic_folder, local_path
from keras_transformer.models import Seq2SeqModel
from keras_transformer.text import Vocabulary
from keras_transformer.training.checkpoints import by_name
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs

FOLDER = pathlib.Path(__file__).parent


class PretrainedModel(NamedTuple):
    """A model with its vocabularies, and its settings without data and training."""

    model: Seq2SeqModel
    source: Vocabulary
    target: Vocabulary
    configs: RunConfigs


def pretrained_models() -> list[str]:
    """Returns the names of the models that come with the package."""
    return sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def load_pretrained(name: str) -> PretrainedModel:
    """Returns a model that comes with the package, its weights in float32.

    Raises:
        InputError: there is none of this name.
    """
    if name not in pretrained_models():
        known = ", ".join(pretrained_models()) or "none"
        raise InputError(f"no model {name!r} comes with the package, which has {known}")
    return read_packed(FOLDER / name)


def read_packed(folder: pathlib.Path) -> PretrainedModel:
    """Returns the model of a folder that `pack` wrote."""
    run = RunDirectory(folder)
    card = (folder / "README.md").read_text(encoding="utf-8")
    configs = run.configs()
    configs = configs._replace(origin={**configs.origin, "card": card})
    return PretrainedModel(run.load_model(), *run.vocabularies(), configs)


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
    configs, (source, target) = run.configs(), run.vocabularies()
    model = run.load_model(checkpoint)
    with np.errstate(over="ignore"):  # reported below
        arrays = {
            name: ops.convert_to_numpy(weight).astype(np.float16)
            for name, weight in by_name(model, model.weights).items()
        }
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise InputError(f"weight {name} is too large for float16; train with a lower rate")
    origin: dict[str, Any] = {"model": path.name}
    if configs.trained_with is not None:
        origin["training"] = configs.trained_with
    values = configs._replace(data=None, origin=origin).to_dict()  # no paths of this machine
    text = local_path(card).read_text(encoding="utf-8")
    with writing(f"the model {path}"), atomic_folder(path) as aside:
        (aside / "weights.safetensors").write_bytes(save(arrays))
        source.save(aside / "source.model")
        if target.fingerprint != source.fingerprint:
            target.save(aside / "target.model")
        (aside / "README.md").write_text(text, encoding="utf-8")
        (aside / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    return path
