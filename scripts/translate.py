"""Translates files, or standard input, to standard output: one sentence a line, in order.

echo "two hundred and five" | python scripts/translate.py --run_dir=runs/numbers
python scripts/translate.py --saved_model=exports/numbers/1 input.en > output.de
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from absl import flags

import common
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.serving.translator import Translation

_RUN_DIR = flags.DEFINE_string("run_dir", None, "Directory of a training run.")
_SAVED_MODEL = flags.DEFINE_string(
    "saved_model", None, "An exported version to translate with, in place of --run_dir."
)
_CHECKPOINT = common.define_checkpoint_flag()
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Sentences translated at once.", lower_bound=1)
_SCORES = flags.DEFINE_boolean(
    "scores",
    False,
    "Write line number, score and translation, tab-separated; so it is for n-best lists anyway.",
)
_REMOVE_BPE = flags.DEFINE_boolean(
    "remove_bpe",
    None,
    'Join pieces marked with "@@ " in the translations. Default: the run\'s remove_bpe.',
)
common.define_flags(SearchConfig)

# Lines that are sorted by length together; their translations come out together.
_LINES_AT_ONCE = 10_000


def main(arguments: list[str]) -> None:
    if (_RUN_DIR.value is None) == (_SAVED_MODEL.value is None):
        raise InputError("give --run_dir or --saved_model, one of the two")
    given = common.given_flags(SearchConfig)
    if given and _SAVED_MODEL.value is not None:
        raise InputError(
            f"--{min(given)} was fixed when {_SAVED_MODEL.value} was exported; leave it out, or "
            "translate with --run_dir"
        )
    search = SearchConfig(**given)
    common.load_tensorflow()
    from keras_transformer.serving import Translator, load_exported, translate_sorted
    from keras_transformer.training import RunDirectory

    lines = _lines(arguments)  # opened before the model, so that a wrong name is told at once
    translate: Callable[[Any], dict[str, Any]]
    join = _REMOVE_BPE.value
    if _RUN_DIR.value is not None:
        run = RunDirectory(_RUN_DIR.value)
        translate = Translator(run.load_model(_CHECKPOINT.value), *run.vocabularies(), search)
        join = run.configs()[1].remove_bpe if join is None else join
    else:
        translate = load_exported(_SAVED_MODEL.value or "")
    at_once = _LINES_AT_ONCE
    if not arguments and sys.stdin.isatty():
        print("Type sentences, one a line; Ctrl-D ends.", file=sys.stderr)
        at_once = 1
    number = 0
    while sentences := list(itertools.islice(lines, at_once)):
        for translations in translate_sorted(translate, sentences, _BATCH_SIZE.value):
            number += 1
            _write(number, translations, bool(join))
        sys.stdout.flush()


def _write(number: int, translations: "list[Translation]", join: bool) -> None:
    """Writes the translations of one sentence."""
    from keras_transformer.text.scores import join_pieces

    with_scores = _SCORES.value or len(translations) > 1
    for text, score in translations:
        start = f"{number}\t{score:.4f}\t" if with_scores else ""
        sys.stdout.write(f"{start}{join_pieces(text) if join else text}\n")


def _lines(paths: list[str]) -> Iterator[str]:
    from keras_transformer.data import read_lines

    for path in paths:
        if not os.path.exists(path):
            raise InputError(
                f"the file {path} does not exist; name files, or give sentences on standard input"
            )
    if paths:
        return itertools.chain.from_iterable([read_lines(path) for path in paths])
    return _standard_input()


def _standard_input() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"standard input, line {number} is not UTF-8: {error.reason}; convert it first"
            ) from error


if __name__ == "__main__":
    common.run(main)
