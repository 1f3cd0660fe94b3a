"""Learning a vocabulary from sentences, with SentencePiece's trainer."""

import contextlib
import hashlib
import heapq
import io
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import sentencepiece

from keras_transformer.config import (
    BOS_ID,
    DEFAULT_VOCABULARY_SIZE,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    WORD_START,
)
from keras_transformer.config.data import MIN_COVERAGE, Normalization, VocabularyKind
from keras_transformer.errors import (
    InputError,
    as_text,
    check_choice,
    check_sentences,
    check_unicode,
)
from keras_transformer.text.normalization import (
    COMPOSED_NFKC,
    CONTROLS,
    IGNORABLE,
    JOINERS,
    LIKE_SPACES,
    any_of,
    compose,
    rules,
)
from keras_transformer.text.sentencepiece_model import RESERVED_IDS, model_message
from keras_transformer.text.vocabulary import Text, Vocabulary

_MAX_TOKENS = 2**31 - 1  # SentencePiece's integers
_NUM_BYTES = 256  # tokens that byte_fallback adds
_RULE_NAMES = {"nfkc": "nmt_nfkc", "identity": "identity"}  # of the trainer's own rules
# Longer lines are split, because the trainer silently skips them, its unigram model fails on long
# lines without spaces, and a token holds 8,000 bytes, while NFKC makes up to 18 of a character.
_MAX_LINE_CHARACTERS = 400
_MAX_BYTES_A_CHARACTER = 4
# The trainer skips every line that holds this character: another one, of no text, stands for it.
_TRAINER_UNKNOWN, _SUBSTITUTE = "\u2585", "\ufdd0"
# What nobody sees gets no token, except joiners.
_DROPPED = re.compile(any_of(c for c in IGNORABLE if c not in JOINERS))
_CONTROLS, _LIKE_SPACES = re.compile(any_of(CONTROLS)), re.compile(any_of(LIKE_SPACES))
# The trainer drops the names of its tokens from text: they are taken apart; within words another
# character, of no text, stands for "<".
_LESS = "\ufdd1"
_NAMES_OF_TOKENS = re.compile("<(?=(?:pad|unk|s|/s|0x[0-9A-F]{2})>)")
# Unigram scores are sums over threads, so they depend on this number; fixed, no machine differs.
_NUM_TRAINER_THREADS = 16
_ONLY_ERRORS = 2  # log level
_SCORE_STEP = 1 / 16  # nats


def learn_vocabulary(
    sentences: Iterable[Text],
    *,
    size: int | None = None,
    kind: VocabularyKind = "bpe",
    normalization: Normalization = "nfc",
    character_coverage: float = 1.0,
    byte_fallback: bool = False,
    max_sentences: int | None = None,
    symbols: Sequence[str] = (),
) -> Vocabulary:
    """Learns a vocabulary; the same input gives the same bytes.

    Args:
        sentences: the text to learn from, str or UTF-8 in bytes, read once; line ends are dropped.
        size: number of tokens, the four reserved ones included. "bpe" and "unigram" give exactly
            that many, "char" and "word" the most frequent ones, fewer if the text has fewer.
            None means 8,000, or as many as the text supports if these are fewer.
        kind: "bpe" (Sennrich et al. 2016, the paper's choice), "unigram" (Kudo 2018), "char", or
            "word" for words between spaces, for example of tokenized text ("un@@ happy").
        normalization: what a model reads and writes. "nfc" composes letters and marks, makes spaces
            of no-break spaces, and keeps all else; "identity" does neither; "nfkc" is Unicode NFKC
            as other toolkits have it, which rewrites full-width characters, "½", "²", an ellipsis
            and Persian's non-joiner, so that the model can write none of these. All drop
            invisible characters but joiners, make spaces of tabs, and strip extra spaces.
        character_coverage: share of all characters that get a token, from 0.98 to 1; the rarest
            become unknown.
        byte_fallback: spells unknown characters as UTF-8 bytes (256 more tokens).
        max_sentences: learn from a random sample of this many, which bounds the memory and depends
            on the sentences alone, not on their order.
        symbols: words that are one token each, however rare, in the form that text is read in.

    Raises:
        InputError: an option is out of range, there is no text, or the text cannot support `size`.
    """
    check_sentences("sentences", sentences)
    check_choice("kind", kind, get_args(VocabularyKind))
    check_choice("normalization", normalization, get_args(Normalization))
    is_exact = size is not None and kind in ("bpe", "unigram")
    size = DEFAULT_VOCABULARY_SIZE if size is None else size
    num_reserved = len(RESERVED_IDS) + (_NUM_BYTES if byte_fallback else 0)
    if not num_reserved < size <= _MAX_TOKENS:
        raise InputError(f"size must be from {num_reserved + 1} to {_MAX_TOKENS:,}, got {size:,}")
    if not MIN_COVERAGE <= character_coverage <= 1:
        raise InputError(
            f"character_coverage must be from {MIN_COVERAGE} to 1, got {character_coverage}"
        )
    check_sentences("symbols", symbols)
    for symbol in symbols:
        if not symbol or _DROPPED.search(symbol) or symbol != "".join(compose(symbol).split()):
            raise InputError(f"symbols must be words in normalization form C, got {symbol!r}")
    texts: Iterable[str] = map(as_text, sentences)
    if max_sentences is not None:
        texts = heapq.nsmallest(max_sentences, texts, key=_hash)
    model = io.BytesIO()
    reader_errors: list[Exception] = []
    try:
        with _normalization_options(normalization) as normalization_options:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_training_lines(
                    texts,
                    reader_errors,
                    composes=normalization != "identity",
                    less=_LESS if kind == "word" else "< ",
                ),
                model_writer=model,
                model_type=kind,
                vocab_size=size,
                hard_vocab_limit=is_exact,
                character_coverage=character_coverage,
                byte_fallback=byte_fallback,
                split_digits=True,  # a model copies numbers that it has not seen, digit by digit
                pad_id=PAD_ID,
                unk_id=UNK_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                # A word's token includes the space before it, an unknown character's does not.
                unk_surface=" ⁇" if kind == "word" else "⁇",
                user_defined_symbols=[WORD_START + symbol for symbol in symbols],
                max_sentence_length=_MAX_LINE_CHARACTERS * _MAX_BYTES_A_CHARACTER,
                num_threads=_NUM_TRAINER_THREADS,
                minloglevel=_ONLY_ERRORS,
                **normalization_options,
            )
    except RuntimeError as error:
        if reader_errors:
            raise reader_errors[0] from None
        # SentencePiece's reason follows the condition that failed, "file(line) [condition] reason".
        reason = str(error).rpartition("] ")[2] or "there is no text to learn from"
        raise InputError(f"cannot learn a {kind} vocabulary of size {size}: {reason}") from error
    return Vocabulary(_portable(model.getvalue(), kind))


