"""A subword vocabulary: learned from sentences, encodes and decodes, grows, is kept in a file.

`PAD_ID`, `UNK_ID`, `BOS_ID` and `EOS_ID` are reserved in every vocabulary. SentencePiece (Kudo and
Richardson 2018) does the work; TensorFlow is not needed here, `Tokenizer` does the same in a graph.
"""

import collections
import contextlib
import functools
import hashlib
import io
import itertools
import os
import random
import re
import tempfile
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, get_args

import sentencepiece
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from typing_extensions import Self

from keras_transformer.config import (
    BOS_ID,
    DEFAULT_VOCABULARY_SIZE,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    WORD_START,
)
from keras_transformer.config.data import LEAST_COVERAGE, Normalization, VocabularyKind
from keras_transformer.errors import InputError, as_text, check_choice, check_unicode, writing
from keras_transformer.files import local_path, replace_control_characters, write_atomically

Text: TypeAlias = str | bytes  # TensorFlow Datasets gives bytes

RESERVED_IDS = (PAD_ID, UNK_ID, BOS_ID, EOS_ID)
_RESERVED_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")  # SentencePiece's names
_MOST_TOKENS = 2**31 - 1  # SentencePiece's integers
# SentencePiece has one seed for the whole process: it is set and used by one thread at a time.
_SEED_IN_USE = threading.Lock()


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
        ids = _special_ids(self._processor)
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
            return cls(_with_reserved_ids(content))
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
        self, texts: Sequence[Text], *, max_tokens: int | None = None, num_threads: int = -1
    ) -> list[list[int]]:
        """Returns the ids of each text, without BOS and EOS.

        Args:
            texts: any number of sentences, str or UTF-8 in bytes; "▁" in them counts as a space.
            max_tokens: the most ids of a text, the rest of which is not read, see `max_characters`;
                None for all.
            num_threads: threads over which the sentences are spread; -1 means one for each core.

        Raises:
            InputError: a text holds a lone surrogate and so is not Unicode.
        """
        check_not_one_text(texts)
        limit = None if max_tokens is None else self.max_characters(max_tokens)
        sentences = [as_text(text)[:limit] for text in texts]
        try:
            ids = self._encode(sentences, num_threads)
        except Exception:
            for sentence in sentences:
                check_unicode("text", sentence)
            raise
        return [self.known(row[:max_tokens]) for row in ids]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each row of ids up to its first EOS; padding and BOS are skipped.

        The unknown token reads "⁇", and control characters, such as line ends, read as spaces.

        Raises:
            InputError: an id is outside this vocabulary.
        """
        texts = (self._processor.decode(self._content(row)).removeprefix(" ") for row in ids)
        return [replace_control_characters(text) for text in texts]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the tokens with these ids, "▁" standing for the space; all are kept.

        Raises:
            InputError: an id is outside this vocabulary.
        """
        return [self._processor.id_to_piece(self._checked(id_)) for id_ in ids]

    def normalize(self, text: str) -> str:
        """Returns the text as decoding gives it back where every character is known."""
        check_unicode("text", text)
        normalized = self._processor.normalize(text).replace(WORD_START, " ").lstrip(" ")
        return replace_control_characters(normalized)

    def normalization_changes(self, texts: Iterable[str]) -> tuple[int, list[tuple[str, str]]]:
        """Returns how many texts normalization changes, spaces aside, and what it changes most.

        Returns:
            The number of texts, and up to three pairs of characters, or of words of which no single
            character changes, and what becomes of them.
        """
        changes: collections.Counter[tuple[str, str]] = collections.Counter()
        num_changed = 0
        for text in texts:
            if _squeezed(self.normalize(text)) == _squeezed(replace_control_characters(text)):
                continue
            num_changed += 1
            for parts in (set(text), text.split(" ")):
                # Between digits, which compose with nothing, since spaces at an end are trimmed.
                pairs = {(part, self.normalize(f"1{part}1")[1:-1]) for part in parts}
                if found := [pair for pair in pairs if _squeezed(pair[0]) != _squeezed(pair[1])]:
                    changes.update(sorted(found))
                    break
        return num_changed, [pair for pair, _ in changes.most_common(3)]

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
        """Returns ids of SentencePiece with the unknown token for ids of V and more."""
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


def _squeezed(text: str) -> str:
    return re.sub(" +", " ", text.replace(WORD_START, " ")).strip(" ")


