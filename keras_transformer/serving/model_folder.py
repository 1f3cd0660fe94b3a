"""The folder of a model: its versions, their model cards, and the files for a model server.

The script that starts the server and the server's configuration files stand beside the versions.
They are a starting point for the operator to edit: existing files are kept. Nothing here needs
TensorFlow.
"""

import itertools
import json
import os
import pathlib
import re
from typing import Any, Literal

from keras_transformer.errors import InputError
from keras_transformer.files import local_path, write_atomically

MODEL_CARD = pathlib.PurePath("assets.extra", "model_card.json")

_SAVED_MODEL = "saved_model.pb"
# The file that shows the format of a version.
_FORMAT_FILES = {
    "SavedModel": _SAVED_MODEL,
    "CTranslate2": "model.bin",
    "transformers": "model.safetensors",
}

BATCHING_FILE = "batching_parameters.txt"
_MODELS_FILE = "models.config"
SERVE_SCRIPT = "serve.sh"
_MAX_SENTENCES = 64  # of a batch

_BATCHING = """\
# How requests are merged into batches. For two cores.

# The most sentences of a batch. Larger requests are rejected. Larger batches need more memory and
# save little time per sentence. After lowering it export again: a server does not load a version
# whose warm-up requests are larger.
max_batch_size {{ value: {most_sentences} }}

# How long a request waits for others, in microseconds: not at all. A free thread starts a request
# at once; while all threads are busy, waiting requests are merged. A longer wait delays single
# requests, and gathers in one thread what several threads could do.
batch_timeout_micros {{ value: 0 }}

# Batches that are translated at the same time: the number of cores, or of GPUs.
num_batch_threads {{ value: 2 }}

# Batches that may wait. Further requests are rejected at once, and clients retry.
max_enqueued_batches {{ value: 64 }}

# Do not set pad_variable_length_inputs: no signature needs it, and with it a request of wrong rank
# crashes the server. Without it the requests of its batch fail, and the package's client retries.
"""

_MODELS = """\
model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"  # where serve.sh mounts this folder
    model_platform: "tensorflow"
    # The highest version is served, as soon as it is here. To serve two of them, the second one for
    # clients that ask for the label "canary" (clients without a label get the highest version):
    # model_version_policy {{ specific {{ versions: 1 versions: 2 }} }}
    # version_labels {{ key: "stable" value: 1 }}
    # version_labels {{ key: "canary" value: 2 }}
  }}
}}
"""

_MONITORING = """\
# Metrics for Prometheus, at the port of the REST API.
prometheus_config {
  enable: true
  path: "/monitoring/prometheus/metrics"
}
"""

IMAGE = "tensorflow/serving:2.20.0"  # it starts the server with --port=8500 --rest_api_port=8501

_NO_ONE_DNN = "TF_ENABLE_ONEDNN_OPTS=0"
# The server's environment and flags, with the reason of each.
SERVER_ENVIRONMENT = {
    _NO_ONE_DNN: "On CPUs oneDNN keeps kernels for every shape: memory would grow.",
    "GLIBC_TUNABLES=glibc.malloc.hugetlb=1": "Large pages of memory: a little faster.",
}
# In the place of `_NO_ONE_DNN`, for models in bfloat16.
_ONE_DNN = {
    "TF_ENABLE_ONEDNN_OPTS=1": "bfloat16 needs oneDNN, which keeps kernels for every shape: memory "
    "grows until it has seen them."
}
SERVER_FLAGS = {
    "--model_config_file=/models/{name}/models.config": "Versions to serve, and their labels.",
    "--model_config_file_poll_wait_seconds=60": "Reads that file again, so that edits take effect.",
    "--allow_version_labels_for_unavailable_models": "Adds a version and its label in one edit.",
    "--enable_batching": "Translates requests together that wait for a thread.",
    "--batching_parameters_file=/models/{name}/batching_parameters.txt": "Sizes and threads of it.",
    "--grpc_max_threads=128": "Requests over gRPC at once; by default 4 a core, more fail.",
    "--rest_api_num_threads=128": "The same over REST.",
    "--rest_api_timeout_in_ms=60000": "As long as clients wait by default; the server's is 30 s.",
    "--monitoring_config_file=/models/{name}/monitoring.config": "Metrics for Prometheus.",
}

_SERVE = """\
#!/usr/bin/env bash
# Serves this folder with TensorFlow Serving: gRPC at port 8500, REST and metrics at 8501.
#
#   bash serve.sh            start the server; Ctrl-C ends it
#   bash serve.sh --print    print its command
#
# Other arguments are further flags of the server. For GPUs set TF_ENABLE_ONEDNN_OPTS=1, and give
# docker --gpus=all and the image {image}-gpu.
set -euo pipefail

folder=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)

environment=(
{environment}
)
flags=(
{flags}
)
command=(
  docker run --rm --init -p 8500:8500 -p 8501:8501 -v "$folder:/models/{name}:ro"
  # --cpus=2 --memory=4g  # as many cores as num_batch_threads in batching_parameters.txt
  "${{environment[@]/#/--env=}}" {image} "${{flags[@]}}"
)

if [ "${{1-}}" = --print ]; then
  printf '%q ' "${{command[@]}}" "${{@:2}}"
  echo
else
  exec "${{command[@]}}" "$@"
fi
"""


