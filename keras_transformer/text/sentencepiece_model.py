"""The file of a SentencePiece model, a protocol buffer: its fields, and models made of pieces.

The fields are those that this package uses; the others of a file are preserved.
"""

import functools
from collections.abc import Sequence
from typing import Any

import sentencepiece

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.protobuf import Fields, message_classes

RESERVED_IDS = (PAD_ID, UNK_ID, BOS_ID, EOS_ID)
RESERVED_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")  # SentencePiece's names
# Types of pieces.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Sums of scores that are multiples of it are exact in float32 up to 2**24 / 8192 = 2,048, which is
# a text of 150 tokens or more: SentencePiece and its copy in TensorFlow Text then choose the same
# of two segmentations that are almost equal. A coarser grid moves the scores so far that another
# segmentation wins. Of 112,743 lines of captions, news and law, 4 differ from MarianTokenizer with
# 1/1024 and one with this grid; with unrounded scores Python and the graph differ in three.
_FINE_SCORE_STEP = 1 / 8192


def rounded(score: float) -> float:
    """Returns a score of a published vocabulary on that grid."""
    return round(score / _FINE_SCORE_STEP) * _FINE_SCORE_STEP


_MESSAGES: dict[str, Fields] = {
    "Piece": {"piece": (1, "string"), "score": (2, "float"), "type": (3, "int32", "1")},
    "TrainerSpec": {
        "model_type": (3, "int32", "1"),  # 1 unigram, 2 BPE, 3 words, 4 characters
        "vocab_size": (4, "int32"),
        "unk_id": (40, "int32"),
        "bos_id": (41, "int32", "1"),
        "eos_id": (42, "int32", "2"),
        "pad_id": (43, "int32", "-1"),
        "unk_surface": (44, "string"),
        "unk_piece": (45, "string"),
        "bos_piece": (46, "string"),
        "eos_piece": (47, "string"),
        "pad_piece": (48, "string"),
    },
    "NormalizerSpec": {
        "name": (1, "string"),
        "precompiled_charsmap": (2, "bytes"),
        "normalization_rule_tsv": (6, "string"),  # the file that the rules came from
    },
    "Model": {
        "pieces": (1, "Piece*"),
        "trainer_spec": (2, "TrainerSpec"),
        "normalizer_spec": (3, "NormalizerSpec"),
        "self_test_data": (4, "bytes"),
        # Ours, where SentencePiece leaves room for extensions: see `Vocabulary`.
        "num_tokens": (200, "int32"),
        "cuts_words_apart": (201, "bool"),
        "looks_up_runs": (203, "bool"),
    },
}


@functools.cache
def model_message() -> Any:
    """Returns the class of a SentencePiece model's protocol buffer."""
    return message_classes("sentencepiece", _MESSAGES)["Model"]


def model_of_pieces(model: Any, pieces: Sequence[tuple[str, float, int]], num_tokens: int) -> bytes:
    """Returns a SentencePiece model, which is changed, with other pieces, for a `Vocabulary`.

    Each has a name, a score and a type; the first four are padding, unknown, BOS and EOS.
    """
    del model.pieces[:]
    for name, score, type_ in pieces:
        model.pieces.add(piece=name, score=score, type=type_)
    spec = model.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = RESERVED_IDS
    names = [name for name, _, _ in pieces[: len(RESERVED_IDS)]]
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = names
    spec.vocab_size = model.num_tokens = num_tokens
    model.ClearField("self_test_data")
    return bytes(model.SerializeToString())


def special_ids(processor: sentencepiece.SentencePieceProcessor) -> tuple[int, ...]:
    """Returns the ids of padding, unknown, BOS and EOS; -1 for one that a model lacks."""
    names = ("pad_id", "unk_id", "bos_id", "eos_id")
    return tuple(getattr(processor, name)() for name in names)


def with_reserved_ids(content: bytes) -> bytes:
    """Returns a SentencePiece model whose reserved pieces come first; faults stay as they are."""
    try:
        ids = special_ids(sentencepiece.SentencePieceProcessor(model_proto=content))
    except RuntimeError:
        return content
    if ids == RESERVED_IDS:
        return content
    model = model_message().FromString(content)
    pieces = [(piece.piece, rounded(piece.score), piece.type) for piece in model.pieces]
    taken = {name for name, _, _ in pieces}
    reserved = []
    for id_, name in zip(ids, RESERVED_TOKENS, strict=True):
        while id_ < 0 and name in taken:
            name = f"<{name}>"
        reserved.append((name, 0.0, CONTROL) if id_ < 0 else pieces[id_])
    others = [piece for number, piece in enumerate(pieces) if number not in ids]
    return model_of_pieces(model, reserved + others, len(reserved + others))