def check_not_one_text(texts: Iterable[Text]) -> None:
    """Raises `InputError` for one string where a sequence of them is meant."""
    if isinstance(texts, str | bytes):
        raise InputError(f"expected a sequence of sentences, got one: {texts[:40]!r}; use a list")


class SubwordSampler:
    """Subword regularization (Kudo 2018): samples segmentations, as a pure function of a seed.

    A model that sees a word in several segmentations learns what its parts mean. BPE skips
    random merges (BPE-dropout, Provilkov et al. 2020); unigram tokens are drawn by probability.

    Args:
        vocabulary: gives the tokens; of the kind "bpe" or "unigram".
        alpha: share of merges that BPE skips, or exponent of the probabilities of unigram tokens.

    Raises:
        InputError: the vocabulary has one segmentation only.

    Example:
        >>> sampler = SubwordSampler(vocabulary, alpha=0.1)
        >>> sampler(vocabulary.encode(["ein Hund"]), seed=3)  # perhaps ▁ein ▁H und
    """

    def __init__(self, vocabulary: Vocabulary, *, alpha: float) -> None:
        self._vocabulary = vocabulary
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model_bytes)
        self._alpha = alpha
        try:
            self._sample(["a"], seed=0)
        except RuntimeError as error:
            raise InputError(
                "subword_sampling needs a vocabulary of kind bpe or unigram; this one has a single "
                "segmentation of a text"
            ) from error

    def __call__(self, sentences: Sequence[Sequence[int]], seed: int) -> list[list[int]]:
        """Returns the ids of the same sentences in segmentations drawn at random.

        A sentence is kept as it is where its text would change: where a token is unknown.

        Args:
            sentences: ids, without start and end.
            seed: at least 0, below 2**32 - 1.
        """
        texts = self._decode(sentences)
        sampled = self._sample(texts, seed)
        return [
            new if new and UNK_ID not in old and new_text == text else list(old)
            for old, new, text, new_text in zip(
                sentences, sampled, texts, self._decode(sampled), strict=True
            )
        ]

    def _decode(self, sentences: Sequence[Sequence[int]]) -> list[str]:
        texts: list[str] = self._processor.decode([list(ids) for ids in sentences], num_threads=1)
        return texts

    def _sample(self, texts: list[str], seed: int) -> list[list[int]]:
        with _SEED_IN_USE:
            sentencepiece.set_random_generator_seed(seed)
            # A list is encoded in threads that SentencePiece starts for the call, and each thread
            # makes its random generator of the seed: with one thread the result is always the same.
            sampled: list[list[int]] = self._processor.encode(
                texts,
                out_type=int,
                num_threads=1,
                enable_sampling=True,
                alpha=self._alpha,
                nbest_size=-1,
            )
        return [self._vocabulary.known(ids) for ids in sampled]


# Learning with SentencePiece's trainer.

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
_LAST_COMPOSED = 0x30000  # Unicode has no character beyond that normalization changes


