"""Downloads models of the Hugging Face Hub, such as the 1,400 that OPUS-MT published.

`huggingface_hub` keeps files in its cache and resumes a transfer that breaks. It reads HF_ENDPOINT,
HF_HOME, HF_TOKEN and HF_HUB_OFFLINE: with HF_HUB_OFFLINE=1 the cache must have the model.
"""

import os
import pathlib
import re
from typing import Any

from keras_transformer.errors import InputError, needs_extra, one_line
from keras_transformer.interop.transformers import OPTIONAL_FILES, REQUIRED_FILES, read_config

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that the Hub has


def is_hub_name(model: str) -> bool:
    """Whether a model is named as on the Hub, owner/name, and no file or folder has this path."""
    is_name = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", model) is not None
    return is_name and not pathlib.Path(model).exists()


def download(name: str, revision: str | None = None) -> pathlib.Path:
    """Returns the folder in the cache that has a MarianMTModel's files, after downloading it.

    Files that are not needed, such as weights for other frameworks, are not downloaded.

    Args:
        name: of the model, such as "Helsinki-NLP/opus-mt-en-de".
        revision: a branch, tag or commit; by default the newest.

    Raises:
        InputError: huggingface_hub is not installed; the Hub cannot be reached, or has no such
            model or revision, or one of another kind, or requires its terms to be accepted.
    """
    missing = f"there is no file or folder {name}"
    try:
        with needs_extra("hub"):
            from huggingface_hub import constants, errors, hf_hub_download
    except InputError as error:
        raise InputError(f"{missing}; a model of the Hub has such a name, but {error}") from error
    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
    page = f"{endpoint}/{name}"
    # A base of the Hub's error is that of its HTTP library, for connections that break.
    failures: tuple[Any, ...] = (
        OSError, errors.HFValidationError, *errors.HfHubHTTPError.__bases__
    )  # fmt: skip

    def fetch(file: str, revision: str | None) -> pathlib.Path | None:
        """Returns the path of a file, None if the model has none."""
        where: dict[str, Any] = {"cache_dir": constants.HF_HUB_CACHE, "endpoint": endpoint}
        try:
            return pathlib.Path(hf_hub_download(name, file, revision=revision, **where))
        except errors.LocalEntryNotFoundError as error:
            if constants.HF_HUB_OFFLINE:
                return None
            raise InputError(f"{missing}, and {endpoint} cannot be reached") from error
        except errors.EntryNotFoundError:
            return None
        except errors.GatedRepoError as error:
            raise InputError(
                f"accept the terms of {page}, and log in with hf auth login or HF_TOKEN"
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise InputError(f"{missing}, and no public model {page}") from error
        except failures as error:
            raise InputError(f"cannot download {file} of {page} ({one_line(error)})") from error

    config = fetch("config.json", revision)
    if config is None:
        where = f"the cache {constants.HF_HUB_CACHE}" if constants.HF_HUB_OFFLINE else page
        raise InputError(f"{where} has no config.json of {name}, a model of transformers")
    read_config(config)  # rejects models of other kinds before their weights are downloaded
    commit = config.parent.name  # the folder in the cache: all files are of one commit
    for file in REQUIRED_FILES:
        if fetch(file, commit) is None:
            raise InputError(f"{page} has no {file}, which a MarianMTModel needs")
    for file in OPTIONAL_FILES:
        fetch(file, commit)
    if not any(fetch(file, commit) for file in WEIGHTS):
        raise InputError(f"{page} has neither {' nor '.join(WEIGHTS)}")
    return config.parent
