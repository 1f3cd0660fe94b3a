"""The settings of a model server, written beside the versions of a model.

They are a start for a person to change: what is there already stays.
"""

import contextlib
import pathlib
import re

from keras_transformer.atomic_files import write_atomically
from keras_transformer.errors import InputError

_BATCHING_FILE = "batching_parameters.txt"
_MODELS_FILE = "models.config"
_MOST_SENTENCES = 64  # of a batch

# For --batching_parameters_file, with --enable_batching.
_BATCHING = """\
# Requests that come at the same time are translated together. Each number is for one server.

# Sentences of a batch; a request with more is refused. More of them need more memory and little
# less time for each. Export anew after lowering it: a server does not load a version whose warm-up
# has larger requests.
max_batch_size {{ value: {most_sentences} }}

# How long the first request waits for others, in microseconds. A batch takes tens of
# milliseconds, so the wait costs little; set it to 0 where single requests are the rule.
batch_timeout_micros {{ value: 2000 }}

# Batches that are translated at the same time: as many as there are cores, or GPUs, is a start.
num_batch_threads {{ value: 2 }}

# Batches that may wait; beyond them requests are refused at once, and clients try again.
max_enqueued_batches {{ value: 64 }}

# The signature "tokens" takes ids of any length, which must be as long as each other in a batch.
# What stands behind a row's end token is not read, so padding does no harm.
pad_variable_length_inputs: true
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
# Prometheus reads the numbers from the port of the REST API.
prometheus_config {
  enable: true
  path: "/monitoring/prometheus/metrics"
}
"""


def check_model_name(name: str) -> None:
    """Raises `InputError` for a name that does not fit into the address of a request."""
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(
            f"the model's name {name!r} must consist of letters, digits, '_', '.' and '-'; give "
            "another --name"
        )


def most_sentences(folder: pathlib.Path) -> int | None:
    """Returns how many sentences a request may have by the batching parameters of a model's folder.

    None where they are not there, or do not say.
    """
    with contextlib.suppress(OSError):
        text = (folder / _BATCHING_FILE).read_text(encoding="utf-8")
        if found := re.search(r"^\s*max_batch_size\s*:?\s*\{\s*value:\s*(\d+)", text, re.M):
            return int(found[1])
    return None


def check_served_name(folder: pathlib.Path, name: str) -> None:
    """Raises `InputError` where the settings of a model's folder have another name for it."""
    with contextlib.suppress(OSError):
        text = (folder / _MODELS_FILE).read_text(encoding="utf-8")
        names = re.findall(r"^\s*name\s*:\s*\"([^\"]*)\"", text, re.M)
        if names and name not in names:
            raise InputError(
                f"{folder / _MODELS_FILE} calls the model {names[0]!r}, not {name!r}; give "
                f"--name={names[0]}, or change that file"
            )


def write_server_files(folder: pathlib.Path, name: str, largest_batch: int) -> None:
    """Writes the files that are not there yet; all of these or none.

    Args:
        folder: the model's, which has a folder for each version.
        name: what requests call the model.
        largest_batch: sentences of the largest request that the server must take.

    Raises:
        OSError: they cannot be written.
    """
    files = {
        _BATCHING_FILE: _BATCHING.format(most_sentences=max(largest_batch, _MOST_SENTENCES)),
        _MODELS_FILE: _MODELS.format(name=name),
        "monitoring.config": _MONITORING,
    }
    new = [folder / file for file in files if not (folder / file).exists()]
    try:
        for path in new:
            write_atomically(path, files[path.name])
    except BaseException:
        for path in new:
            with contextlib.suppress(OSError):
                path.unlink()
        raise
