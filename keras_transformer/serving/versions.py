"""The versions in a model's folder, and their model cards; needs no TensorFlow."""

import itertools
import json
import os
import pathlib
from typing import Any, Literal

from keras_transformer.errors import InputError

MODEL_CARD = pathlib.PurePath("assets.extra", "model_card.json")

_SAVED_MODEL = "saved_model.pb"
# The file that shows the format of a version.
_FORMAT_FILES = {"SavedModel": _SAVED_MODEL, "CTranslate2": "model.bin"}


def choose_version(
    base: pathlib.Path, version: int | None, format: Literal["SavedModel", "CTranslate2"]
) -> int:
    """Returns the number of the version to write: one more than the highest if it is None.

    Raises:
        InputError: the version exists or is not positive, or the folder has models of the other
            format, since a model server would load each new version.
    """
    for number, (other, file) in itertools.product(_versions_in(base), _FORMAT_FILES.items()):
        if other != format and (base / str(number) / file).exists():
            raise InputError(
                f"{base / str(number)} is a {other} model; give the {format} model another folder"
            )
    if version is None:
        version = max(_versions_in(base), default=0) + 1
    if version < 1:
        raise InputError(f"version must be a positive number, got {version}")
    if (base / str(version)).exists():
        raise InputError(
            f"export folder {base / str(version)} already exists; choose another --model_version, "
            "or none for the next"
        )
    return version


def check_version(path: pathlib.Path) -> None:
    """Raises `InputError` if there is no SavedModel, and suggests a nearby folder that has one."""
    if (path / _SAVED_MODEL).is_file():
        return
    nearby = path / "1"
    for folder in (path.parent, path):
        for number in sorted(_versions_in(folder)):
            if (folder / str(number) / _SAVED_MODEL).is_file():
                nearby = folder / str(number)
    raise InputError(
        f"no SavedModel in {path}: it has no {_SAVED_MODEL}; give the folder of one version, "
        f"such as {nearby}"
    )


def read_model_card(version: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the card of an exported version; `InputError` where there is none."""
    path = pathlib.Path(version) / MODEL_CARD
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"no model card at {path} ({error}); give the folder of an exported version"
        ) from error
    kinds = {"training": list, "search": dict, "signatures": dict, "precision": dict}
    if not isinstance(card, dict) or any(
        not isinstance(card.get(name), kind) for name, kind in kinds.items()
    ):
        raise InputError(f"{path} is not a model card of this release; export the model again")
    return card


def _versions_in(folder: pathlib.Path) -> list[int]:
    """Returns the numbers of the versions in a model's folder."""
    if not folder.is_dir():
        return []
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
