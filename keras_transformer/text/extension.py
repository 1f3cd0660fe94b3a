"""More tokens for a vocabulary that a model knows: old tokens keep their ids, new ones follow.

A text in which no new token occurs is cut as before.
"""

from collections.abc import Sequence
from typing import Any

from keras_transformer.config import UNK_ID, WORD_START
from keras_transformer.config.data import VocabularyKind
from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import NORMAL, USER_DEFINED, Vocabulary, model_message

_KINDS: dict[int, VocabularyKind] = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
# The score of an added token among unigram pieces, whose scores are log-probabilities: no other
# segmentation gains as much by a piece that reaches over an end of the token.
_TOKEN_SCORE = 100.0


def kind_of(vocabulary: Vocabulary) -> VocabularyKind:
    """Returns what the tokens of a vocabulary are, an imported one too."""
    model = model_message().FromString(vocabulary.model_bytes)
    return _KINDS[model.trainer_spec.model_type]


def extend_vocabulary(
    vocabulary: Vocabulary, learned: Vocabulary | None = None, tokens: Sequence[str] = ()
) -> Vocabulary:
    """Returns a vocabulary with the same ids and more tokens after them.

    Args:
        vocabulary: of any kind.
        learned: another one of the same kind, whose pieces are added where they are missing.
            Byte-pair merges of its own come after all old ones.
        tokens: text that is one token each, such as "<de>", wherever it occurs; in a vocabulary of
            words where it is a word.

    Raises:
        InputError: a token cannot be one; or the vocabulary was imported with pieces of its
            SentencePiece model that are not tokens of the model.

    Example:
        >>> vocabulary = extend_vocabulary(vocabulary, tokens=["<de>"])
        >>> vocabulary.pieces(vocabulary.encode(["<de> ein Hund"])[0])
        ['▁', '<de>', '▁ein', '▁Hund']
    """
    if vocabulary.has_more_pieces:
        raise InputError(
            "this imported vocabulary cannot be extended: its SentencePiece model has pieces that "
            "are not tokens of the model, and a new token would take the id of one; train with "
            "the vocabulary as it is"
        )
    model = model_message().FromString(vocabulary.model_bytes)
    kind = kind_of(vocabulary)
    known = {piece.piece for piece in model.pieces}
    for token in tokens:
        _check_token(vocabulary, token)
    names = [WORD_START + token if kind == "word" else token for token in tokens]
    for index, (token, name) in enumerate(zip(tokens, names, strict=True)):
        if name in known or name in names[:index]:
            raise InputError(f"{token!r} is a token of the vocabulary already; do not add it again")
    lowest = min((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)
    new: list[tuple[str, float, int]] = []
    for piece in _normal_pieces(learned):
        if piece.piece not in known and piece.piece not in names:
            # Merges have the order of their scores. Of unigram pieces the lowest score decides
            # what an unknown character costs, which must stay as it was.
            score = lowest - len(new) - 1 if kind == "bpe" else max(piece.score, lowest)
            new.append((piece.piece, score, NORMAL))
    # Text of unigram pieces, and of words, is not always cut at pieces of the type for this.
    has_type = kind in ("bpe", "char")
    of_tokens = (0.0, USER_DEFINED) if has_type else (_TOKEN_SCORE, NORMAL)
    new += [(name, *of_tokens) for name in names]
    for name, score, type_ in new:
        model.pieces.add(piece=name, score=score, type=type_)
    model.trainer_spec.vocab_size = len(model.pieces)
    if model.num_tokens:
        model.num_tokens = len(model.pieces)
    model.ClearField("self_test_data")
    return Vocabulary(model.SerializeToString()) if new else vocabulary


def cut_new_tokens(old: Vocabulary, new: Vocabulary) -> list[list[int]]:
    """Returns the old tokens that spell each token by which an extended vocabulary is larger.

    Args:
        old: the vocabulary.
        new: what `extend_vocabulary` made of it.

    Returns:
        For each id from `old.size` on one or more old ids; the unknown token where `old` cannot
        spell it.
    """
    model = model_message().FromString(old.model_bytes)
    # A piece is normalized, and it begins a word only if "▁" says so.
    model.normalizer_spec.ClearField("precompiled_charsmap")
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    pieces = new.pieces(range(old.size, new.size))
    return [ids or [UNK_ID] for ids in Vocabulary(model.SerializeToString()).encode(pieces)]


def _normal_pieces(vocabulary: Vocabulary | None) -> list[Any]:
    if vocabulary is None:
        return []
    pieces = model_message().FromString(vocabulary.model_bytes).pieces
    return [piece for piece in pieces if piece.type == NORMAL]


def _check_token(vocabulary: Vocabulary, token: str) -> None:
    """Raises `InputError` unless a text with this token still has it after normalization."""
    if not token or WORD_START in token or len(token.split()) != 1 or token != token.strip():
        raise InputError(f"a token to add must be text without spaces, got {token!r}; change it")
    if (normalized := vocabulary.normalize(token)) != token:
        raise InputError(
            f"the token {token!r} would never be found: normalization turns it into "
            f"{normalized!r}; add that instead"
        )
