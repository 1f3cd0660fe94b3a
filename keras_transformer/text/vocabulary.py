"""Subword vocabularies: learn one from sentences, keep it in a file, encode and decode with it.

Comes in: sentences as `str`. Goes out: lists of ids, where `PAD_ID`, `UNKNOWN_ID`, `START_ID`
and `END_ID` are reserved in every vocabulary. The work is done by SentencePiece (Kudo and
Richardson 2018); TensorFlow is not needed here, `Tokenizer` does the same inside a graph.
"""

import functools
import hashlib
import io
import os
import pathlib
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

import sentencepiece
from typing_extensions import Self

from keras_transformer.config import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from keras_transformer.errors import InputError

Kind = Literal["bpe", "unigram", "char", "word"]
Normalization = Literal["nfkc", "identity"]

_RESERVED_IDS = (PAD_ID, UNKNOWN_ID, START_ID, END_ID)
_NUM_BYTES = 256  # symbols that byte_fallback adds
_RULE_NAMES = {"nfkc": "nmt_nfkc", "identity": "identity"}

# Longer lines are cut, because the trainer skips them without a word and its unigram model
# overflows on them.
_MAX_LINE_CHARACTERS = 4096
_MAX_BYTES_A_CHARACTER = 4
# The trainer skips every line that holds this character, which it uses for "unknown" inside.
_TRAINER_UNKNOWN = "\u2585"
# Unigram scores are sums over threads, so they depend on the number of threads, not on the machine.
_NUM_TRAINER_THREADS = 16
_ONLY_ERRORS = 2  # log level
_SPACE = "\u2581"  # how SentencePiece spells the space inside a piece


class Vocabulary:
    """Symbols with their ids: encodes sentences into ids and decodes ids into sentences.

    Args:
        model_bytes: a serialized SentencePiece model whose ids 0 to 3 are padding, unknown, start
            and end, as `learn_vocabulary` gives it.

    Attributes:
        model_bytes: as given.
        size: number of symbols, the reserved ones included, V.

    Raises:
        InputError: the bytes are not such a model.

    Example:
        >>> vocabulary = learn_vocabulary(["ein Hund", "ein Kind"], size=20, kind="char")
        >>> vocabulary.decode(vocabulary.encode(["ein  Kind"]))
        ['ein Kind']
    """

    def __init__(self, model_bytes: bytes) -> None:
        self.model_bytes = model_bytes
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model_bytes)
        except RuntimeError as error:
            raise InputError("not a SentencePiece model, or a damaged one") from error
        self.size: int = self._processor.get_piece_size()
        ids = tuple(
            getattr(self._processor, name)() for name in ("pad_id", "unk_id", "bos_id", "eos_id")
        )
        if self.size == 0 or ids != _RESERVED_IDS:
            raise InputError(
                f"the SentencePiece model must give the ids {_RESERVED_IDS} to padding, unknown, "
                f"start and end, but gives {ids}; learn it anew with learn_vocabulary"
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads the file that `save` wrote; `InputError` names a missing or damaged one."""
        try:
            return cls(pathlib.Path(path).read_bytes())
        except (OSError, InputError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"cannot read the vocabulary {os.fspath(path)}: {reason}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to `path`, whose folder must exist; never leaves half a file there."""
        path = pathlib.Path(path)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            aside.write_bytes(self.model_bytes)
            aside.replace(path)
        except OSError as error:
            raise InputError(
                f"cannot write the vocabulary {path}: {error.strerror}; "
                "give a path in a folder that exists and can be written to"
            ) from error
        finally:
            aside.unlink(missing_ok=True)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the model in hexadecimal: the same vocabulary, the same fingerprint."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    def encode(self, texts: Sequence[str], *, num_threads: int = -1) -> list[list[int]]:
        """Returns the ids of each text, without start and end.

        Args:
            texts: any number of sentences.
            num_threads: threads over which the sentences are spread; -1 means one for each core.

        Raises:
            InputError: a text holds a lone surrogate and so is not Unicode.
        """
        _check_not_one_text(texts)
        try:
            return self._processor.encode(list(texts), out_type=int, num_threads=num_threads)  # type: ignore[no-any-return]
        except Exception:
            for text in texts:
                _check_unicode(text)
            raise

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each row of ids up to its first end; padding and start are skipped.

        The unknown symbol reads "⁇".

        Raises:
            InputError: an id is outside this vocabulary.
        """
        return [self._processor.decode(self._content(row)).removeprefix(" ") for row in ids]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the symbols with these ids, "▁" standing for the space; all are kept.

        Raises:
            InputError: an id is outside this vocabulary.
        """
        return [self._processor.id_to_piece(self._checked(id_)) for id_ in ids]

    def normalize(self, text: str) -> str:
        """Returns the text as decoding gives it back where every character is known."""
        _check_unicode(text)
        return self._processor.normalize(text).replace(_SPACE, " ").lstrip(" ")  # type: ignore[no-any-return]

    def _content(self, row: Sequence[int]) -> list[int]:
        content = []
        for id_ in row:
            if id_ == END_ID:
                break
            if id_ not in (PAD_ID, START_ID):
                content.append(self._checked(id_))
        return content

    def _checked(self, id_: int) -> int:
        if not 0 <= id_ < self.size:
            raise InputError(f"ids of this vocabulary are 0 to {self.size - 1}, got {id_}")
        return int(id_)


def learn_vocabulary(
    sentences: Iterable[str],
    *,
    size: int,
    kind: Kind = "bpe",
    normalization: Normalization = "nfkc",
    character_coverage: float = 1.0,
    byte_fallback: bool = False,
    max_sentences: int | None = None,
    seed: int = 0,
) -> Vocabulary:
    """Learns a vocabulary; the same input gives the same bytes.

    Args:
        sentences: the text to learn from, read once; line ends are dropped.
        size: symbols wanted, the four reserved ones included. "bpe" and "unigram" give exactly
            so many, "char" and "word" the most frequent ones and fewer where the text has fewer.
        kind: "bpe" (Sennrich et al. 2016, the paper's choice), "unigram" (Kudo 2018), "char", or
            "word" for whatever stands between spaces, such as the pieces of tokenized text
            ("un@@ happy").
        normalization: "nfkc" is Unicode NFKC that also drops control characters, "identity" leaves
            characters alone. Both turn runs of spaces into one and trim the ends.
        character_coverage: share of all characters that get a symbol; the rarest become unknown.
        byte_fallback: spells unknown characters as UTF-8 bytes (256 more symbols).
        max_sentences: learn from a random sample of this many, which bounds the memory.
        seed: of that sample.

    Raises:
        InputError: an option is out of range, there is no text, or the text cannot support `size`.
    """
    _check_not_one_text(sentences)
    _check_options(size, kind, normalization, character_coverage, byte_fallback, max_sentences)
    if max_sentences is not None:
        sentences = _sample(sentences, max_sentences, random.Random(seed))
    model = io.BytesIO()
    reader_errors: list[Exception] = []
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_training_lines(sentences, reader_errors),
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=kind in ("bpe", "unigram"),
            normalization_rule_name=_RULE_NAMES[normalization],
            character_coverage=character_coverage,
            byte_fallback=byte_fallback,
            pad_id=PAD_ID,
            unk_id=UNKNOWN_ID,
            bos_id=START_ID,
            eos_id=END_ID,
            # A word's symbol includes the space before it, an unknown character's does not.
            unk_surface=" ⁇" if kind == "word" else "⁇",
            max_sentence_length=_MAX_LINE_CHARACTERS * _MAX_BYTES_A_CHARACTER,
            num_threads=_NUM_TRAINER_THREADS,
            minloglevel=_ONLY_ERRORS,
        )
    except RuntimeError as error:
        if reader_errors:
            raise reader_errors[0] from None
        message = _explain(str(error), size, kind)
        if message is None:
            raise
        raise InputError(message) from error
    return Vocabulary(model.getvalue())