def choose_version(
    base: pathlib.Path,
    version: int | None,
    format: Literal["SavedModel", "CTranslate2", "transformers"],
) -> int:
    """Returns the number of the version to write: one more than the highest if it is None.

    Raises:
        InputError: the version exists, is lower than another or not positive, or the folder has
            models of another format, since a model server would load each new version.
    """
    for number, (other, file) in itertools.product(_versions_in(base), _FORMAT_FILES.items()):
        if other != format and (base / str(number) / file).exists():
            raise InputError(
                f"{base / str(number)} is a {other} model; give the {format} model another folder"
            )
    highest = max(_versions_in(base), default=0)
    if version is None:
        version = highest + 1
    if version < 1:
        raise InputError(f"version must be a positive number, got {version}")
    if (base / str(version)).exists():
        raise InputError(
            f"export folder {base / str(version)} already exists; choose another --model_version, "
            "or none for the next"
        )
    if version < highest:
        raise InputError(
            f"version {version} is lower than {highest}, and a server loads the highest; choose a "
            "higher --model_version, or none for the next"
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
    path = local_path(version) / MODEL_CARD
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"no model card at {path} ({error}); give the folder of an exported version"
        ) from error
    kinds = {"training": list, "search": dict, "signatures": dict, "precision": dict}
    is_card = isinstance(card, dict) and all(
        isinstance(card.get(name), kind) for name, kind in kinds.items()
    )
    if not (
        is_card
        and all(isinstance(run, dict) and "task" in run for run in card["training"])
        and {"max_source_length", "max_extra_length"} <= set(card["search"])
    ):
        raise InputError(f"{path} is not a model card of this release; export the model again")
    return card


def _versions_in(folder: pathlib.Path) -> list[int]:
    """Returns the numbers of the versions in a model's folder."""
    if not folder.is_dir():
        return []
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]


def check_name(folder: pathlib.Path, name: str) -> None:
    """Checks the name by which requests call a model.

    Raises:
        InputError: it cannot be part of a request's URL, or the `models.config` of the model's
            folder has another one.
    """
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(
            f"the model's name {name!r} must consist of letters, digits, '_', '.' and '-'; give "
            "another --name"
        )
    names = re.findall(
        r"^\s*name\s*:\s*\"([^\"]*)\"", _without_comments(folder / _MODELS_FILE), re.M
    )
    if names and name not in names:
        raise InputError(
            f"{folder / _MODELS_FILE} calls the model {names[0]!r}, not {name!r}; give "
            f"--name={names[0]}, or change that file"
        )


def is_served(version: pathlib.Path) -> bool:
    """Whether the `models.config` beside a version has it served: it may name other versions."""
    config = _without_comments(version.parent / _MODELS_FILE)
    named = re.findall(r"\bversions\s*:\s*\[?([\d,\s]+)", config)
    return not named or version.name in re.findall(r"\d+", " ".join(named))


def server_uses_one_dnn(folder: pathlib.Path) -> bool:
    """Whether the `serve.sh` of a model's folder turns oneDNN on."""
    return "TF_ENABLE_ONEDNN_OPTS=1" in _without_comments(folder / SERVE_SCRIPT)


def read_batching(folder: pathlib.Path) -> dict[str, int]:
    """Returns the numbers of the batching file of a model's folder, by name."""
    settings = _without_comments(folder / BATCHING_FILE)
    values = re.findall(r"\b(\w+)\s*:?\s*[{<]\s*value\s*:\s*(\d+)", settings)
    return {name: int(value) for name, value in values}


def write_server_files(
    folder: pathlib.Path, name: str, largest_batch: int, *, one_dnn: bool = False
) -> None:
    """Writes the files that do not exist yet.

    Args:
        folder: the model's, which has a folder for each version.
        name: what requests call the model.
        largest_batch: sentences of the largest request that the server must accept.
        one_dnn: whether the server uses oneDNN, which models in bfloat16 need to be fast.

    Raises:
        OSError: they cannot be written.
    """
    settings = SERVER_ENVIRONMENT
    if one_dnn:
        others = {key: SERVER_ENVIRONMENT[key] for key in SERVER_ENVIRONMENT if key != _NO_ONE_DNN}
        settings = _ONE_DNN | others
    environment, flags = (
        "\n".join(f"  # {reason}\n  {value.format(name=name)}" for value, reason in each.items())
        for each in (settings, SERVER_FLAGS)
    )
    files = {
        BATCHING_FILE: _BATCHING.format(most_sentences=max(largest_batch, _MAX_SENTENCES)),
        _MODELS_FILE: _MODELS.format(name=name),
        "monitoring.config": _MONITORING,
        SERVE_SCRIPT: _SERVE.format(image=IMAGE, name=name, environment=environment, flags=flags),
    }
    for file, content in files.items():
        if not (folder / file).exists():
            write_atomically(folder / file, content)


def _without_comments(path: pathlib.Path) -> str:
    # Operators edit these files; what is read of them is ASCII.
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return re.sub("#.*", "", text)
