"""Markup: taken out of text before it is translated, and put back by the word alignment.

HTML tags, placeholders such as {name}, {{x}} or %s, URLs and e-mail addresses do not reach the
model. A text becomes a tree: an element is a run of words with elements in it. Its words in the
translation are the run in which most are aligned to it and fewest are not, within the words of the
element around it and beside those of its siblings, so that the tree stays as it is: each tag occurs
once, and what was well-formed still is.
"""

import bisect
import dataclasses
import html
import re
from collections.abc import Sequence
from typing import Any, Protocol

from keras_transformer.paragraphs import SplitParagraphs
from keras_transformer.results import Translation, text_input

Links = Sequence[tuple[int, int]]
Span = tuple[int, int]

# What is never closed ends where the next of its kind begins, so that the time stays linear.
_CODE = (
    r"<(?P<code>code|kbd|samp|script|style|math|svg)\b[^<>]*>"
    r"(?:(?!<(?P=code)\b).)*?</(?P=code)\s*>"
)
_TAG = (
    r"<!--.*?(?:-->|\Z)|<[!?][^<>]*>"
    r"""|<(?P<slash>/?)(?P<name>[a-z][^\s/<>]*)(?=[\s/>])(?:"[^"]*"|'[^']*'|[^"'<>])*>"""
)
_BRACES = r"\{\{[^{}]*\}\}|\$?\{[\w.:!\[\]-]*\}|%\(\w+\)[a-z]"
_PERCENT = r"%(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?[sdifgexucop@](?!\w)"
_PLACEHOLDER = (
    rf"(?:{_BRACES}|(?<![\w%]){_PERCENT})(?:{_BRACES}|{_PERCENT}|%%)*"  # some touch each other
)
# Text of Chinese, Japanese or Korean touches an address without a space.
_WIDE_MARK = "\u3000-\u303f\uff00-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
_NARROW = r"(?![\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef])"
_IN_ADDRESS = r"\{[^\s<>{}]*\}"  # a placeholder
_ADDRESS = (
    rf"""(?<![a-z0-9_])(?:(?:https?|ftp)://|www\.)"""
    rf"""(?:[^\s<>"{{}}{_WIDE_MARK}]|{_IN_ADDRESS})*"""
    rf"""(?:[^\s<>"{{}}.,;:!?')\]»”{_WIDE_MARK}]|{_IN_ADDRESS})"""
    rf"|(?<!{_NARROW}[\w.+-])(?:{_NARROW}[\w.+-])+@(?:{_NARROW}[\w-])+(?:\.(?:{_NARROW}[\w-])+)+"
)
_MARKUP = re.compile(
    f"(?P<word>{_CODE}|{_PLACEHOLDER}|{_ADDRESS})|{_TAG}", re.IGNORECASE | re.DOTALL
)
_NEVER_CLOSED = {
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source",
    "track", "wbr",
}  # fmt: skip
# Words on both sides of one of these are two words.
_BREAKS = {
    "address", "article", "blockquote", "br", "button", "dd", "div", "dl", "dt", "figcaption",
    "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "img", "input", "label",
    "li", "main", "nav", "ol", "option", "p", "pre", "section", "select", "table", "tbody", "td",
    "textarea", "tfoot", "th", "thead", "title", "tr", "ul",
}  # fmt: skip


class AligningTranslator(Protocol):
    """What translates sentences and aligns words: a `BatchTranslator` or a `Client`."""

    def translate(self, sentences: list[str], **options: Any) -> list[list[Translation]]: ...

    def align(self, source: list[str], target: list[str]) -> list[list[tuple[int, int]]]: ...


def translate_markup(
    translator: AligningTranslator,
    texts: Sequence[str],
    language: str | None = None,
    **options: Any,
) -> list[str]:
    """Returns the translations of HTML texts, with their markup.

    Args:
        translator: translates and aligns; its model has attention.
        texts: of any length, if `language` is given; else each is translated as a sentence.
        language: of the texts, to translate them sentence by sentence, see `SplitParagraphs`.
        **options: of `translator.translate`.

    Raises:
        InputError: the model has no attention; or as in `translate`.

    Example:
        >>> translate_markup(translator, ["<b>Two</b> hundred &amp; {n}"])
        ['<b>Zwei</b>hundert &amp; {n}']
    """
    split = SplitMarkup(texts, language)
    results = translator.translate(split.sentences, **options)
    best = [first.text for first, *_ in results]
    return split.join(best, translator.align(split.sentences, best))


