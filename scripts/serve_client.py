"""Translates or scores text with a model server: one sentence a line, in order.

echo "two hundred and five" | python scripts/serve_client.py --server=localhost:8500 --model=numbers
python scripts/serve_client.py --server=localhost:8501 --protocol=rest --model=numbers input.en
python scripts/serve_client.py --server=localhost:8500 --model=numbers --alignments input.en
"""

import re

from absl import flags

import common
import line_io
from keras_transformer.config import FIXED_OPTIONS, SearchConfig

_SERVER = flags.DEFINE_string("server", None, "host:port of the model server.", required=True)
_PROTOCOL = flags.DEFINE_enum(
    "protocol", "grpc", ["grpc", "rest"], "What the server speaks at this port."
)
_MODEL = flags.DEFINE_string("model", "translator", "The model's name on the server.")
_VERSION = flags.DEFINE_integer("version", None, "Its version. Default: the latest.")
_LABEL = flags.DEFINE_string("label", None, "A label of a version, in place of its number.")
_TIMEOUT = flags.DEFINE_float("timeout", 60.0, "Seconds for one request, repetitions included.")
_RETRIES = flags.DEFINE_integer(
    "retries", 5, "How often a request is repeated where the server is down or busy."
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Sentences in one request.")
_REQUESTS = flags.DEFINE_integer("requests_in_flight", 4, "Requests under way at the same time.")
line_io.define_flags()
_STATUS = flags.DEFINE_boolean("status", False, "Write the versions of the model, and no more.")

# What an exported model lets change from sentence to sentence.
_OPTIONS = [name for name in SearchConfig.__dataclass_fields__ if name not in FIXED_OPTIONS]
common.define_flags(SearchConfig, _OPTIONS)
for _name in _OPTIONS:
    _flag = flags.FLAGS[_name]
    _flag.help = re.sub(r" Default: \S+\.$", "", _flag.help) + " Default: as exported."


def main(arguments: list[str]) -> None:
    given = common.given_flags(SearchConfig)
    line_io.check_flags(given)
    line_io.check_options(given)  # so that a wrong value is reported at once
    if _PROTOCOL.value == "grpc":
        common.load_tensorflow()
    from keras_transformer.serving.client import Client

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
    ) as client:
        if _STATUS.value:
            common.refuse_arguments(arguments)
            for entry in client.status():
                print(*entry, sep="\t")
        else:
            lines = common.read_input(arguments)
            at_once = line_io.lines_at_once(arguments)
            line_io.answer_lines(client, lines, line_io.options_of(given), at_once=at_once)


if __name__ == "__main__":
    common.run(main)
