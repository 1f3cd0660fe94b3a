"""A subword vocabulary: kept in a file, it encodes sentences and decodes ids.

Comes in: sentences as `str`. Goes out: lists of ids, where `PAD_ID`, `UNK_ID`, `BOS_ID`
and `EOS_ID` are reserved in every vocabulary. The work is done by SentencePiece (Kudo and
Richardson 2018); TensorFlow is not needed here, `Tokenizer` does the same inside a graph.
"""

import functools
import hashlib
import itertools
import os
import pathlib
from collections.abc import Iterable, Sequence

import sentencepiece
from typing_extensions import Self

from keras_transformer.atomic_files import write_atomically
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError, writing
from keras_transformer.text.sentencepiece_proto import model_message

RESERVED_IDS = (PAD_ID, UNK_ID, BOS_ID, EOS_ID)
WORD_START = "\u2581"  # which SentencePiece puts in place of a space


class Vocabulary:
    """Tokens with their ids: encodes sentences into ids and decodes ids into sentences.

    Args:
        model_bytes: a serialized SentencePiece model whose ids 0 to 3 are padding, unknown, BOS and
            EOS, as `learn_vocabulary` makes it. Two fields are our own, for models that come from
            elsewhere. `num_tokens` is the number of tokens: pieces after them only have text cut as
            it was then, and are the unknown token. `cuts_words_apart` makes an unknown token of
            each unknown word, where SentencePiece makes one of a run of them.

    Attributes:
        model_bytes: as given.
        size: number of tokens, the reserved ones included, V.
        has_more_pieces: whether SentencePiece itself gives ids of V and more.
        cuts_words_apart: whether a text is cut word by word.

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
        num_pieces = self._processor.get_piece_size()
        model = model_message().FromString(model_bytes)
        self.size: int = model.num_tokens or num_pieces
        self.cuts_words_apart: bool = model.cuts_words_apart
        self.has_more_pieces = self.size < num_pieces
        ids = tuple(
            getattr(self._processor, name)() for name in ("pad_id", "unk_id", "bos_id", "eos_id")
        )
        if not 0 < self.size <= num_pieces or ids != RESERVED_IDS:
            raise InputError(
                f"the SentencePiece model must give the ids {RESERVED_IDS} to padding, unknown, "
                f"BOS and EOS, but gives {ids}; learn it again with learn_vocabulary"
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
        with writing(f"the vocabulary {os.fspath(path)}"):
            write_atomically(path, self.model_bytes)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the model in hexadecimal: the same vocabulary, the same fingerprint."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    @functools.cached_property
    def space_ids(self) -> tuple[int, ...]:
        """The tokens of nothing but spaces, in the order of their ids."""
        pieces = enumerate(self.pieces(range(self.size)))
        return tuple(id_ for id_, piece in pieces if piece and not piece.strip(WORD_START))

    @functools.cached_property
    def _longest_piece(self) -> int:
        return max(map(len, self.pieces(range(self.size))))

    def max_characters(self, max_tokens: int) -> int:
        """Returns how many characters of a text are read to find its first `max_tokens` tokens.

        Twice as many as these tokens can spell where normalization writes four characters as one
        throughout. No token reaches over a space, so what follows a word does not change the tokens
        before its end. The limit can therefore be seen only in a text with a single word, a run of
        spaces or a run of unknown characters (which are one token) of half the limit.
        """
        return 8 * self._longest_piece * max_tokens

    def encode(
        self, texts: Sequence[str], *, max_tokens: int | None = None, num_threads: int = -1
    ) -> list[list[int]]:
        """Returns the ids of each text, without BOS and EOS.

        Args:
            texts: any number of sentences; "▁" in them counts as a space.
            max_tokens: the most ids of a text, the rest of which is not read, see `max_characters`;
                None for all.
            num_threads: threads over which the sentences are spread; -1 means one for each core.

        Raises:
            InputError: a text holds a lone surrogate and so is not Unicode.
        """
        check_not_one_text(texts)
        texts = list(texts)
        if max_tokens is not None:
            limit = self.max_characters(max_tokens)
            texts = [text[:limit] for text in texts]
        try:
            ids = self._encode(texts, num_threads)
        except Exception:
            for text in texts:
                check_unicode(text)
            raise
        return [self.known(row[:max_tokens]) for row in ids]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each row of ids up to its first EOS; padding and BOS are skipped.

        The unknown token reads "⁇".

        Raises:
            InputError: an id is outside this vocabulary.
        """
        return [self._processor.decode(self._content(row)).removeprefix(" ") for row in ids]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the tokens with these ids, "▁" standing for the space; all are kept.

        Raises:
            InputError: an id is outside this vocabulary.
        """
        return [self._processor.id_to_piece(self._checked(id_)) for id_ in ids]

    def normalize(self, text: str) -> str:
        """Returns the text as decoding gives it back where every character is known."""
        check_unicode(text)
        return self._processor.normalize(text).replace(WORD_START, " ").lstrip(" ")

    def _encode(self, texts: list[str], num_threads: int) -> list[list[int]]:
        if not self.cuts_words_apart:
            ids: list[list[int]] = self._processor.encode(
                texts, out_type=int, num_threads=num_threads
            )
            return ids
        words = [text.split(" ") for text in texts]
        flat = list(itertools.chain(*words))
        found = iter(self._processor.encode(flat, out_type=int, num_threads=num_threads))
        return [list(itertools.chain(*itertools.islice(found, len(row)))) for row in words]

    def known(self, ids: list[int]) -> list[int]:
        """Returns ids that SentencePiece gave, the unknown token's in place of V and more."""
        if not self.has_more_pieces:
            return ids
        return [id_ if id_ < self.size else UNK_ID for id_ in ids]

    def _content(self, row: Sequence[int]) -> list[int]:
        content = []
        for id_ in row:
            if id_ == EOS_ID:
                break
            if id_ not in (PAD_ID, BOS_ID):
                content.append(self._checked(id_))
        return content

    def _checked(self, id_: int) -> int:
        if not 0 <= id_ < self.size:
            raise InputError(f"ids of this vocabulary are 0 to {self.size - 1}, got {id_}")
        return int(id_)


def check_not_one_text(texts: Iterable[str]) -> None:
    """Raises `InputError` for one string where a sequence of them is meant."""
    if isinstance(texts, str):
        raise InputError(f"expected a sequence of sentences, got one: {texts[:40]!r}; use a list")


def check_unicode(text: str) -> None:
    """Raises `InputError` for text with a lone surrogate, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"text is not Unicode, lone surrogate at character {error.start} of {text[:40]!r}; "
            "read the file as UTF-8 with errors='replace'"
        ) from error