class SplitMarkup:
    """The sentences of HTML texts without their markup, and the way back.

    Args:
        texts, language: as in `translate_markup`.

    Attributes:
        sentences: plain text, entities decoded.
        rows: the index of the text of each sentence.
    """

    def __init__(self, texts: Sequence[str], language: str | None = None) -> None:
        self._texts = [_MarkedUp(text) for text in text_input("texts", texts).values]
        self.sentences = [text.plain for text in self._texts]
        self.rows = list(range(len(self.sentences)))
        self._paragraphs = None
        if language is not None:
            self._paragraphs = SplitParagraphs(self.sentences, language)
            self.sentences, self.rows = self._paragraphs.sentences, self._paragraphs.rows

    def join(self, translations: Sequence[str], alignments: Sequence[Links]) -> list[str]:
        """Returns the texts with the translations of their sentences and all of their markup.

        Where an alignment is empty, words are aligned by their order alone.

        Args:
            translations: of each sentence.
            alignments: of each sentence with its translation, see `BatchTranslator.align`.
        """
        texts = list(translations)
        if self._paragraphs is not None:
            texts = self._paragraphs.join(translations)
        links: list[list[tuple[int, int]]] = [[] for _ in self._texts]
        sides = [_Words(text.plain) for text in self._texts], [_Words(text) for text in texts]
        parts = zip(self.rows, self.sentences, translations, alignments, strict=True)
        for row, sentence, translation, pairs in parts:
            sources, targets = sides[0][row].add(sentence), sides[1][row].add(translation)
            for i, j in pairs or _diagonal(len(sources), len(targets)):
                links[row].append((sources[i], targets[j]))
        columns = zip(self._texts, texts, links, *sides, strict=True)
        return [
            marked.with_markup(text, pairs, sources.spans, targets.spans)
            for marked, text, pairs, sources, targets in columns
        ]


class _Words:
    """The words of a text, sentence by sentence: between two there may be no space.

    Attributes:
        spans: the characters of each word so far.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.spans: list[Span] = []

    def add(self, sentence: str) -> range:
        """Adds the words of the next sentence, and returns their numbers."""
        count, end = len(self.spans), self.spans[-1][1] if self.spans else 0
        first = self._text.index(sentence, end)
        words = re.finditer(r"\S+", sentence)
        self.spans += [(first + word.start(), first + word.end()) for word in words]
        return range(count, len(self.spans))


def _diagonal(num_source: int, num_target: int) -> list[tuple[int, int]]:
    if not num_source:
        return []
    return [(j * num_source // num_target, j) for j in range(num_target)]


@dataclasses.dataclass
class _Node:
    """An element, or markup without a content.

    Attributes:
        opening: its first tag, or all of it.
        before: the character before it in the text; a space at the start.
        start: where it starts in the plain text.
        is_word: whether it stands for a word.
        end: where it ends in the plain text.
        closing: its last tag; empty if it has none.
        after: the character after it; a space at the end.
        children: the elements in it, in order.
    """

    opening: str
    before: str
    start: int
    is_word: bool = False
    end: int = 0
    closing: str = ""
    after: str = " "
    children: list["_Node"] = dataclasses.field(default_factory=list)

    @property
    def has_words(self) -> bool:
        """Whether it is or has a word that was taken out."""
        return self.is_word or any(child.has_words for child in self.children)


def _give_up(stack: list[_Node]) -> None:
    """Removes the last of the open elements, which is never closed: it has no content."""
    unclosed = stack.pop()
    stack[-1].children += unclosed.children
    unclosed.children = []


class _MarkedUp:
    """A text with markup.

    Attributes:
        plain: its text without.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._nodes = [_Node("", " ", 0)]  # the first is the root
        self.plain = ""
        self._parse()

    def _parse(self) -> None:
        """Finds the plain text and the tree."""
        text, end = self._text, 0
        stack, names = [self._nodes[0]], [""]
        is_apart = follows_word = False
        for found in _MARKUP.finditer(text):
            if end < found.start():
                self._add_plain(text[end : found.start()], is_apart, follows_word)
                is_apart = follows_word = False
            name, end = (found["name"] or "").lower(), found.end()
            before, after = text[found.start() - 1 : found.start()] or " ", text[end : end + 1]
            is_apart |= name in _BREAKS
            if found["slash"] and name in names[1:]:
                while names[-1] != name:
                    names.pop()
                    _give_up(stack)
                names.pop()
                node = stack.pop()
                node.end, node.closing, node.after = len(self.plain), found[0], after or " "
                continue
            node = _Node(found[0], before, len(self.plain), bool(found["word"]))
            node.end, node.after = len(self.plain), after or " "
            self._nodes.append(node)
            stack[-1].children.append(node)
            follows_word |= node.is_word
            is_empty = not name or name in _NEVER_CLOSED or found[0].endswith("/>")
            if not is_empty and not found["slash"]:
                stack.append(node)
                names.append(name)
        self._add_plain(text[end:], is_apart, follows_word)
        while len(stack) > 1:
            _give_up(stack)
        self._nodes[0].end = len(self.plain)

    def _add_plain(self, text: str, is_apart: bool, follows_word: bool) -> None:
        """Adds a piece of text to the plain text.

        Args:
            text: the piece, with entities.
            is_apart: whether a tag before it separates words.
            follows_word: whether a word was taken out before it, and with it one of two spaces.
        """
        text = html.unescape(text)
        last, first = self.plain[-1:], text[:1]
        if follows_word:
            if not last or last.isspace():
                text = text.lstrip()
                if text[:1] and text[0] in ".,;:!?)":
                    self.plain = self.plain.rstrip()
                    for node in self._nodes:
                        node.start = min(node.start, len(self.plain))
                        node.end = min(node.end, len(self.plain))
            is_apart |= last.isalnum() and first.isalnum()
        if is_apart and last and first and not last.isspace() and not first.isspace():
            text = f" {text}"
        self.plain += text

    def with_markup(
        self, translation: str, links: Links, sources: list[Span], targets: list[Span]
    ) -> str:
        """Returns the translation with all markup.

        Args:
            translation: of the plain text.
            links: pairs (source word, target word).
            sources, targets: the words of the plain text and of the translation.
        """
        if not self.plain.strip():
            return self._text
        return _Placement(self, translation, links, sources, targets).text