def learn_vocabulary(
    sentences: Iterable[Text],
    *,
    size: int | None = None,
    kind: VocabularyKind = "bpe",
    normalization: Normalization = "nfc",
    character_coverage: float = 1.0,
    byte_fallback: bool = False,
    max_sentences: int | None = None,
    seed: int = 0,
    symbols: Sequence[str] = (),
    tokens: Sequence[str] = (),
) -> Vocabulary:
    """Learns a vocabulary; the same input gives the same bytes.

    Args:
        sentences: the text to learn from, str or UTF-8 in bytes, read once; line ends are dropped.
        size: number of tokens, the four reserved ones included. "bpe" and "unigram" give exactly
            that many, "char" and "word" the most frequent ones, fewer if the text has fewer.
            None means 8,000, or as many as the text supports if these are fewer.
        kind: "bpe" (Sennrich et al. 2016, the paper's choice), "unigram" (Kudo 2018), "char", or
            "word" for words between spaces, for example of tokenized text ("un@@ happy").
        normalization: what a model reads and writes. "nfc" composes letters and marks, see
            `nfc_rules`, and keeps all else; "identity" changes nothing. "nfkc" is Unicode NFKC as
            other toolkits have it: it also makes ASCII of full-width characters, digits of ½ and ²,
            "..." of an ellipsis, spaces of no-break ones and of Persian's joiner, and drops control
            characters; the model can then write none of these. All turn runs of spaces into one and
            trim the ends.
        character_coverage: share of all characters that get a token, from 0.98 to 1; the rarest
            become unknown.
        byte_fallback: spells unknown characters as UTF-8 bytes (256 more tokens).
        max_sentences: learn from a random sample of this many, which bounds the memory.
        seed: of that sample.
        symbols: words that are one token each, however rare.
        tokens: other text that is one token each, and part of no other; not for "word".

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
    if size > _MOST_TOKENS:
        raise InputError(f"size must be at most {_MOST_TOKENS:,}, got {size:,}; lower it")
    if not LEAST_COVERAGE <= character_coverage <= 1:
        raise InputError(
            f"character_coverage must be from {LEAST_COVERAGE} to 1, got {character_coverage}"
        )
    own = [*(WORD_START + symbol for symbol in symbols), *tokens]
    for token, count in collections.Counter(own).items():
        if count > 1 or token in _RESERVED_TOKENS:
            raise InputError(
                f"{token!r} is {'given twice' if count > 1 else 'a reserved token'}; remove it"
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
                user_defined_symbols=own,
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
    for character in map(chr, itertools.chain(range(0xD800), range(0xE000, _LAST_COMPOSED))):
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


def _sample(sentences: Iterable[Text], count: int, generator: random.Random) -> list[Text]:
    """Returns `count` sentences, each equally likely to be there (Vitter 1985, algorithm R)."""
    sample: list[Text] = []
    for index, sentence in enumerate(sentences):
        if index < count:
            sample.append(sentence)
        elif (slot := generator.randrange(index + 1)) < count:
            sample[slot] = sentence
    return sample


def _training_lines(sentences: Iterable[Text], errors: list[Exception]) -> Iterator[str]:
    """Yields sentences in a form that the trainer does not skip, cut before spaces if too long.

    Errors of reading are kept in `errors`, since the trainer passes on only their text.
    """
    try:
        for sentence in sentences:
            sentence = as_text(sentence)
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
            f"lower character_coverage (to {LEAST_COVERAGE} at least)"
        )
    if "sentences_.empty()" in trainer_message or "all_chars_count" in trainer_message:
        return "there is no text to learn from; give at least one sentence"
    return None


# Models from elsewhere.

# Sums of scores that are multiples of it are exact in float32 up to 2**24 / 8192 = 2,048, which is
# a text of 150 tokens or more: SentencePiece and its copy in TensorFlow Text then choose the same
# of two segmentations that are almost equal. A coarser grid moves the scores so far that another
# segmentation wins. Of 112,743 lines of captions, news and law, 4 differ from MarianTokenizer with
# 1/1024 and one with this grid; with unrounded scores Python and the graph differ in three.
FINE_SCORE_STEP = 1 / 8192


def vocabulary_of_pieces(
    model: Any, pieces: Sequence[tuple[str, float, int]], num_tokens: int
) -> Vocabulary:
    """Returns a SentencePiece model with other pieces as a vocabulary.

    Args:
        model: of `model_message`; changed.
        pieces: the name, score and type of each; the first four are padding, unknown, BOS and EOS.
        num_tokens: see `Vocabulary`.
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
    return Vocabulary(model.SerializeToString())


def _special_ids(processor: sentencepiece.SentencePieceProcessor) -> tuple[int, ...]:
    """Returns the ids of padding, unknown, BOS and EOS; -1 for one that a model lacks."""
    names = ("pad_id", "unk_id", "bos_id", "eos_id")
    return tuple(getattr(processor, name)() for name in names)


def _with_reserved_ids(content: bytes) -> bytes:
    """Returns a SentencePiece model whose reserved pieces come first; faults stay as they are."""
    try:
        ids = _special_ids(sentencepiece.SentencePieceProcessor(model_proto=content))
    except RuntimeError:
        return content
    if ids == RESERVED_IDS:
        return content
    model = model_message().FromString(content)
    pieces = [
        (piece.piece, round(piece.score / FINE_SCORE_STEP) * FINE_SCORE_STEP, piece.type)
        for piece in model.pieces
    ]
    taken = {name for name, _, _ in pieces}
    reserved = []
    for id_, name in zip(ids, _RESERVED_TOKENS, strict=True):
        while id_ < 0 and name in taken:
            name = f"<{name}>"
        reserved.append((name, 0.0, CONTROL) if id_ < 0 else pieces[id_])
    others = [piece for number, piece in enumerate(pieces) if number not in ids]
    return vocabulary_of_pieces(model, reserved + others, len(reserved + others)).model_bytes


