"""Loads an exported version into this process."""

import os
import pathlib
import textwrap
from typing import Any

import tensorflow as tf
import tensorflow_text  # noqa: F401  (loads the tokenizer's ops, which the SavedModel calls)

from keras_transformer.errors import InputError
from keras_transformer.export_versions import check_version
from keras_transformer.inference.batch_translator import BatchTranslator


def load_exported(version: str | os.PathLike[str]) -> BatchTranslator:
    """Returns the translator of an exported version.

    Args:
        version: the folder `<folder>/<version>`.

    Raises:
        InputError: the folder has no SavedModel of a translator, or one that cannot be read.

    Example:
        >>> load_exported("exports/numbers/1").translate(["forty-two"])[0][0].text
        'zweiundvierzig'
    """
    path = pathlib.Path(version)
    check_version(path)
    try:
        loaded = tf.saved_model.load(str(path))
    except (OSError, RuntimeError, ValueError, LookupError, tf.errors.OpError) as error:
        reason = textwrap.shorten(str(error), 200)
        raise InputError(f"the SavedModel in {path} cannot be read ({reason})") from error
    serve = loaded.signatures.get("serving_default")
    if serve is None or set(serve.structured_outputs) != {"translations", "scores"}:
        raise InputError(f"the SavedModel in {path} is no translator that `export` wrote")

    def signature(name: str) -> Any:
        return loaded.signatures[name]  # they live as long as `loaded`

    return BatchTranslator(signature)