class _Placement:
    """Where the markup of a text stands in a translation; arguments as in `with_markup`.

    Attributes:
        text: the translation with markup.
    """

    def __init__(
        self,
        marked: _MarkedUp,
        translation: str,
        links: Links,
        sources: list[Span],
        targets: list[Span],
    ) -> None:
        self._plain, self._sources = marked.plain, sources
        self._translation, self._targets = translation, targets
        self._aligned: list[set[int]] = [set() for _ in self._targets]
        for source, target in links:
            if target < len(self._targets):
                self._aligned[target].add(source)
        self._parts: list[str] = []
        self._last = " "  # the last character so far, of tags only of those without a content
        self._awaits_space = False
        words = 0, len(self._targets)
        self._render(marked._nodes[0], words, (0, len(translation)))
        self.text = "".join(self._parts)

    def _render(self, node: _Node, words: Span, characters: Span) -> None:
        """Writes an element that has these words and characters of the translation."""
        is_point = node.start == node.end
        if is_point and self._needs_space_before(node):
            self._parts.append(" ")
            self._last = " "
        self._parts.append(node.opening)
        end = characters[0]
        for child, its_words, span in self._place(node, words, characters):
            self._write(self._translation[end : span[0]])
            self._render(child, its_words, span)
            end = span[1]
        self._write(self._translation[end : characters[1]])
        self._parts.append(node.closing)
        if is_point:
            self._last = "x" if node.has_words else ">"
            self._awaits_space = node.after.isspace() or (
                node.has_words and not node.after.isalnum()
            )

    def _needs_space_before(self, node: _Node) -> bool:
        is_word_apart = node.has_words and self._last.isalnum() and not node.before.isalnum()
        return not self._last.isspace() and (node.before.isspace() or is_word_apart)

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._awaits_space and text[0].isalnum():
            self._parts.append(" ")
        self._awaits_space, self._last = False, text[-1]
        self._parts.append(html.escape(text, quote=False))

    def _place(self, node: _Node, words: Span, characters: Span) -> list[tuple[_Node, Span, Span]]:
        """Returns the words and characters of the children of an element, in their new order."""
        first = words[0]
        owners: list[_Node | None] = [None] * (words[1] - first)
        own = {id(child): self._source_words(child) for child in node.children}
        aligned = {
            key: [any(start <= i < end for i in self._aligned[j]) for j in range(*words)]
            for key, (start, end) in own.items()
        }
        placed: list[tuple[_Node, Span, Span]] = []
        # Those with most words choose first.
        for child in sorted(node.children, key=lambda child: -sum(aligned[id(child)])):
            values = [
                None if owner else 1 if is_own else -bool(self._aligned[j])
                for j, owner, is_own in zip(range(*words), owners, aligned[id(child)], strict=True)
            ]
            start, end = _best_run(values)
            if start < end:
                owners[start:end] = [child] * (end - start)
                run = first + start, first + end
                placed.append((child, run, self._characters(child, own[id(child)], run)))
        runs = [span for _, _, span in placed]
        has_run = {id(child) for child, _, _ in placed}
        for child in node.children:
            if id(child) not in has_run:
                place = self._point(child, self._source_words(node), words)
                place = min(max(place, characters[0]), characters[1])
                for start, end in runs:
                    if start < place < end:
                        place = start if place - start < end - place else end
                word = bisect.bisect_left(self._targets, (place, place))
                placed.append((child, (word, word), (place, place)))
        return sorted(placed, key=lambda each: each[2])

    def _source_words(self, node: _Node) -> Span:
        """Returns the words of the plain text that an element has, or has a part of."""
        own = [
            number
            for number, (start, end) in enumerate(self._sources)
            if start < node.end and end > node.start
        ]
        return (own[0], own[-1] + 1) if own and node.start < node.end else (0, 0)

    def _characters(self, node: _Node, own: Span, run: Span) -> Span:
        """Returns the characters of an element that has a run of words of the translation.

        If it leaves out what surrounds the words in the source, such as a comma, it does so here.
        """
        start, end = self._targets[run[0]][0], self._targets[run[1] - 1][1]
        first, last = self._sources[own[0]][0], self._sources[own[1] - 1][1]
        left = self._inner_start(self._plain[first : node.start], own[0], run[0])
        right = self._inner_end(self._plain[node.end : last], own[1] - 1, run[1] - 1)
        return (left, right) if left < right else (start, end)

    def _inner_start(self, lead: str, source: int, target: int) -> int:
        """Returns where an element starts in a word of the translation, if in a word of the source
        `lead` is before it.
        """
        (start, end), word = self._targets[target], self._word(target)
        if word == self._plain[slice(*self._sources[source])]:
            return start + len(lead)
        if not lead or any(map(str.isalnum, lead)):
            return start
        return end - len(word.lstrip(_marks(word)))

    def _inner_end(self, tail: str, source: int, target: int) -> int:
        """Returns where an element ends in a word of the translation, if in a word of the source
        `tail` is after it.
        """
        (start, end), word = self._targets[target], self._word(target)
        if word == self._plain[slice(*self._sources[source])]:
            return end - len(tail)
        if not tail or any(map(str.isalnum, tail)):
            return end
        return start + len(word.rstrip(_marks(word)))

    def _word(self, target: int) -> str:
        return self._translation[slice(*self._targets[target])]

    def _point(self, node: _Node, source_words: Span, words: Span) -> int:
        """Returns the character at which an element without words stands.

        It stands between the words aligned to the one before and to the one after it in the
        source, or where else most of that holds.

        Args:
            node: the element.
            source_words, words: of the element around it, in the source and in the translation.
        """
        first, last = words
        position = node.start
        for source in range(*source_words):
            start, end = self._sources[source]
            if start < position < end:  # within a word
                targets = [j for j in range(first, last) if source in self._aligned[j]]
                if targets:
                    tail = self._plain[position:end]
                    return self._inner_end(tail, source, targets[-1])
        before = bisect.bisect_right([end for _, end in self._sources], position) - 1
        after = before + 1
        is_first, is_last = before < source_words[0], after >= source_words[1]

        def fit(place: int) -> tuple[float, float]:
            left = self._aligned[place - 1] if place > first else set()
            right = self._aligned[place] if place < last else set()
            score = place == first if is_first else (before in left) - 0.5 * (before in right)
            score += place == last if is_last else (after in right) - 0.5 * (after in left)
            share = (after - source_words[0]) / max(source_words[1] - source_words[0], 1)
            return score, -abs(place - first - share * (last - first))

        place = max(range(first, last + 1), key=fit)
        is_of_next = node.before.isspace() and not node.after.isspace() and not node.is_word
        if place < last and (place == first or is_of_next):
            return self._targets[place][0]
        return self._targets[place - 1][1] if place > first else 0


def _marks(word: str) -> str:
    """Returns the characters of a word that are neither letters nor digits."""
    return "".join(character for character in word if not character.isalnum())


def _best_run(values: Sequence[int | None]) -> Span:
    """Returns the run with the largest sum above 0, the longest of these; (0, 0) if there is none.

    No run has None in it.
    """
    best, found = (0, 0), (0, 0)
    start = total = 0
    for place, value in enumerate(values):
        if value is None or total < 0:
            start, total = place + (value is None), 0
        if value is not None:
            total += value
            if total > 0 and (total, place + 1 - start) > best:
                best, found = (total, place + 1 - start), (start, place + 1)
    return found