# More tokens for a vocabulary that a model knows: old tokens keep their ids, new ones follow. A
# text in which no new token occurs is cut as before.

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
        InputError: a token cannot be one, or is one already.

    Example:
        >>> vocabulary = extend_vocabulary(vocabulary, tokens=["<de>"])
        >>> vocabulary.pieces(vocabulary.encode(["<de> ein Hund"])[0])
        ['▁', '<de>', '▁ein', '▁Hund']
    """
    model = model_message().FromString(vocabulary.model_bytes)
    kind = kind_of(vocabulary)
    # Pieces that are no tokens come last: new tokens stand before them, or are one of them.
    surplus = {piece.piece: piece for piece in model.pieces[vocabulary.size :]}
    del model.pieces[vocabulary.size :]
    known = {piece.piece for piece in model.pieces}
    for token in tokens:
        _check_token(vocabulary, token)
    names = [WORD_START + token if kind == "word" else token for token in tokens]
    for index, (token, name) in enumerate(zip(tokens, names, strict=True)):
        if name in known or name in names[:index]:
            raise InputError(f"{token!r} is a token of the vocabulary already; do not add it again")
    old = [*model.pieces, *surplus.values()]
    lowest = min((piece.score for piece in old if piece.type == NORMAL), default=0.0)
    new: list[tuple[str, float, int]] = []
    for piece in _normal_pieces(learned):
        if piece.piece in surplus and piece.piece not in names:
            kept = surplus[piece.piece]  # text is cut as before
            new.append((kept.piece, kept.score, kept.type))
        elif piece.piece not in known and piece.piece not in names:
            # Merges have the order of their scores. Of unigram pieces the lowest score decides
            # what an unknown character costs, which must stay as it was.
            score = lowest - len(new) - 1 if kind == "bpe" else max(piece.score, lowest)
            new.append((piece.piece, score, NORMAL))
    # Text of unigram pieces, and of words, is not always cut at pieces of the type for this.
    has_type = kind in ("bpe", "char")
    of_tokens = (0.0, USER_DEFINED) if has_type else (_TOKEN_SCORE, NORMAL)
    new += [(name, *of_tokens) for name in names]
    for name, score, type_ in new:
        surplus.pop(name, None)
        model.pieces.add(piece=name, score=score, type=type_)
    num_tokens = len(model.pieces)
    model.pieces.extend(surplus.values())
    model.trainer_spec.vocab_size = num_tokens
    if model.num_tokens:
        model.num_tokens = num_tokens
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
        raise InputError(
            f"a token to add must be text without spaces, got {token!r}; change add_tokens, in "
            "which commas separate tokens"
        )
    if (normalized := vocabulary.normalize(token)) != token:
        raise InputError(
            f"the token {token!r} would never be found: normalization turns it into "
            f"{normalized!r}; add that instead"
        )


# The file of a SentencePiece model, a protocol buffer. The classes that ship with sentencepiece
# reject older protobuf libraries, such as those that TensorFlow requires on some Python versions.
# These declare the fields that this package uses, and preserve all others.

# Types of pieces.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# By message: the names of fields with number and type, and the default where it is not 0.
_MESSAGES: dict[str, dict[str, tuple[int, str] | tuple[int, str, str]]] = {
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
        "add_dummy_prefix": (3, "bool", "true"),
        "remove_extra_whitespaces": (4, "bool", "true"),
        "escape_whitespaces": (5, "bool", "true"),
        "normalization_rule_tsv": (6, "string"),  # the file that the rules came from
    },
    "Model": {
        "pieces": (1, "Piece"),
        "trainer_spec": (2, "TrainerSpec"),
        "normalizer_spec": (3, "NormalizerSpec"),
        "self_test_data": (4, "bytes"),
        # Ours, where SentencePiece leaves room for extensions: see `Vocabulary`.
        "num_tokens": (200, "int32"),
        "cuts_words_apart": (201, "bool"),
    },
}


@functools.cache
def model_message() -> Any:
    """Returns the class of a SentencePiece model's protocol buffer."""
    package = "keras_transformer_sentencepiece"
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind, *default) in fields.items():
            field = message.field.add(name=field_name, number=number)
            is_list = field_name == "pieces"
            field.label = field.LABEL_REPEATED if is_list else field.LABEL_OPTIONAL
            if kind in _MESSAGES:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
            if default:
                field.default_value = default[0]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Model"))
