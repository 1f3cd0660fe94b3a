"""Paragraphs: cut into sentences, which models are trained on, and joined after translation.

pysbd finds the sentences, by rules for each language (Sadvilkar and Neumann 2020).
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, overload

from keras_transformer.config import LANGUAGE_CODE
from keras_transformer.errors import InputError, check_choice, needs_extra
from keras_transformer.sentences import SentenceTranslator, text_input

# Marks that end a sentence: pysbd may leave them at the beginning of the next one.
_CLOSING = "”’»」』）】》〉！？。"
# Pysbd's pattern for references tries all ways to divide longer and several lists of numbers.
_LISTS_OF_NUMBERS = re.compile(r"\[[\d\s,-]{8,}|(?:\[[\d\s,-]+\]?\s*){2,}")


@overload
def translate_paragraphs(
    translator: SentenceTranslator, paragraphs: str, language: str, **options: Any
) -> str: ...


@overload
def translate_paragraphs(
    translator: SentenceTranslator, paragraphs: Sequence[str], language: str, **options: Any
) -> list[str]: ...


def translate_paragraphs(
    translator: SentenceTranslator, paragraphs: str | Sequence[str], language: str, **options: Any
) -> str | list[str]:
    """Translates a paragraph or a list of them, sentence by sentence, and keeps the spaces between.

    All sentences are translated in one call, in batches of similar length. A paragraph may be
    longer than the model reads; a sentence may not.

    Args:
        translator: translates the sentences.
        paragraphs: text of any number of sentences, or a list of texts.
        language: of the paragraphs, as pysbd names it, such as "en".
        **options: search options of `translator.translate`, each one value for all sentences.

    Raises:
        InputError: pysbd is not installed or does not know the language; or as in `translate`.

    Example:
        >>> translate_paragraphs(translator, "Two hundred.  Dr. No has one.", "en")
        'Zweihundert.  Dr. No hat eine.'
    """
    texts = [paragraphs] if isinstance(paragraphs, str) else paragraphs
    split = SplitParagraphs(texts, language, translator.known_codes)
    results = translator.translate(split.sentences, **options)
    joined = split.join([translation.text for translation in results])
    return joined[0] if isinstance(paragraphs, str) else joined


class SplitParagraphs:
    """The sentences of paragraphs, and the way back.

    Args:
        paragraphs: a list of texts.
        language: as in `translate_paragraphs`.
        known_codes: returns which of some language codes a model has, by default all.

    Attributes:
        sentences: of all paragraphs, none of them blank, without the spaces around them. A
            known language code that begins a paragraph, such as ">>deu<<", begins each of its
            sentences.
        rows: the index of the paragraph of each sentence.
    """

    def __init__(
        self,
        paragraphs: Sequence[str],
        language: str,
        known_codes: Callable[[Sequence[str]], Collection[str]] = tuple,
    ) -> None:
        with needs_extra("sentences"):
            import pysbd
            from pysbd.languages import LANGUAGE_CODES
        check_choice("the language of sentences", language, sorted(LANGUAGE_CODES))
        segmenter = pysbd.Segmenter(language=language, clean=False)
        texts = text_input("paragraphs", paragraphs)
        # Models skip invisible characters before a code, too.
        codes = [re.match(f"{_unprintable_start(text)}{LANGUAGE_CODE}", text) for text in texts]
        known = known_codes(sorted({code[1] for code in codes if code}))
        codes = [code if code and code[1] in known else None for code in codes]
        self._paragraphs = [
            text[code.end() :] if code else text for text, code in zip(texts, codes, strict=True)
        ]
        self._spans = [list(_find_spans(text, segmenter)) for text in self._paragraphs]
        self.sentences: list[str] = []
        self.rows: list[int] = []
        for row, (paragraph, spans) in enumerate(zip(self._paragraphs, self._spans, strict=True)):
            code = f"{match[1]} " if (match := codes[row]) else ""
            self.sentences += [code + paragraph[start:end] for start, end in spans]
            self.rows += [row] * len(spans)

    def join(self, translations: Sequence[str]) -> list[str]:
        """Returns the paragraphs with the translation of each sentence in its place.

        Between two sentences of a language without spaces there is none; translations into a
        language that has them get one.
        """
        if len(translations) != len(self.sentences):
            raise InputError(
                f"expected a translation of each of {len(self.sentences)} sentences, got "
                f"{len(translations)}"
            )
        remaining = iter(translations)
        joined = []
        for paragraph, spans in zip(self._paragraphs, self._spans, strict=True):
            text, last_end = "", 0
            for start, end in spans:
                space = paragraph[last_end:start]
                if text and not space and _ends_wide(paragraph[max(0, last_end - 3) : last_end]):
                    space = "" if _ends_wide(text) else " "
                text += space + next(remaining)
                last_end = end
            joined.append(text + paragraph[last_end:])
        return joined


def _unprintable_start(text: str) -> str:
    """Returns a pattern of the spaces and unprintable characters that begin a text."""
    return re.escape("".join(itertools.takewhile(lambda c: c == " " or not c.isprintable(), text)))


def _find_spans(paragraph: str, segmenter: Any) -> Iterator[tuple[int, int]]:
    """Yields where each sentence of a paragraph starts and ends, without the spaces around it.

    Sentences start where the library's do, but for marks that close the one before. It may lose or
    change some characters of them, so their text is taken from the paragraph, all of it.
    """
    masked = _LISTS_OF_NUMBERS.sub(lambda match: re.sub(r"\d", "x", match[0]), paragraph)  # as long
    starts, end = [], 0
    for sentence in map(str.strip, segmenter.segment(masked)):
        start = masked.find(sentence, end)
        if sentence and start >= 0:
            end = start + len(sentence)
            if start and not paragraph[start - 1].isspace():
                start += len(re.match(f"[{_CLOSING}]*", sentence)[0])  # type: ignore[index]
            starts.append(start)
    bounds = [0, *starts[1:], len(paragraph)]
    for start, end in itertools.pairwise(bounds):
        part = paragraph[start:end]
        if part.strip():
            start += len(part) - len(part.lstrip())
            yield start, start + len(part.strip())


def _ends_wide(text: str) -> bool:
    """Returns whether a text ends in Chinese or Japanese, which have no spaces; quotes aside."""
    return unicodedata.east_asian_width(text.rstrip("”’")[-1:] or " ") in "FW"
