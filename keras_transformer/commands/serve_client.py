"""Translates or scores text with a model server: one sentence a line, in order.

echo "two hundred and five" | keras-transformer serve_client --server=localhost:8500 --model=numbers
keras-transformer serve_client --server=localhost:8501 --protocol=rest --model=numbers input.en
keras-transformer serve_client --server=localhost:8500 --model=numbers --alignments input.en
keras-transformer serve_client --server=mt.example.org:443 --tls --headers_file=token input.en
"""

import os
import re
from typing import Any

from absl import flags

from keras_transformer.commands import command_flags, common, line_io
from keras_transformer.config import SearchConfig
from keras_transformer.config.search import REQUEST_OPTIONS
from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines
from keras_transformer.tasks import TranslationTask

_SERVER = flags.DEFINE_string("server", None, "host:port of the model server.", required=True)
flags.DEFINE_enum("protocol", "grpc", ["grpc", "rest"], "Protocol of this port.")
flags.DEFINE_string("model", "translator", "Name of the model on the server.")
flags.DEFINE_integer("model_version", None, "Version of the model. Default: the latest.")
flags.DEFINE_float("timeout", 60.0, "Seconds for a request, retries included.")
flags.DEFINE_integer(
    "retries", 4, "How often a request is repeated while the server is unreachable or overloaded."
)
flags.DEFINE_integer("batch_size", 64, "Sentences in one request.")
flags.DEFINE_integer("requests_in_flight", 4, "Requests that run at the same time.")
flags.DEFINE_boolean("tls", False, "Connect over TLS.")
command_flags.define_path(
    "root_certificates",
    "PEM file of the authorities to trust. Default: the system's over REST, gRPC's own over gRPC.",
)
command_flags.define_path(
    "client_certificate", "PEM file of the client's certificate chain, for mutual TLS."
)
command_flags.define_path("client_key", "PEM file of the client's private key, unencrypted.")
# The arguments of `Client` that these flags set, where the names differ.
_ARGUMENTS = {"model_version": "version", "timeout": "timeout_s"}
_CLIENT_FLAGS = (
    "protocol", "model", "model_version", "timeout", "retries", "batch_size",
    "requests_in_flight", "tls", "root_certificates", "client_certificate", "client_key",
)  # fmt: skip
_HEADERS_FILE = command_flags.define_path(
    "headers_file",
    "File of HTTP headers or gRPC metadata to send, one a line, for example "
    "'authorization: Bearer TOKEN'. (Other users of the machine can read a command line.)",
)
command_flags.define_flags(line_io.Job)

# What may differ from sentence to sentence with an exported model.
_OPTIONS = tuple(name for name in REQUEST_OPTIONS if name in SearchConfig.fields_with())
command_flags.define_flags(SearchConfig, _OPTIONS)
for _name in _OPTIONS:
    _flag = flags.FLAGS[_name]
    _flag.help = re.sub(r" Default: \S+\.$", "", _flag.help) + " Default: as exported."


def main(arguments: list[str]) -> None:
    search = command_flags.given_search()
    job = line_io.Job(**command_flags.given_flags(line_io.Job))
    line_io.check_search(job, search)
    common.check_output(job.output, [_HEADERS_FILE.value, job.references, *arguments])
    headers = {} if _HEADERS_FILE.value is None else _read_headers(_HEADERS_FILE.value)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors are in the exceptions
    from keras_transformer.client import Client

    common.print_warnings()
    arguments_of_client: dict[str, Any] = {
        _ARGUMENTS.get(name, name): flags.FLAGS[name].value for name in _CLIENT_FLAGS
    }
    with Client(_SERVER.value, headers=headers, **arguments_of_client) as client:
        line_io.answer_lines(job, client, arguments, search, TranslationTask())


def _read_headers(path: str) -> dict[str, str]:
    """Returns the headers in a file; errors do not contain their values."""
    headers = {}
    for number, line in enumerate(iterate_lines(path), start=1):
        name, colon, value = line.partition(":")
        if line.strip() and not colon:
            raise InputError(f"{path}, line {number} must be name: value")
        if line.strip():
            headers[name.strip()] = value.strip()
    return headers
