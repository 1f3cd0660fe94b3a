"""Translates or scores text with a model server: one sentence a line, in order.

echo "two hundred and five" | python scripts/serve_client.py --server=localhost:8500 --model=numbers
python scripts/serve_client.py --server=localhost:8501 --protocol=rest input.en > output.de
python scripts/serve_client.py --server=localhost:8500 --references=output.de input.en > scores.tsv
"""

import re
import sys
from typing import TYPE_CHECKING, Any

from absl import flags

import common
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.serving.client import Client
    from keras_transformer.serving.translation import Translation

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
_SCORES = flags.DEFINE_boolean(
    "scores",
    False,
    "Write line number, score and translation, tab-separated; so it is for n-best lists anyway.",
)
_REFERENCES = flags.DEFINE_string(
    "references",
    None,
    "A file with a translation of each line, to be scored: writes line number, log-probability "
    "and the log-probability of each symbol, tab-separated.",
)
_PREFIXES = flags.DEFINE_string(
    "prefixes", None, "A file with what the translation of each line must begin with."
)
_ALIGNMENTS = flags.DEFINE_boolean(
    "alignments",
    False,
    "Write behind each best translation, or reference, a tab and its word alignment: pairs of "
    "source and target word, numbered from 0, by the model's attention.",
)
_STATUS = flags.DEFINE_boolean("status", False, "Write the versions of the model, and no more.")

# What an exported model lets change from sentence to sentence.
_OPTIONS = (
    "length_penalty", "coverage_penalty", "diversity_penalty", "temperature", "top_k", "top_p",
    "seed", "max_extra_length", "max_length", "min_length", "repetition_penalty",
    "no_repeat_ngram", "banned_phrases", "required_phrases",
)  # fmt: skip
common.define_flags(SearchConfig, _OPTIONS)
for _name in _OPTIONS:
    _flag = flags.FLAGS[_name]
    _flag.help = re.sub(r" Default: \S+\.$", "", _flag.help) + " Default: as exported."


def main(arguments: list[str]) -> None:
    given = common.given_flags(SearchConfig)
    if _REFERENCES.value is not None and (given or _PREFIXES.value is not None):
        raise InputError("--references scores what is there already; leave options of search out")
    SearchConfig(**given)  # so that a wrong value is told at once
    options = {name: _phrases(value) for name, value in given.items()}
    beside = _REFERENCES.value or _PREFIXES.value
    if _PROTOCOL.value == "grpc" or arguments or beside is not None:
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
            _answer_lines(client, arguments, options)


def _answer_lines(client: "Client", paths: list[str], options: dict[str, Any]) -> None:
    """Writes what the model makes of each line, some lines at a time."""
    lines = common.read_input(paths)
    beside = _REFERENCES.value or _PREFIXES.value
    number = 0
    for sentences, partners in common.read_together(lines, beside, common.lines_at_once(paths)):
        if _REFERENCES.value is not None:
            _score(client, sentences, partners, number)
        else:
            prefixes = {"prefix": partners} if _PREFIXES.value is not None else {}
            _translate(client, sentences, options | prefixes, number)
        number += len(sentences)
        sys.stdout.flush()


def _translate(
    client: "Client", sentences: list[str], options: dict[str, Any], number: int
) -> None:
    """Translates and writes some sentences; `number` lines came before them."""
    results = client.translate(sentences, **options)
    endings = _endings(client, sentences, [best.text for best, *_ in results])
    rows = zip(results, endings, strict=True)
    for line, (translations, ending) in enumerate(rows, start=number + 1):
        _write(line, translations, ending)


def _score(client: "Client", sentences: list[str], references: list[str], number: int) -> None:
    """Scores and writes some translations; `number` lines came before them."""
    endings = _endings(client, sentences, references)
    rows = zip(client.score(sentences, references), endings, strict=True)
    for line, (score, ending) in enumerate(rows, start=number + 1):
        symbols = "\t".join(f"{each:.4f}" for each in score.token_scores)
        print(f"{line}\t{score.score:.4f}\t{symbols}{ending}")


def _endings(client: "Client", sentences: list[str], translations: list[str]) -> list[str]:
    """Returns what stands behind each translation: its alignment, if that is asked for."""
    if not _ALIGNMENTS.value:
        return [""] * len(sentences)
    return [
        "\t" + " ".join(f"{source}-{target}" for source, target in pairs)
        for pairs in client.align(sentences, translations)
    ]


def _write(number: int, translations: "list[Translation]", ending: str) -> None:
    """Writes the translations of one sentence, the ending behind the best one."""
    with_scores = _SCORES.value or len(translations) > 1
    for text, score in translations:
        start = f"{number}\t{score:.4f}\t" if with_scores else ""
        print(f"{start}{text}{ending}")
        ending = ""


def _phrases(value: Any) -> Any:
    """Returns the value of a flag as the client takes it: several phrases one to a line."""
    return "\n".join(value) if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    common.run(main)
