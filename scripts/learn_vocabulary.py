"""Learns a SentencePiece vocabulary from text files, plain or .gz.

    python scripts/learn_vocabulary.py --output=shared.model --vocabulary_size=8000 \\
        train.en train.de
"""

import itertools
import pathlib

from absl import flags

import common
from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError

_OUTPUT = flags.DEFINE_string("output", None, "File to write.", required=True)
common.define_flags(DataConfig, {"vocabulary_size", "vocabulary_kind"})


def main(arguments: list[str]) -> None:
    from keras_transformer.data import read_lines
    from keras_transformer.text import learn_vocabulary

    if not arguments:
        raise InputError("no text files given; name one or several after the flags")
    output = pathlib.Path(_OUTPUT.value)
    if output.exists():
        raise InputError(f"{output} exists already; give another --output, or remove it first")
    if not output.parent.is_dir():
        raise InputError(f"the folder {output.parent} does not exist; make it first")
    defaults = DataConfig(dataset="", **common.given_flags(DataConfig))
    vocabulary = learn_vocabulary(
        itertools.chain.from_iterable(read_lines(path) for path in arguments),
        size=defaults.vocabulary_size,
        kind=defaults.vocabulary_kind,
    )
    vocabulary.save(output)
    print(f"Wrote {vocabulary.size:,} symbols to {output}.")


if __name__ == "__main__":
    common.run(main)
