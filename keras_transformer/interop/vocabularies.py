"""Vocabularies of other toolkits, rewritten so that their ids are in this package's order.

In other toolkits a model has its own ids, beside a SentencePiece model with different ids, or
beside none at all. `make_vocabularies` rewrites the SentencePiece model so that its ids are those
of the model: the graph needs no table, and the rows of matrices are put into that order.
`save_tokenizer` writes a vocabulary for other toolkits.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Literal

from google.protobuf.message import DecodeError
from sentencepiece import SentencePieceNormalizer, SentencePieceProcessor, set_min_log_level

from keras_transformer.config import WORD_START
from keras_transformer.errors import InputError
from keras_transformer.files import write_atomically
from keras_transformer.interop.reading import map_file, reading
from keras_transformer.text import Vocabulary
from keras_transformer.text.normalization import IGNORABLE, SPACES
from keras_transformer.text.sentencepiece_model import (
    CONTROL,
    NORMAL,
    RESERVED_IDS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    model_message,
    model_of_pieces,
    rounded,
)

_NEVER = -1e6  # added to the lowest score for tokens that are never to be chosen
_UNIGRAM, _WORDS = 1, 3  # of `model_type` of SentencePiece
_ONLY_ERRORS = 2  # of the log of SentencePiece
_SPECIAL = ("<s>", "</s>", "<pad>", "<blank>", "<unk>")  # never words of a text


@dataclasses.dataclass(frozen=True)
class Symbols:
    """The tokens of one side in the toolkit's order.

    Attributes:
        tokens: by id.
        unk, eos: ids of the unknown token and of the one that ends a sentence.
        pad: id of padding, None if there is none.
        start: id of the token that the decoder starts with, None if it starts with a zero vector.
    """

    tokens: Sequence[str]
    unk: int
    eos: int
    pad: int | None = None
    start: int | None = None

    def __post_init__(self) -> None:
        for name in ("unk", "eos", "pad", "start"):
            id_ = getattr(self, name)
            if id_ is not None and not 0 <= id_ < len(self.tokens):
                raise InputError(f"the id of {name} is {id_}, of {len(self.tokens):,} tokens")

    @classmethod
    def find(cls, tokens: Sequence[str], where: str, **names: str) -> "Symbols":
        """Returns symbols whose special ids are found by name, such as `eos="</s>"`."""
        ids = {token: id_ for id_, token in enumerate(tokens)}
        if missing := [name for name in names.values() if name not in ids]:
            raise InputError(f"{where} lacks {', '.join(missing)}; give the model's own vocabulary")
        if len(ids) < len(tokens):
            twice = next(token for id_, token in enumerate(tokens) if ids[token] != id_)
            raise InputError(f"{where} has {twice!r} twice; give the model's own vocabulary")
        return cls(tokens, **{key: ids[name] for key, name in names.items()})

    @property
    def is_ours(self) -> bool:
        """Whether the reserved ids are those of this package, which then wrote the model."""
        return (self.pad, self.unk, self.start, self.eos) == RESERVED_IDS

    @functools.cached_property
    def order(self) -> list[int | None]:
        """The toolkit's id of each of our ids; None for PAD or BOS if the toolkit has none.

        PAD, UNK, BOS and EOS come first, then all others in their order. The start token may also
        be generated: it keeps its place, and BOS is a copy, unless the model `is_ours`.
        """
        return [self.pad, self.unk, self.start, self.eos, *self._other_ids]

    @property
    def others(self) -> list[str]:
        """The tokens after the reserved ones, in our order."""
        return [self.tokens[id_] for id_ in self._other_ids]

    @property
    def _other_ids(self) -> list[int]:
        reserved = {self.pad, self.unk, self.eos, self.start if self.is_ours else None}
        return [id_ for id_ in range(len(self.tokens)) if id_ not in reserved]


def code_of(token: str) -> str:
    """Returns the code of a language that a token is, such as `>>deu<<`; empty if it is none."""
    code = token.removeprefix(WORD_START)
    return code if code.startswith(">>") and code.endswith("<<") else ""


def sentencepiece_vocabulary(
    path: pathlib.Path, symbols: Symbols, side: Literal["source", "target"]
) -> Vocabulary:
    """Returns the vocabulary whose ids are `symbols.order` and which cuts text as `path` does.

    Other toolkits look up the strings that SentencePiece cuts a text into. So a run of characters
    that SentencePiece does not know is a token if the vocabulary has it as a whole, and a piece
    that is no token is the unknown token. With BPE only single characters are looked up: versions
    of SentencePiece cut unknown ones in different ways. Other tokens that SentencePiece lacks can
    only be generated, but for `>>deu<<` in front of a source, a code of a language.
    """
    model = read_spm(path)
    by_name = {piece.piece: piece for piece in model.pieces}
    is_unigram = model.trainer_spec.model_type == _UNIGRAM
    known_characters = {name for name in by_name if len(name) == 1}
    lowest = min((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)
    pieces = _reserved_pieces(symbols)
    for token in symbols.others:
        is_run = is_unigram and known_characters.isdisjoint(token)
        if token in by_name:
            piece = by_name.pop(token)
            kind = CONTROL if piece.type == UNKNOWN else piece.type
            pieces.append((token, rounded(piece.score), kind))
        elif side == "source" and code_of(token):
            pieces.append((WORD_START + token, 0.0, USER_DEFINED))
        elif len(token) == 1 and not is_unigram:
            pieces.append((token, rounded(lowest - 10), NORMAL))
        elif side == "source" and not is_run:
            pieces.append((token, 0.0, CONTROL))
        else:
            pieces.append((token, rounded(lowest + _NEVER), UNUSED))
            model.looks_up_runs |= is_run
    num_tokens = len(pieces)
    taken = {name for name, _, _ in pieces}
    pieces += [
        (name, rounded(piece.score), piece.type)
        for name, piece in by_name.items()
        if piece.type not in (UNKNOWN, CONTROL, UNUSED) and name not in taken
    ]
    return Vocabulary(model_of_pieces(model, pieces, num_tokens))


def make_vocabularies(
    sides: tuple[Symbols, Symbols], spms: Sequence[pathlib.Path], where: str
) -> tuple[Vocabulary, Vocabulary]:
    """Returns the vocabularies of both sides; without `spms` text is tokens between spaces."""
    if not spms:
        return word_vocabulary(sides[0], where), word_vocabulary(sides[1], where)
    source, target = spms
    return (
        sentencepiece_vocabulary(source, sides[0], "source"),
        sentencepiece_vocabulary(target, sides[1], "target"),
    )


def word_vocabulary(symbols: Symbols, where: str) -> Vocabulary:
    """Returns a vocabulary for text that is tokens separated by spaces.

    Raises `InputError`, which names the tokens' file `where`, if they are pieces of words.
    """
    if any(token.startswith("Ġ") for token in symbols.others):  # a space of GPT-2's
        raise InputError(
            f"the tokens of {where} are pairs of bytes, which this package does not support; "
            "translate with the model's own toolkit"
        )
    if any(token.startswith(WORD_START) for token in symbols.others):
        raise InputError(
            f"the tokens of {where} are pieces of a SentencePiece model, and there is none beside "
            "it; name it with --source_spm and --target_spm of keras-transformer import_model"
        )
    pieces = [
        (token, 0.0, CONTROL) if token in _SPECIAL else (WORD_START + token, 0.0, NORMAL)
        for token in symbols.others
    ]
    model = model_message()()
    model.trainer_spec.model_type = _WORDS
    model.cuts_words_apart = True
    model.trainer_spec.unk_surface = " ⁇"
    model.normalizer_spec.name = "identity"
    reserved = _reserved_pieces(symbols)
    return Vocabulary(model_of_pieces(model, reserved + pieces, len(reserved) + len(pieces)))


def read_spm(path: pathlib.Path) -> Any:
    """Returns a SentencePiece model; `InputError` where the file is none."""
    content = bytes(map_file(path))
    with reading(path, "a SentencePiece model", DecodeError):
        model = model_message().FromString(content)
        SentencePieceProcessor(model_proto=content)
        if not model.pieces or any(type(piece.piece) is not str for piece in model.pieces):
            raise ValueError("it has no pieces, or pieces that are not UTF-8")
    return model


def _reserved_pieces(symbols: Symbols) -> list[tuple[str, float, int]]:
    """Returns the pieces of the ids 0 to 3, under names that no token has."""
    taken = set(symbols.others)

    def free(name: str) -> str:
        while name in taken:
            name = f"<{name}>"
        return name

    pad, unk, bos, eos = map(free, ("<pad>", "<unk>", "<s>", "</s>"))
    return [(pad, 0.0, CONTROL), (unk, 0.0, UNKNOWN), (bos, 0.0, CONTROL), (eos, 0.0, CONTROL)]


# The tokenizer of an export: SentencePiece alone, without what `Vocabulary` does to a text before.


def save_tokenizer(vocabulary: Vocabulary, path: pathlib.Path) -> None:
    """Writes a SentencePiece model that reads text as the vocabulary does, see `tokenizer_notes`.

    Its normalization gets rules for the spaces and the invisible characters that the vocabulary
    replaces or drops by itself.
    """
    model = model_message().FromString(vocabulary.model_bytes)
    set_min_log_level(_ONLY_ERRORS)
    normalizer = SentencePieceNormalizer(model_proto=vocabulary.model_bytes)
    missing = {
        character: result
        for characters, pattern, result in (
            (SPACES, vocabulary.space_pattern, " "),
            (IGNORABLE, vocabulary.dropped_pattern, ""),
        )
        for character in characters
        if re.match(pattern, character)
        and character not in " \0"  # no rule can have a NUL
        and normalizer.normalize(f"1{character}1") != normalizer.normalize(f"1{result}1")
    }
    if missing:
        spec = model.normalizer_spec
        rules = dict(normalizer.decompile()) if spec.precompiled_charsmap else {}
        compiled = SentencePieceNormalizer(norm_map=[*(rules | missing).items()])
        spec.precompiled_charsmap = spec.FromString(
            compiled.serialized_normalizer_spec()
        ).precompiled_charsmap
        spec.name = "user_defined"
        model.ClearField("self_test_data")
    write_atomically(path, model.SerializeToString())


def tokenizer_notes(source: Vocabulary) -> list[str]:
    """Returns in which cases an exported tokenizer reads a text unlike the vocabulary."""
    notes = []
    if source.composes:
        notes.append(
            "Normalize text to Unicode's form C before its tokenizer, which cannot put accents and "
            "vowel points in order."
        )
    if source.language_codes:
        notes.append("Begin a text with its language code, and one space behind it.")
    if source.cuts_words_apart:
        notes.append("Its SentencePiece model makes one unknown token of a run of unknown words.")
    return notes
