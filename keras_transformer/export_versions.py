"""The versions in a model's folder, and their model cards; needs no TensorFlow."""

import itertools
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

from keras_transformer.errors import InputError
from keras_transformer.files import write_atomically

_SAVED_MODEL = "saved_model.pb"
# The file by which a version of each kind is known.
_MARKS = {"SavedModel": _SAVED_MODEL, "CTranslate2": "model.bin"}
_CARD = "assets.extra/model_card.json"


def choose_version(
    base: pathlib.Path, version: int | None, kind: Literal["SavedModel", "CTranslate2"]
) -> int:
    """Returns the number of the version to write; `InputError` where it cannot be written.

    A folder has models of one kind only: a model server would load each new version.
    """
    for number, (other, mark) in itertools.product(versions_in(base), _MARKS.items()):
        if other != kind and (base / str(number) / mark).exists():
            raise InputError(
                f"{base / str(number)} is a {other} model; give the {kind} model another folder"
            )
    if version is None:
        version = max(versions_in(base), default=0) + 1
    if version < 1:
        raise InputError(f"version must be a positive number, got {version}")
    if (base / str(version)).exists():
        raise InputError(
            f"export folder {base / str(version)} already exists; choose another --model_version, "
            "or none for the next"
        )
    return version


def versions_in(folder: pathlib.Path) -> list[int]:
    """Returns the numbers of the versions in a model's folder."""
    if not folder.is_dir():
        return []
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]


def check_version(path: pathlib.Path) -> None:
    """Raises `InputError` if there is no SavedModel, and suggests a nearby folder that has one."""
    if not (path / _SAVED_MODEL).is_file():
        raise InputError(
            f"no SavedModel in {path}: it has no {_SAVED_MODEL}; give the folder of one version, "
            f"such as {_version_near(path)}"
        )


def write_model_card(version: pathlib.Path, card: Mapping[str, Any]) -> None:
    """Writes the card into the folder of a version."""
    path = version / _CARD
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, json.dumps(card, indent=2, ensure_ascii=False) + "\n")


def read_model_card(version: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the card of an exported version; `InputError` where there is none."""
    path = pathlib.Path(version) / _CARD
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
        raise InputError(f"{path} is no model card of this release; export the model again")
    return card


def _version_near(path: pathlib.Path) -> pathlib.Path:
    """Returns the newest version in a folder, or in the one around it; an example if none is."""
    for folder in (path, path.parent):
        versions = [folder / str(number) for number in sorted(versions_in(folder))]
        if found := [each for each in versions if (each / _SAVED_MODEL).is_file()]:
            return found[-1]
    return path / "1"
