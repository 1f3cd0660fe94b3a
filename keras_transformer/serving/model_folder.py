"""The folder of a model: its versions, their model cards, and the files for a model server.

The script that starts the server and the server's configuration files stand beside the versions.
They are a starting point for the operator to edit: existing files are kept. Nothing here needs
TensorFlow.
"""

import json
import os
import pathlib
import re
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.files import local_path, write_atomically

MODEL_CARD = pathlib.PurePath("assets.extra", "model_card.json")

_SERVER_FILES = pathlib.Path(__file__).with_name("server_files")
_MAX_SENTENCES = 64  # of a batch


def choose_version(base: pathlib.Path, version: int | None) -> int:
    """Returns the number of the version to write: one more than the highest if it is None.

    Raises:
        InputError: the version is not higher than all others, as a server loads the highest.
    """
    highest = max(_versions_in(base), default=0)
    if version is not None and version <= highest:
        raise InputError(
            f"version must be higher than {highest}, the highest in {base}, got {version}"
        )
    return highest + 1 if version is None else version


def check_version(path: pathlib.Path) -> None:
    """Raises `InputError` if there is no SavedModel, and names a version of a model's folder."""
    if not (path / "saved_model.pb").is_file():
        version = path / str(max(_versions_in(path), default=1))
        raise InputError(
            f"no SavedModel in {path}; give the folder of a version, such as {version}"
        )


def read_model_card(version: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the card of an exported version; `InputError` where there is none."""
    path = local_path(version) / MODEL_CARD
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        if not {"training", "search", "signatures", "precision"} <= card.keys():
            raise ValueError("of another release")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"no model card at {path} ({error}); give the folder of an exported version"
        ) from error
    return card


def _versions_in(folder: pathlib.Path) -> list[int]:
    """Returns the numbers of the versions in a model's folder."""
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]


def check_name(name: str) -> None:
    """Raises `InputError` if requests cannot call a model so, in a URL."""
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(
            f"the model's name {name!r} must consist of letters, digits, '_', '.' and '-'; give "
            "another --name"
        )


def check_is_served(name: str, folder: pathlib.Path) -> None:
    """Raises `InputError` if a model's folder has server files, and these are of another name."""
    config = folder / "models.config"
    if config.is_file() and f'name: "{name}"' not in config.read_text(encoding="utf-8"):
        raise InputError(f"{config} has no model {name!r}; remove --name, or edit the server files")


def write_server_files(
    folder: pathlib.Path, name: str, largest_batch: int, *, one_dnn: bool = False
) -> None:
    """Writes the server's files that a model's folder lacks; raises `OSError` if it cannot.

    The server must accept requests of `largest_batch` sentences. With `one_dnn` it uses oneDNN,
    which models in bfloat16 need to be fast.
    """
    values = {
        "@name@": name,
        "@most_sentences@": str(max(largest_batch, _MAX_SENTENCES)),
        "@one_dnn@": str(int(one_dnn)),
    }
    for template in _SERVER_FILES.iterdir():
        if not (folder / template.name).exists():
            content = template.read_text(encoding="utf-8")
            for mark, value in values.items():
                content = content.replace(mark, value)
            write_atomically(folder / template.name, content)
