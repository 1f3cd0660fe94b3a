"""A subword vocabulary: encodes and decodes sentences, and is kept in a file.

`PAD_ID`, `UNK_ID`, `BOS_ID` and `EOS_ID` are reserved in every vocabulary. SentencePiece (Kudo and
Richardson 2018) does the work; TensorFlow is not needed here, `Tokenizer` does the same in a graph.
"""

import difflib
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Sequence
from typing import TypeAlias

import sentencepiece
from typing_extensions import Self

from keras_transformer.config import BOS_ID, EOS_ID, LANGUAGE_CODE, PAD_ID, UNK_ID, WORD_START
from keras_transformer.errors import (
    InputError,
    as_text,
    check_sentences,
    check_unicode,
    writing,
)
from keras_transformer.files import local_path, replace_control_characters, write_atomically
from keras_transformer.text.normalization import (
    COMPOSED_NFKC,
    IGNORABLE,
    NOTHING_VISIBLE,
    SPACES,
    any_of,
    compose,
    decompose,
)
from keras_transformer.text.sentencepiece_model import (
    RESERVED_IDS,
    model_message,
    special_ids,
    with_reserved_ids,
)

Text: TypeAlias = str | bytes  # TensorFlow Datasets gives bytes

_NOTHING_VISIBLE = re.compile(NOTHING_VISIBLE)


