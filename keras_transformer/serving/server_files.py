"""The configuration files of a model server, written beside the versions of a model.

They are a starting point for the operator to edit: existing files are kept.
"""

import pathlib
import re

from keras_transformer.errors import InputError
from keras_transformer.files import write_atomically

_BATCHING_FILE = "batching_parameters.txt"
_MODELS_FILE = "models.config"
_MOST_SENTENCES = 64  # of a batch

_FLAGS = (
    "--enable_batching --batching_parameters_file=<this file> "
    "--tensorflow_intra_op_parallelism=1 --tensorflow_inter_op_parallelism=2"
)
_BATCHING = """\
# Requests that arrive at the same time are translated together. The values below suit two cores,
# in a server that is started with TF_ENABLE_ONEDNN_OPTS=0 in its environment and the flags
#
# {flags}
#
# Each core works on its own batch: set num_batch_threads and --tensorflow_inter_op_parallelism to
# the number of cores.

# The most sentences of a batch; larger requests are rejected. Larger batches need more memory and
# save little time per sentence. Export again after lowering it: a server does not load a version
# whose warm-up requests are larger.
max_batch_size {{ value: {most_sentences} }}

# How long the first request waits for others, in microseconds. A batch takes tens of
# milliseconds, so the wait costs little; set it to 0 where single requests are the rule.
batch_timeout_micros {{ value: 2000 }}

# Batches that are translated at the same time: the number of cores, or of GPUs.
num_batch_threads {{ value: 2 }}

# Batches that may wait in the queue; further requests are rejected at once, and clients retry.
max_enqueued_batches {{ value: 64 }}

# Do not set pad_variable_length_inputs: no signature needs it, and with it a request of wrong rank
# crashes the server. Without it the requests of its batch fail, and the package's client retries.
"""

# For --model_config_file.
_MODELS = """\
# The path is where the docker image has this folder: -v <this folder>:/models/{name}
model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"
    model_platform: "tensorflow"
    # The highest version is served, as soon as it is here. To try version 2 on some requests while
    # 1 serves the others: have version 1 alone served and labelled "stable", let all clients ask
    # for that label (without one they get the highest version that is served), export version 2,
    # and then serve both:
    # model_version_policy {{ specific {{ versions: 1 versions: 2 }} }}
    # version_labels {{ key: "stable" value: 1 }}
    # version_labels {{ key: "canary" value: 2 }}
  }}
}}
"""

# For --monitoring_config_file.
_MONITORING = """\
# Prometheus reads the metrics from the port of the REST API.
prometheus_config {
  enable: true
  path: "/monitoring/prometheus/metrics"
}
"""


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
    names = re.findall(r"^\s*name\s*:\s*\"([^\"]*)\"", _read(folder / _MODELS_FILE), re.M)
    if names and name not in names:
        raise InputError(
            f"{folder / _MODELS_FILE} calls the model {names[0]!r}, not {name!r}; give "
            f"--name={names[0]}, or change that file"
        )


def most_sentences(folder: pathlib.Path) -> int | None:
    """Returns the most sentences of a request by the batching parameters of a model's folder.

    None where that file is absent or does not set it.
    """
    text = _read(folder / _BATCHING_FILE)
    found = re.search(r"^\s*max_batch_size\s*:?\s*\{\s*value:\s*(\d+)", text, re.M)
    return int(found[1]) if found else None


def write_server_files(folder: pathlib.Path, name: str, largest_batch: int) -> None:
    """Writes the files that do not exist yet.

    Args:
        folder: the model's, which has a folder for each version.
        name: what requests call the model.
        largest_batch: sentences of the largest request that the server must accept.

    Raises:
        OSError: they cannot be written.
    """
    files = {
        _BATCHING_FILE: _BATCHING.format(
            flags=_FLAGS, most_sentences=max(largest_batch, _MOST_SENTENCES)
        ),
        _MODELS_FILE: _MODELS.format(name=name),
        "monitoring.config": _MONITORING,
    }
    for file, content in files.items():
        if not (folder / file).exists():
            write_atomically(folder / file, content)


def _read(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
