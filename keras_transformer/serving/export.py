"""Writes a translator as a SavedModel that TensorFlow Serving serves, and loads it again.

From model to published version, in `export`:

1. `ModelFunctions.signatures` traces the functions to serve, with the matrix of the logits stored,
2. they are written to a temporary folder, under a module that has the variables alone;
   `merge_constants` makes the graph smaller, then warm-up requests and a model card are added,
3. `compare_answers` loads the folder in a fresh process and compares its answers with Python's, on
   the CPU: numbers to 1e-4, and translations but for a few near ties; the server's configuration
   files are written beside it,
4. the folder is renamed to its version, which a server loads as soon as it is there.

exports/mine/1/saved_model.pb                                 the graph, vocabularies included
exports/mine/1/variables/                                     the weights
exports/mine/1/assets.extra/model_card.json                   what the graph does not say
exports/mine/1/assets.extra/tf_serving_warmup_requests        see `checks`
exports/mine/serve.sh, *.config, batching_parameters.txt      see `model_folder`
"""

import json
import os
import pathlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_text  # noqa: F401  (loads the tokenizer's ops, which the SavedModel calls)

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.files import atomic_folder, local_path
from keras_transformer.host import package_versions
from keras_transformer.inference import LocalTranslator
from keras_transformer.inference.local_translator import signature_inputs
from keras_transformer.serving.checks import compare_answers, make_requests, write_requests
from keras_transformer.serving.constants import merge_constants
from keras_transformer.serving.model_folder import (
    MODEL_CARD,
    check_is_served,
    check_name,
    check_version,
    choose_version,
    write_server_files,
)


def export(
    translator: LocalTranslator,
    folder: str | os.PathLike[str],
    version: int | None = None,
    *,
    name: str | None = None,
    sentences: Sequence[str] = (),
    training: Sequence[Mapping[str, Any]] = (),
    say: Callable[[str], None] = lambda line: None,
) -> pathlib.Path:
    """Writes `<folder>/<version>/` with the functions of a translator as signatures; returns it.

    A server that polls the folder never sees half of a version, nor one that it could not serve: a
    version is renamed into the folder after a fresh process gave the translator's answers from it.

    Args:
        translator: what to write.
        folder: the model's folder; created if it does not exist.
        version: a number above those there; None means one more than the highest.
        name: the model's name in requests; by default the folder's name.
        sentences: typical text for the warm-up requests and the check; by default it is generated
            from the vocabulary.
        training: for the model card, what is known of each run whose weights these are.
        say: receives lines about the progress.

    Raises:
        InputError: the version is not above those there, or cannot be written; the model's name
            is not valid; or a model server could not serve this, or would answer differently.

    Example:
        >>> export(translator, "exports/numbers", sentences=["forty-two"])
        PosixPath('exports/numbers/1')
    """
    with needs_extra("serving"):
        import tensorflow_serving.apis.prediction_log_pb2  # noqa: F401
    base = local_path(folder)
    published = base / str(choose_version(base, version))
    if name is not None:
        check_is_served(name, base)
    name = base.resolve().name if name is None else name
    check_name(name)

    serving = translator.functions.with_stored_projection()
    signatures = serving.signatures()
    requests = make_requests(serving, signatures, sentences)
    precision = serving.model.dtype_policy.compute_dtype
    try:
        with atomic_folder(published) as staging:  # renamed at the end if nothing is raised
            tf.saved_model.save(serving.module(), str(staging), signatures=signatures)
            merge_constants(staging)
            write_requests(staging, requests, name)
            card = {
                "training": list(training),
                "model": serving.model.config.to_dict(),
                "search": serving.search.to_dict(),
                "precision": precision,
                "signatures": {
                    signature: {
                        "inputs": [*signature_inputs(function)],
                        "outputs": [*function.structured_outputs],
                    }
                    for signature, function in signatures.items()
                },
                "packages": package_versions(),
            }
            text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
            (staging / MODEL_CARD).write_text(text, encoding="utf-8")
            num_sentences = sum(request.size for request in requests)
            say(f"Checking the answers for {num_sentences} sentences in a fresh process ...")
            compare_answers(staging, requests, signatures)
            say("They are those of Python.")
            largest_batch = max(request.size for request in requests)
            write_server_files(base, name, largest_batch, one_dnn=precision == "bfloat16")
    except (OSError, tf.errors.OpError) as error:
        reason = textwrap.shorten(str(error), 200)
        raise InputError(f"cannot write the export to {published} ({reason})") from error
    return published


def load_exported(version: str | os.PathLike[str]) -> LocalTranslator:
    """Returns the translator of an exported version.

    Args:
        version: the folder `<folder>/<version>`.

    Raises:
        InputError: the folder has no SavedModel of a translator, or one that cannot be read.

    Example:
        >>> load_exported("exports/numbers/1").translate("forty-two").text
        'zweiundvierzig'
    """
    path = local_path(version)
    check_version(path)
    try:
        loaded = tf.saved_model.load(str(path))
    except (OSError, RuntimeError, ValueError, LookupError, tf.errors.OpError) as error:
        reason = textwrap.shorten(str(error), 200)
        raise InputError(f"the SavedModel in {path} cannot be read ({reason})") from error
    serve = loaded.signatures.get("serving_default")
    if serve is None or not {"translations", "scores"} <= set(serve.structured_outputs):
        raise InputError(f"the SavedModel in {path} is not a translator that `export` wrote")
    # Its functions live as long as `loaded`.
    return LocalTranslator.from_functions(loaded.signatures.__getitem__)
