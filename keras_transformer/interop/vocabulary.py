"""Vocabularies of other toolkits as ours: the same tokens, in an order that needs no table.

In other toolkits a model has its own ids, beside a SentencePiece model with different ids, or
beside none at all. The SentencePiece model is rewritten here so that its ids are those of the
model: the graph needs no table, and the rows of the model's matrices are put into the same order.
"""

import pathlib
from collections.abc import Sequence
from typing import Any, Literal

from google.protobuf.message import DecodeError
from sentencepiece import SentencePieceProcessor

from keras_transformer.config import WORD_START
from keras_transformer.errors import InputError
from keras_transformer.interop.foreign import Symbols, map_file
from keras_transformer.text import Vocabulary
from keras_transformer.text.vocabulary import (
    CONTROL,
    NORMAL,
    RESERVED_IDS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    model_message,
)

Side = Literal["source", "target"]

# Sums of scores that are multiples of it are exact in float32 up to 2**24 / 8192 = 2,048, which is
# a text of 150 tokens or more: SentencePiece and its copy in TensorFlow Text then choose the same
# of two segmentations that are almost equal. A coarser grid moves the scores so far that another
# segmentation wins. Of 112,743 lines of captions, news and law, 4 differ from MarianTokenizer with
# 1/1024 and one with this grid; with unrounded scores Python and the graph differ in three.
_SCORE_STEP = 1 / 8192
_SINGLE_CHARACTER = -10.0  # added to the lowest score for a character that SentencePiece lacks
_NEVER = -1e6  # added to the lowest score for tokens that are never to be chosen
_WORDS = 3  # model_type of SentencePiece
_SPECIAL = ("<s>", "</s>", "<pad>", "<blank>", "<unk>")  # never words of a text


def sentencepiece_vocabulary(path: pathlib.Path, symbols: Symbols, side: Side) -> Vocabulary:
    """Returns the vocabulary whose ids are `symbols.order` and which cuts text as `path` does.

    A token that the SentencePiece model lacks can only be generated, unless it is a single
    character or, as `>>deu<<` in front of a source, a code of a language. A piece that is no token
    still takes part when text is cut, and is the unknown token.

    Args:
        path: the SentencePiece model.
        symbols: the model's tokens.
        side: of the model.
    """
    model = read_spm(path)
    by_name = {piece.piece: piece for piece in model.pieces}
    lowest = min((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)
    pieces = _reserved_pieces(symbols)
    for token in symbols.others:
        if token in by_name:
            piece = by_name.pop(token)
            kind = CONTROL if piece.type == UNKNOWN else piece.type
            pieces.append((token, _rounded(piece.score), kind))
        elif side == "source" and token.startswith(">>") and token.endswith("<<"):
            pieces.append((WORD_START + token, 0.0, USER_DEFINED))
        elif len(token) == 1:
            pieces.append((token, _rounded(lowest + _SINGLE_CHARACTER), NORMAL))
        elif side == "source":
            pieces.append((token, 0.0, CONTROL))
        else:
            pieces.append((token, _rounded(lowest + _NEVER), UNUSED))
    num_tokens = len(pieces)
    taken = {name for name, _, _ in pieces}
    pieces += [
        (name, _rounded(piece.score), piece.type)
        for name, piece in by_name.items()
        if piece.type not in (UNKNOWN, CONTROL, UNUSED) and name not in taken
    ]
    return _vocabulary(model, pieces, num_tokens)


def make_vocabularies(
    sides: tuple[Symbols, Symbols], spms: Sequence[pathlib.Path], where: str
) -> tuple[Vocabulary, Vocabulary]:
    """Returns the vocabularies of source and target.

    Args:
        sides: the symbols of both.
        spms: their SentencePiece models; empty where text is tokens separated by spaces.
        where: names the model in errors.
    """
    if not spms:
        return word_vocabulary(sides[0], where), word_vocabulary(sides[1], where)
    source, target = spms
    return (
        sentencepiece_vocabulary(source, sides[0], "source"),
        sentencepiece_vocabulary(target, sides[1], "target"),
    )


def word_vocabulary(symbols: Symbols, where: str) -> Vocabulary:
    """Returns a vocabulary for text that is tokens separated by spaces.

    Args:
        symbols: the model's tokens.
        where: names their file in errors.

    Raises:
        InputError: the tokens are pieces of a SentencePiece model, which is not given.
    """
    if any(token.startswith(WORD_START) for token in symbols.others):
        raise InputError(
            f"the tokens of {where} are pieces of a SentencePiece model, and there is none beside "
            "it; name it with --source_spm and --target_spm"
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
    return _vocabulary(model, reserved + pieces, len(reserved) + len(pieces))


def read_spm(path: pathlib.Path) -> Any:
    """Returns a SentencePiece model; `InputError` where the file is none."""
    content = bytes(map_file(path))
    damaged = InputError(
        f"{path} is not a SentencePiece model, or a damaged one; download it again"
    )
    try:
        model = model_message().FromString(content)
        SentencePieceProcessor(model_proto=content)
    except (DecodeError, RuntimeError) as error:
        raise damaged from error
    if not model.pieces or any(type(piece.piece) is not str for piece in model.pieces):
        raise damaged  # a piece of bytes is not UTF-8
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


def _rounded(score: float) -> float:
    return round(score / _SCORE_STEP) * _SCORE_STEP


def _vocabulary(
    model: Any, pieces: Sequence[tuple[str, float, int]], num_tokens: int
) -> Vocabulary:
    del model.pieces[:]
    for name, score, kind in pieces:
        model.pieces.add(piece=name, score=score, type=kind)
    spec = model.trainer_spec
    names = [name for name, _, _ in pieces[: len(RESERVED_IDS)]]
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = RESERVED_IDS
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = names
    spec.vocab_size = num_tokens
    model.num_tokens = num_tokens
    model.ClearField("self_test_data")
    return Vocabulary(model.SerializeToString())
