"""Downloads models of the Hugging Face Hub, such as the 1,400 that OPUS-MT published.

`huggingface_hub` keeps files in its cache and resumes a transfer that breaks. It reads HF_ENDPOINT,
HF_HOME, HF_TOKEN and HF_HUB_OFFLINE: with HF_HUB_OFFLINE=1 the cache must have the model.
"""

import pathlib
import re
from typing import Any

from keras_transformer.errors import InputError, needs_extra, one_line
from keras_transformer.interop.transformers import OPTIONAL_FILES, REQUIRED_FILES, read_config

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that the Hub has


def is_hub_name(model: str) -> bool:
    """Whether a model is named as on the Hub, owner/name or owner/name@revision, and no file or
    folder has this path.
    """
    is_name = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*(@[\w./-]+)?", model) is not None
    return is_name and not pathlib.Path(model).exists()


def download(model: str) -> pathlib.Path:
    """Returns the folder in the cache that has a MarianMTModel's files, after downloading it.

    Files that are not needed, such as weights for other frameworks, are not downloaded. The model
    has a name as in `read_model`.

    Raises:
        InputError: huggingface_hub is not installed; the Hub cannot be reached, or has no such
            model or revision, or one of another kind, or requires its terms to be accepted.
    """
    name, _, revision = model.partition("@")
    missing = f"there is no file or folder {model}"
    try:
        with needs_extra("hub"):
            from huggingface_hub import constants, errors, hf_hub_download
    except InputError as error:
        raise InputError(f"{missing}; a model of the Hub has such a name, but {error}") from error
    # A base of the Hub's error is that of its HTTP library, for connections that break.
    failures: tuple[Any, ...] = (
        OSError, errors.HFValidationError, *errors.HfHubHTTPError.__bases__
    )  # fmt: skip
    endpoint = constants.ENDPOINT
    page = f"{endpoint}/{name}"

    def fetch(file: str, revision: str | None) -> pathlib.Path | None:
        """Returns the path of a file, None if the model has none."""
        try:
            return pathlib.Path(hf_hub_download(name, file, revision=revision))
        except errors.EntryNotFoundError as error:
            is_network = isinstance(error, errors.LocalEntryNotFoundError)
            if is_network and not constants.HF_HUB_OFFLINE:
                raise InputError(f"{missing}, and {endpoint} cannot be reached") from error
            return None
        except failures as error:
            reason = one_line(error)
            raise InputError(f"{missing}, and no {file} of {page} ({reason})") from error

    config = fetch("config.json", revision or None)
    if config is None:
        raise InputError(f"{page} has no config.json, which a MarianMTModel needs")
    read_config(config)  # rejects models of other kinds before their weights are downloaded
    commit = config.parent.name  # the folder in the cache: all files are of one commit
    for files in (*((file,) for file in REQUIRED_FILES), WEIGHTS):
        if not any(fetch(file, commit) for file in files):
            raise InputError(f"{page} has no {' or '.join(files)}, which a MarianMTModel needs")
    for file in OPTIONAL_FILES:
        fetch(file, commit)
    return config.parent