def _check_options(
    size: int,
    kind: str,
    normalization: str,
    character_coverage: float,
    byte_fallback: bool,
    max_sentences: int | None,
) -> None:
    for name, value, choices in (
        ("kind", kind, get_args(Kind)),
        ("normalization", normalization, get_args(Normalization)),
    ):
        if value not in choices:
            raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    num_reserved = len(_RESERVED_IDS) + (_NUM_BYTES if byte_fallback else 0)
    if size <= num_reserved:
        raise InputError(
            f"size must be more than the {num_reserved} reserved symbols, got {size}; ask for more"
        )
    if not 0 < character_coverage <= 1:
        raise InputError(
            f"character_coverage must be above 0 and at most 1, got {character_coverage}"
        )
    if max_sentences is not None and max_sentences < 1:
        raise InputError(f"max_sentences must be at least 1, got {max_sentences}")


def _check_not_one_text(texts: Iterable[str]) -> None:
    if isinstance(texts, str):
        raise InputError(f"expected a sequence of sentences, got one: {texts[:40]!r}; use a list")


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"text is not Unicode, lone surrogate at character {error.start} of {text[:40]!r}; "
            "read the file as UTF-8 with errors='replace'"
        ) from error


def _sample(sentences: Iterable[str], count: int, generator: random.Random) -> list[str]:
    """Returns `count` sentences, each equally likely to be there (Vitter 1985, algorithm R)."""
    sample: list[str] = []
    for index, sentence in enumerate(sentences):
        if index < count:
            sample.append(sentence)
        elif (place := generator.randrange(index + 1)) < count:
            sample[place] = sentence
    return sample


def _training_lines(sentences: Iterable[str], errors: list[Exception]) -> Iterator[str]:
    """Yields sentences in a form that the trainer does not skip, cut where they are too long.

    An error while reading the sentences is kept in `errors`: the trainer passes on its text only.
    """
    try:
        for sentence in sentences:
            _check_unicode(sentence)
            yield from _cut(sentence.rstrip("\r\n").replace(_TRAINER_UNKNOWN, " "))
    except Exception as error:
        errors.append(error)
        raise


def _cut(line: str) -> Iterator[str]:
    """Yields the line in parts of at most `_MAX_LINE_CHARACTERS`, cut before spaces if any."""
    start = 0
    while len(line) - start > _MAX_LINE_CHARACTERS:
        limit = start + _MAX_LINE_CHARACTERS
        space = line.rfind(" ", start, limit)
        end = space if space > start else limit
        yield line[start:end]
        start = end
    yield line[start:]


def _explain(trainer_message: str, size: int, kind: str) -> str | None:
    """Returns what to do about the trainer's complaint, None for one that is not known."""
    asked = f"a {kind} vocabulary of size {size} was asked for"
    if match := re.search(r"Vocabulary size too high .*<= (\d+)", trainer_message):
        return (
            f"{asked}, but this text supports at most {match[1]}; "
            f"ask for {match[1]} or less, or give more text"
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", trainer_message):
        return (
            f"{asked}, but the characters of this text need at least {match[1]}; "
            f"ask for {match[1]} or more, or lower character_coverage"
        )
    if "sentences_.empty()" in trainer_message or "all_chars_count" in trainer_message:
        return f"{asked}, but there is no text to learn it from; give at least one sentence"
    return None
