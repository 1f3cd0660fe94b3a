"""Writes a translator as a SavedModel that a stock TensorFlow server serves, and reads it."""

import os
import pathlib
import shutil
import textwrap
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_text  # noqa: F401  (loads the tokenizer's ops, which the SavedModel calls)

from keras_transformer.errors import InputError
from keras_transformer.serving.translator import Translator


def export(
    translator: Translator, folder: str | os.PathLike[str], version: int | None = None
) -> pathlib.Path:
    """Writes `<folder>/<version>/` and returns that path.

    The signature `serving_default` takes `text` (string [batch]) and returns `translations`
    (string [batch, n]) and `scores` (float32 [batch, n]). The version is written under another
    name and renamed when it is whole: a server that polls the folder never sees half of it.

    Args:
        translator: what to write.
        folder: the model's folder; made if need be.
        version: a positive number; None means one more than the highest there.

    Raises:
        InputError: the version exists, is not positive, or cannot be written.
    """
    base = pathlib.Path(folder)
    if version is None:
        version = max(_versions(base), default=0) + 1
    if version < 1:
        raise InputError(f"version must be a positive number, got {version}")
    final = base / str(version)
    if final.exists():
        raise InputError(
            f"export folder {final} exists already; give another --version, or none for the next"
        )
    aside = base / f"writing-{version}-{os.getpid()}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        tf.saved_model.save(
            translator, str(aside), signatures={"serving_default": translator.__call__}
        )
        os.rename(aside, final)
    except (OSError, tf.errors.OpError) as error:
        reason = textwrap.shorten(str(error), 200)
        raise InputError(f"cannot write the export to {final} ({reason})") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


def load_exported(version: str | os.PathLike[str]) -> Callable[[Any], dict[str, Any]]:
    """Returns the function that an exported version serves: text [B] to its outputs.

    Args:
        version: the folder `<folder>/<version>`.

    Raises:
        InputError: there is no SavedModel of a translator, or it cannot be read.
    """
    path = pathlib.Path(version)
    if not (path / "saved_model.pb").is_file():
        raise InputError(
            f"no SavedModel in {path}: it has no saved_model.pb; give the folder of one version, "
            f"such as {path / str(max(_versions(path), default=1))}"
        )
    try:
        loaded = tf.saved_model.load(str(path))
    except (OSError, RuntimeError, ValueError, LookupError, tf.errors.OpError) as error:
        reason = textwrap.shorten(str(error), 200)
        raise InputError(f"the SavedModel in {path} cannot be read ({reason})") from error
    serve = loaded.signatures.get("serving_default")
    if serve is None or set(serve.structured_outputs) != {"translations", "scores"}:
        raise InputError(f"the SavedModel in {path} is no translator that `export` wrote")

    def translate(text: Any) -> dict[str, Any]:
        return serve(text=text)

    translate.loaded = loaded  # type: ignore[attr-defined]  # the signature lives as long as this
    return translate


def _versions(folder: pathlib.Path) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
