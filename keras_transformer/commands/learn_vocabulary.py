"""Learns a SentencePiece vocabulary from text files, plain or compressed.

It is the vocabulary that train learns from the same text with the same flags.

    keras-transformer learn_vocabulary --output=shared.model --vocabulary_size=8000 \\
        train.en train.de
"""

import itertools
import pathlib
from typing import Any

from keras_transformer.commands import command_flags, common
from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines

_OUTPUT = command_flags.define_path(
    "output", "File to write, for --vocabulary of keras-transformer train.", required=True
)
# Flags of train, and the arguments of `learn_vocabulary` that they set.
_OPTIONS = {
    "vocabulary_size": "size",
    "vocabulary_kind": "kind",
    "vocabulary_normalization": "normalization",
    "character_coverage": "character_coverage",
    "byte_fallback": "byte_fallback",
}
command_flags.define_flags(DataConfig, _OPTIONS)


def main(arguments: list[str]) -> None:
    if not arguments:
        raise InputError("no text files; name one or several after the flags")
    output = pathlib.Path(_OUTPUT.value)
    if output.exists():
        raise InputError(f"{output} already exists; choose another --output, or remove it")
    common.check_output(_OUTPUT.value)
    common.load_tensorflow()
    from keras_transformer.data.corpus import MAX_SENTENCES
    from keras_transformer.text import learn_vocabulary

    values = command_flags.given_flags(DataConfig)
    options: dict[str, Any] = {_OPTIONS[name]: value for name, value in values.items()}
    lines = itertools.chain.from_iterable(map(iterate_lines, arguments))
    vocabulary = learn_vocabulary(lines, max_sentences=MAX_SENTENCES, **options)
    vocabulary.save(output)
    print(f"Wrote {vocabulary.size:,} tokens to {output}.")
