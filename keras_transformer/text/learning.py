"""Learns a subword vocabulary from sentences with SentencePiece's trainer.

The result is the same bytes for the same sentences and options on every machine.
"""

import contextlib
import functools
import io
import itertools
import random
import re
import tempfile
import unicodedata
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
from keras_transformer.config.data import Normalization, VocabularyKind
from keras_transformer.errors import InputError, check_choice, check_unicode
from keras_transformer.text.vocabulary import (
    RESERVED_IDS,
    Vocabulary,
    check_not_one_text,
    model_message,
)

_NUM_BYTES = 256  # tokens that byte_fallback adds
_RULE_NAMES = {"nfkc": "nmt_nfkc", "identity": "identity"}  # of the trainer's own rules
# Longer lines are split, because the trainer silently skips them, its unigram model fails on long
# lines without spaces, and a token holds 8,000 bytes, while NFKC makes up to 18 of a character.
_MAX_LINE_CHARACTERS = 400
_MAX_BYTES_A_CHARACTER = 4
_TRAINER_UNKNOWN = "\u2585"  # the trainer skips every line that holds this character
# Unigram scores are sums over threads, so they depend on this number; fixed, no machine differs.
_NUM_TRAINER_THREADS = 16
_ONLY_ERRORS = 2  # log level
_SCORE_STEP = 1 / 16  # nats


def learn_vocabulary(
    sentences: Iterable[str],
    *,
    size: int | None = None,
    kind: VocabularyKind = "bpe",
    normalization: Normalization = "nfkc",
    character_coverage: float = 1.0,
    byte_fallback: bool = False,
    max_sentences: int | None = None,
    seed: int = 0,
    symbols: Sequence[str] = (),
) -> Vocabulary:
    """Learns a vocabulary; the same input gives the same bytes.

    Args:
        sentences: the text to learn from, read once; line ends are dropped.
        size: number of tokens, the four reserved ones included. "bpe" and "unigram" give exactly
            that many, "char" and "word" the most frequent ones, fewer if the text has fewer.
            None means 8,000, or as many as the text supports if these are fewer.
        kind: "bpe" (Sennrich et al. 2016, the paper's choice), "unigram" (Kudo 2018), "char", or
            "word" for words between spaces, for example of tokenized text ("un@@ happy").
        normalization: "nfkc" is Unicode NFKC that also drops control characters, "nfc" composes
            characters only, see `nfc_rules`, "identity" leaves them alone. All turn runs of spaces
            into one and trim the ends.
        character_coverage: share of all characters that get a token; the rarest become unknown.
        byte_fallback: spells unknown characters as UTF-8 bytes (256 more tokens).
        max_sentences: learn from a random sample of this many, which bounds the memory.
        seed: of that sample.
        symbols: words that are one token each, however rare.

    Raises:
        InputError: an option is out of range, there is no text, or the text cannot support `size`.
    """
    check_not_one_text(sentences)
    check_choice("kind", kind, get_args(VocabularyKind))
    check_choice("normalization", normalization, get_args(Normalization))
    is_exact = size is not None and kind in ("bpe", "unigram")
    size = DEFAULT_VOCABULARY_SIZE if size is None else size
    num_reserved = len(RESERVED_IDS) + (_NUM_BYTES if byte_fallback else 0)
    if size <= num_reserved:
        raise InputError(
            f"size must be more than the {num_reserved} reserved tokens, got {size}; raise it"
        )
    if not 0 < character_coverage <= 1:
        raise InputError(
            f"character_coverage must be above 0 and at most 1, got {character_coverage}"
        )
    if max_sentences is not None:
        if max_sentences < 1:
            raise InputError(f"max_sentences must be at least 1, got {max_sentences}")
        sentences = _sample(sentences, max_sentences, random.Random(seed))
    model = io.BytesIO()
    reader_errors: list[Exception] = []
    try:
        with _normalization_options(normalization) as normalization_options:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_training_lines(sentences, reader_errors),
                model_writer=model,
                model_type=kind,
                vocab_size=size,
                hard_vocab_limit=is_exact,
                character_coverage=character_coverage,
                byte_fallback=byte_fallback,
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
        if (advice := _advice(str(error))) is None:
            raise
        message = f"a {kind} vocabulary of size {size} was asked for, but {advice}"
        raise InputError(message) from error
    return Vocabulary(_portable(model.getvalue(), kind))


@contextlib.contextmanager
def _normalization_options(normalization: str) -> Iterator[dict[str, Any]]:
    """Yields the options of the trainer for a normalization."""
    if normalization in _RULE_NAMES:
        yield {"normalization_rule_name": _RULE_NAMES[normalization]}
        return
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".tsv") as file:
        file.write(nfc_rules())
        file.flush()
        yield {"normalization_rule_tsv": file.name}


@functools.cache
def nfc_rules() -> str:
    """Returns Unicode's normalization form C as rules for SentencePiece, which lacks it.

    A vocabulary with these rules composes characters inside an exported graph too. Each line is a
    spelling, a tab and its normal form, both as hexadecimal code points. A spelling is a character
    that NFC replaces, or a way to write a composed character: its base, composed with none or some
    of its marks, then the other marks in any order. Spellings with an intervening mark that
    composes with nothing are not covered; `unicodedata` normalizes them.
    """
    compose = functools.partial(unicodedata.normalize, "NFC")
    rules: dict[str, str] = {}
    for character in map(chr, itertools.chain(range(0xD800), range(0xE000, 0x110000))):
        if (composed := compose(character)) != character:
            rules[character] = composed
            continue
        base, *marks = list(unicodedata.normalize("NFD", character))
        for order in itertools.permutations(marks):
            for count in range(len(order)):
                spelling = compose(base + "".join(order[:count])) + "".join(order[count:])
                if compose(spelling) == character:
                    rules[spelling] = character
    lines = (
        "\t".join(" ".join(f"{ord(c):X}" for c in text) for text in rule) for rule in rules.items()
    )
    return "".join(f"{line}\n" for line in lines)


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
    if kind == "unigram":
        for piece in model.pieces:
            piece.score = round(piece.score / _SCORE_STEP) * _SCORE_STEP
    return bytes(model.SerializeToString())


def _sample(sentences: Iterable[str], count: int, generator: random.Random) -> list[str]:
    """Returns `count` sentences, each equally likely to be there (Vitter 1985, algorithm R)."""
    sample: list[str] = []
    for index, sentence in enumerate(sentences):
        if index < count:
            sample.append(sentence)
        elif (slot := generator.randrange(index + 1)) < count:
            sample[slot] = sentence
    return sample


def _training_lines(sentences: Iterable[str], errors: list[Exception]) -> Iterator[str]:
    """Yields sentences in a form that the trainer does not skip, cut before spaces if too long.

    Errors of reading are kept in `errors`, since the trainer passes on only their text.
    """
    try:
        for sentence in sentences:
            check_unicode("text", sentence)
            line = sentence.rstrip("\r\n").replace(_TRAINER_UNKNOWN, " ")
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


def _advice(trainer_message: str) -> str | None:
    """Returns the cause of a trainer error and how to fix it; None for an unknown error."""
    if match := re.search(r"Vocabulary size too high .*<= (\d+)", trainer_message):
        return f"this text supports at most {match[1]}; use {match[1]} or less, or give more text"
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", trainer_message):
        return (
            f"the characters of this text need at least {match[1]}; use {match[1]} or more, or "
            "lower character_coverage"
        )
    if "sentences_.empty()" in trainer_message or "all_chars_count" in trainer_message:
        return "there is no text to learn from; give at least one sentence"
    return None
