"""Writes a translator as a SavedModel that a stock TensorFlow server serves.

<folder>/1/saved_model.pb                   the graph, with the vocabularies in it
<folder>/1/variables/                       the weights
<folder>/1/assets.extra/model_card.json     see `model_card.py`
<folder>/1/assets.extra/tf_serving_warmup_requests
<folder>/batching_parameters.txt            settings of the server, see `server_files.py`
<folder>/models.config
<folder>/monitoring.config
"""

import os
import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.atomic_folders import atomic_folder
from keras_transformer.errors import InputError
from keras_transformer.export_versions import choose_version, write_model_card
from keras_transformer.inference.translator import Translator
from keras_transformer.serving.export_checks import (
    CHECK_TIMEOUT,
    check_operations,
    compare_answers,
)
from keras_transformer.serving.model_card import make_model_card
from keras_transformer.serving.server_files import (
    check_model_name,
    check_models_config_name,
    most_sentences,
    write_server_files,
)
from keras_transformer.serving.warm_up import BATCH_SIZES, make_requests, write_requests


def export(
    translator: Translator,
    folder: str | os.PathLike[str],
    version: int | None = None,
    *,
    name: str | None = None,
    sentences: Sequence[str] = (),
    batch_sizes: Sequence[int] = BATCH_SIZES,
    training: Sequence[Mapping[str, Any]] = (),
    check_answers: bool = True,
    check_timeout: float = CHECK_TIMEOUT,
) -> pathlib.Path:
    """Writes `<folder>/<version>/` and returns that path.

    It has the signatures of `Translator.signatures`. It is written under a temporary name, checked,
    tried in a fresh process, and renamed when all is well: a server that polls the folder never
    sees half of a version, nor one that it could not serve.

    Args:
        translator: what to write.
        folder: the model's folder; made if need be.
        version: a positive number; None means one more than the highest there.
        name: the model's name in requests and in the folder's `models.config`; by default the
            folder's name.
        sentences: typical text for the warm-up requests and the check; by default it is generated
            from the vocabulary.
        batch_sizes: sentences of the warm-up requests, at most what the batching parameters in the
            folder allow.
        training: for the model card, see `describe_run`: of each run whose weights these are.
        check_answers: whether a fresh process answers the warm-up requests, to be compared with
            the translator.
        check_timeout: seconds that this process may take.

    Raises:
        InputError: the version exists, is not positive, or cannot be written; the model's name
            is not valid; or a model server could not serve this, or would answer differently.

    Example:
        >>> export(translator, "exports/numbers", sentences=["forty-two"])
        PosixPath('exports/numbers/1')
    """
    base = pathlib.Path(folder)
    final = base / str(choose_version(base, version, "SavedModel"))
    name = base.resolve().name if name is None else name
    check_model_name(name)
    check_models_config_name(base, name)
    original, translator = translator, translator.with_cached_projection()
    signatures = translator.signatures()
    requests = make_requests(
        translator, signatures, sentences, batch_sizes, most_sentences=most_sentences(base)
    )
    try:
        with atomic_folder(final) as aside:
            tf.saved_model.save(translator, str(aside), signatures=signatures)
            operations = check_operations(aside, allow_xla=translator.xla is not None)
            write_requests(aside, requests, name)
            write_model_card(aside, make_model_card(original, signatures, operations, training))
            if check_answers:
                compare_answers(aside, requests, signatures, check_timeout)
            write_server_files(base, name, max(request.size for request in requests))
    except (OSError, tf.errors.OpError) as error:
        reason = textwrap.shorten(str(error), 200)
        raise InputError(f"cannot write the export to {final} ({reason})") from error
    return final