class Vocabulary:
    """Tokens with their ids: encodes sentences into ids and decodes ids into sentences.

    Args:
        model_bytes: a serialized SentencePiece model whose ids 0 to 3 are padding, unknown, BOS and
            EOS, as `learn_vocabulary` makes it. Three fields are our own, for models that come from
            elsewhere. `num_tokens` is the number of tokens: pieces after them only have text cut as
            it was then, and are the unknown token. `cuts_words_apart` makes an unknown token of
            each unknown word, where SentencePiece makes one of a run of them. `looks_up_runs`
            looks a run of characters that SentencePiece does not know up among the tokens.

    Attributes:
        model_bytes: as given.
        size: number of tokens, the reserved ones included, V.
        has_more_pieces: whether SentencePiece itself gives ids of V and more.
        cuts_words_apart: whether a text is cut word by word.
        looks_up_runs: whether a run of unknown characters may be a token.

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
        self.looks_up_runs: bool = model.looks_up_runs
        self._rules: str = model.normalizer_spec.name
        self.has_more_pieces = self.size < num_pieces
        ids = special_ids(self._processor)
        if not 0 < self.size <= num_pieces or ids != RESERVED_IDS:
            raise InputError(
                f"the SentencePiece model must give the ids {RESERVED_IDS} to padding, unknown, "
                f"BOS and EOS, but gives {ids}; learn it again with learn_vocabulary"
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a SentencePiece model; `InputError` names a missing or damaged one.

        Of a model with other ids than `save` wrote, such as 0 for unknown, 1 for BOS and 2 for EOS
        by SentencePiece's defaults, the reserved pieces come first, then the others in their order.
        """
        try:
            content = local_path(path).read_bytes()
            return cls(with_reserved_ids(content))
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
    def _all_pieces(self) -> tuple[str, ...]:
        """The tokens by id, read once: a vocabulary may have 65,000."""
        return tuple(map(self._processor.id_to_piece, range(self.size)))

    @functools.cached_property
    def space_ids(self) -> tuple[int, ...]:
        """The tokens of nothing but spaces, in the order of their ids."""
        pieces = enumerate(self._all_pieces)
        return tuple(id_ for id_, piece in pieces if piece and not piece.strip(WORD_START))

    @functools.cached_property
    def _longest_piece(self) -> int:
        return max(map(len, self._all_pieces))

    @functools.cached_property
    def composes(self) -> bool:
        """Whether text gets Unicode's normalization form C before the model's own rules.

        They cannot put marks in order. Rules of other toolkits get text as it is.
        """
        return self._keeps_form_c or self._rules == COMPOSED_NFKC

    @functools.cached_property
    def _keeps_form_c(self) -> bool:
        """Whether the model's own rules are those of form C."""
        return self._processor.normalize(["1e\u03011", "1ﬁ1"]) == ["▁1é1", "▁1ﬁ1"]

    @functools.cached_property
    def dropped_pattern(self) -> str:
        """A pattern of the `IGNORABLE` characters to drop; its group 1 takes the place of a match.

        No token has them: they would be unknown tokens, which change a translation. Those after an
        unknown character are part of its token and stay, to be copied with it (form C only).
        """
        before = ""
        has_bytes = self._processor.is_byte(self._processor.piece_to_id("<0x41>"))
        if self._keeps_form_c and not has_bytes:
            known = self._known_characters | {*SPACES, *decompose("".join(self._known_characters))}
            before = f"^|{any_of(known)}"
        return f"({before})(?:{any_of(self._unknown(IGNORABLE))})+"

    @functools.cached_property
    def space_pattern(self) -> str:
        """A pattern of the `SPACES` that no token has, which are read as " "."""
        return any_of([" ", *self._unknown(SPACES)])

    def _unknown(self, characters: Sequence[str]) -> list[str]:
        """Returns the characters whose normal form is in no token.

        Characters that other rules than those of form C drop are left to them.
        """
        known = self._known_characters
        if self._keeps_form_c:
            return [c for c in characters if compose(c) not in known]
        forms = self._processor.normalize([f"1{c}1" for c in characters])
        forms = [set(form.replace(WORD_START, "").strip("1")) - {" "} for form in forms]
        return [c for c, form in zip(characters, forms, strict=True) if form and not known & form]

    @functools.cached_property
    def _known_characters(self) -> set[str]:
        tokens = enumerate(self._all_pieces)
        return set("".join(token for id_, token in tokens if not self._processor.is_unused(id_)))

    @functools.cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        return re.compile(self.dropped_pattern), re.compile(self.space_pattern)

    def visible(self, text: str) -> str:
        """Returns a text as the model reads it; `Tokenizer` does the same in a graph.

        Characters of `dropped_pattern` are dropped, those of `space_pattern` become " ", and if the
        vocabulary `composes`, the rest has normalization form C. A text of nothing visible is
        empty.
        """
        if text.isascii() and text.isprintable() and not text.isspace():
            return text
        if _NOTHING_VISIBLE.fullmatch(text):
            return ""
        dropped, spaces = self._patterns
        text = dropped.sub(r"\1", text)
        if not text.isprintable():  # all spaces but one are not: most texts have no other
            text = spaces.sub(" ", text)
        return compose(text) if self.composes else text

    @functools.cached_property
    def language_codes(self) -> tuple[str, ...]:
        """The codes that select a language, such as ">>deu<<"; none in most vocabularies."""
        is_code = re.compile(f"{WORD_START}?{LANGUAGE_CODE}").fullmatch
        codes = {
            id_: piece.removeprefix(WORD_START)
            for id_, piece in enumerate(self._all_pieces)
            if is_code(piece)
        }
        read = self._encode(list(codes.values()), num_threads=1) if codes else []
        # In the vocabulary of a target no text becomes such a token.
        return tuple(
            code for (id_, code), ids in zip(codes.items(), read, strict=True) if id_ in ids
        )

    def with_code_apart(self, text: str) -> str:
        """Returns a text with one space after the language code that it begins with, if any.

        Raises:
            InputError: the vocabulary has codes, and not this one.
        """
        codes = self.language_codes
        match = re.match(f"(?:{NOTHING_VISIBLE})?{LANGUAGE_CODE}", text) if codes else None
        if match and match[1] not in codes:
            near = difflib.get_close_matches(match[1], codes, 5, cutoff=0.8) or sorted(codes)[:8]
            raise InputError(
                f"the model has no language code {match[1]}; it has {len(codes)}, for example "
                f"{', '.join(near)}"
            )
        start = re.match(LANGUAGE_CODE, text) if codes else None
        return f"{start[1]} {text[start.end() :]}" if start else text

    def max_characters(self, max_tokens: int) -> int:
        """Returns how many characters of a text are read to find its first `max_tokens` tokens.

        Twice as many as these tokens can spell where normalization writes four characters as one
        throughout. Only a single word, a run of spaces or a run of unknown characters (which are
        one token) of half the limit can have other tokens for it.
        """
        return 8 * self._longest_piece * max_tokens

    def encode(self, texts: Sequence[Text], *, num_threads: int = -1) -> list[list[int]]:
        """Returns the ids of each text, without BOS and EOS.

        Args:
            texts: any number of sentences, str or UTF-8 in bytes; "▁" in them counts as a space.
                See `visible` for what is dropped and composed. A language code that begins a text
                may follow spaces, and needs none after it.
            num_threads: threads over which the sentences are spread; -1 means one for each core.

        Raises:
            InputError: a text holds a lone surrogate and so is not Unicode; or begins with a
                language code that the vocabulary lacks, while it has others.
        """
        check_sentences("texts", texts)
        sentences = [self.with_code_apart(self.visible(as_text(text))) for text in texts]
        try:
            ids = self._encode(sentences, num_threads)
        except Exception:
            for sentence in sentences:
                check_unicode("text", sentence)
            raise
        if self.has_more_pieces:
            ids = [[id_ if id_ < self.size else UNK_ID for id_ in row] for row in ids]
        return ids

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each row of ids up to its first EOS; padding and BOS are skipped.

        The unknown token reads "⁇", and control characters, such as line ends, read as spaces.

        Raises:
            IndexError: an id is outside this vocabulary.
        """
        texts = (self._processor.decode(self._content(row)) for row in ids)
        # Bytes of an unknown word spell the "▁" that it begins with, too.
        texts = (text.replace(WORD_START, " ").strip(" ") for text in texts)
        return [replace_control_characters(text) for text in texts]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the tokens with these ids, "▁" standing for the space; all are kept.

        Raises:
            IndexError: an id is outside this vocabulary.
        """
        return [self._processor.id_to_piece(int(id_)) for id_ in ids]

    def normalize(self, text: str) -> str:
        """Returns the text as decoding gives it back where every character is known."""
        check_unicode("text", text)
        text = self._processor.normalize(self.visible(text)).replace(WORD_START, " ")
        return replace_control_characters(text.lstrip(" "))

    def _encode(self, texts: list[str], num_threads: int) -> list[list[int]]:
        if self.looks_up_runs:
            rows = self._processor.encode(texts, out_type=str, num_threads=num_threads)
            return [[self._ids.get(piece, UNK_ID) for piece in row] for row in rows]
        if not self.cuts_words_apart:
            ids: list[list[int]] = self._processor.encode(
                texts, out_type=int, num_threads=num_threads
            )
            return ids
        words = [text.split(" ") for text in texts]
        flat = list(itertools.chain(*words))
        rows = iter(self._processor.encode(flat, out_type=int, num_threads=num_threads))
        return [list(itertools.chain(*itertools.islice(rows, len(row)))) for row in words]

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: id_ for id_, piece in enumerate(self._all_pieces)}

    def _content(self, row: Sequence[int]) -> list[int]:
        before_end = itertools.takewhile(lambda id_: id_ != EOS_ID, row)
        return [int(id_) for id_ in before_end if id_ not in (PAD_ID, BOS_ID)]
