"""Translates or scores text with a model server: one sentence a line, in order.

echo "two hundred and five" | keras-transformer serve_client --server=localhost:8500 --model=numbers
keras-transformer serve_client --server=localhost:8501 --protocol=rest --model=numbers input.en
keras-transformer serve_client --server=localhost:8500 --model=numbers --alignments input.en
keras-transformer serve_client --server=mt.example.org:443 --tls --headers_file=token input.en
keras-transformer serve_client --server=dns:///mt.example.org:8500 --output=output.de input.en
"""

import os
import re
from typing import TYPE_CHECKING

from absl import flags

from keras_transformer.commands import common, line_io
from keras_transformer.config import FIXED_OPTIONS, SearchConfig, check_options
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.client import Client

_SERVER = flags.DEFINE_string(
    "server",
    None,
    "host:port of the model server. Over gRPC, dns:///host:port uses all addresses of the host in "
    "turn.",
    required=True,
)
_PROTOCOL = flags.DEFINE_enum("protocol", "grpc", ["grpc", "rest"], "The protocol of this port.")
_MODEL = flags.DEFINE_string("model", "translator", "The model's name on the server.")
_VERSION = flags.DEFINE_integer("model_version", None, "Its version. Default: the latest.")
_LABEL = flags.DEFINE_string("label", None, "A label of a version, instead of its number.")
_TIMEOUT = flags.DEFINE_float("timeout", 60.0, "Seconds for one request, retries included.")
_RETRIES = flags.DEFINE_integer(
    "retries",
    4,
    "How often a request is retried while the server is unreachable or overloaded.",
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Sentences in one request.")
_REQUESTS = flags.DEFINE_integer("requests_in_flight", 4, "Requests that run concurrently.")
_TLS = flags.DEFINE_boolean("tls", False, "Connect by TLS.")
_ROOT_CERTIFICATES = flags.DEFINE_string(
    "root_certificates", None, "PEM file of the authorities to trust. Default: the usual ones."
)
_CLIENT_CERTIFICATE = flags.DEFINE_string(
    "client_certificate", None, "PEM file of the client's certificate chain, for mutual TLS."
)
_CLIENT_KEY = flags.DEFINE_string("client_key", None, "PEM file of its key, unencrypted.")
_SERVER_NAME = flags.DEFINE_string(
    "tls_server_name", None, "The name that its certificate must have. Default: the host."
)
_KEEP_ALIVE = flags.DEFINE_float(
    "keep_alive",
    None,
    "Seconds after which an idle gRPC connection is tested by a ping, which the server must "
    "permit. Default: never.",
)
_HEADERS_FILE = flags.DEFINE_string(
    "headers_file",
    None,
    "A file of HTTP headers or gRPC metadata to send, one a line, as in 'authorization: Bearer "
    "TOKEN'. On the command line, other users of the machine could read them.",
)
line_io.define_line_flags()
_STATUS = flags.DEFINE_boolean("status", False, "Only write the versions of the model.")

# Flags that make no difference to the output.
_OF_CONNECTION = (
    "server", "protocol", "timeout", "retries", "batch_size", "requests_in_flight", "tls",
    "root_certificates", "client_certificate", "client_key", "tls_server_name", "keep_alive",
    "headers_file",
)  # fmt: skip

# What may differ from sentence to sentence with an exported model.
_OPTIONS = [name for name in SearchConfig.__dataclass_fields__ if name not in FIXED_OPTIONS]
common.define_flags(SearchConfig, _OPTIONS)
for _name in _OPTIONS:
    _flag = flags.FLAGS[_name]
    _flag.help = re.sub(r" Default: \S+\.$", "", _flag.help) + " Default: as exported."


def main(arguments: list[str]) -> None:
    given = common.given_flags(SearchConfig)
    line_io.check_flags(given)
    line_io.check_output(arguments)
    check_options(given)  # so that a wrong value is reported at once
    headers = {} if _HEADERS_FILE.value is None else _read_headers(_HEADERS_FILE.value)
    if _PROTOCOL.value == "grpc":
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors are in the exceptions
        common.load_tensorflow(with_keras=False)
    from keras_transformer.client import Client

    with Client(
        _SERVER.value,
        model=_MODEL.value,
        version=_VERSION.value,
        label=_LABEL.value,
        timeout_s=_TIMEOUT.value,
        retries=_RETRIES.value,
        protocol=_PROTOCOL.value,
        batch_size=_BATCH_SIZE.value,
        requests_in_flight=_REQUESTS.value,
        tls=_TLS.value,
        root_certificates=_ROOT_CERTIFICATES.value,
        client_certificate=_CLIENT_CERTIFICATE.value,
        client_key=_CLIENT_KEY.value,
        tls_server_name=_SERVER_NAME.value,
        keep_alive_s=_KEEP_ALIVE.value,
        headers=headers,
    ) as client:
        if _STATUS.value:
            common.refuse_arguments(arguments)
            for entry in client.status():
                line_io.write_row(*map(str, entry))
        else:
            lines = line_io.read_input(arguments)
            at_once = line_io.lines_at_once(arguments, flags.FLAGS.output)
            job = line_io.describe_job(__name__, _served_versions(client), _OF_CONNECTION)
            line_io.answer_lines(client, lines, given, job=job, at_once=at_once)


def _served_versions(client: "Client") -> dict[str, list[int]]:
    """Returns the versions that may answer; none for standard output, which does not need them."""
    if flags.FLAGS.output is None or _VERSION.value is not None:
        return {}
    states = client.status()
    return {"versions of the model": [each.version for each in states if each.state == "AVAILABLE"]}


def _read_headers(path: str) -> dict[str, str]:
    """Returns the headers in a file; errors do not contain their values."""
    headers = {}
    if os.path.isfile(path) and not os.path.getsize(path):  # the size of a pipe is always 0
        raise InputError(f"{path} is empty; expected headers, one a line, name: value")
    for number, line in enumerate(line_io.read_input([path]), start=1):
        name, colon, value = line.partition(":")
        if line.strip() and not colon:
            raise InputError(f"{path}, line {number} must be name: value")
        if line.strip():
            headers[name.strip()] = value.strip()
    return headers