@contextlib.contextmanager
def _normalization_options(normalization: str) -> Iterator[dict[str, Any]]:
    """Yields the options of the trainer for a normalization."""
    if normalization in _RULE_NAMES:
        yield {"normalization_rule_name": _RULE_NAMES[normalization]}
        return
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".tsv") as file:
        file.write(rules())
        file.flush()
        yield {"normalization_rule_tsv": file.name}


def _portable(model_bytes: bytes, kind: str) -> bytes:
    """Returns the model in bytes that depend on the text and the options alone.

    A model names the file that its rules came from. The best segmentation of a unigram model is the
    one with the largest sum of log-probabilities, and where two are almost equal, float32 rounding
    makes SentencePiece and the copy of it in TensorFlow Text choose differently. Sums of scores
    that are rounded to multiples of `_SCORE_STEP` are exact up to 2**24 * _SCORE_STEP, enough for a
    line of 100,000 characters, so both agree; the log-likelihood of news text changed by 4e-6 of
    itself.
    """
    model = model_message().FromString(model_bytes)
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    if model.normalizer_spec.name == _RULE_NAMES["nfkc"]:
        model.normalizer_spec.name = COMPOSED_NFKC
    for piece in model.pieces:
        piece.piece = piece.piece.replace(_SUBSTITUTE, _TRAINER_UNKNOWN).replace(_LESS, "<")
    if kind == "unigram":
        for piece in model.pieces:
            piece.score = round(piece.score / _SCORE_STEP) * _SCORE_STEP
    return bytes(model.SerializeToString())


def _hash(sentence: str) -> bytes:
    data = sentence.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8, salt=bytes(8)).digest()


def _training_lines(
    sentences: Iterable[str], errors: list[Exception], *, composes: bool, less: str
) -> Iterator[str]:
    """Yields sentences in a form that the trainer does not skip, split before spaces if too long.

    They are normalized as `Vocabulary.visible` does where no token is known. Errors of reading are
    kept in `errors`, since the trainer passes on only their text.
    """
    try:
        for sentence in sentences:
            check_unicode("text", sentence)
            line = (_LIKE_SPACES if composes else _CONTROLS).sub(" ", _DROPPED.sub("", sentence))
            line = compose(line) if composes else line
            line = _NAMES_OF_TOKENS.sub(less, line).replace(_TRAINER_UNKNOWN, _SUBSTITUTE)
            start = 0
            while len(line) - start > _MAX_LINE_CHARACTERS:
                limit = start + _MAX_LINE_CHARACTERS
                space = line.rfind(" ", start, limit)
                end = space if space > start else limit
                yield line[start:end]
                start = end
            yield line[start:]
    except Exception as error:
        errors.append(error)
        raise
