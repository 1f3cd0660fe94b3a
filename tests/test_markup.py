"""Markup is put back: each tag once, well-formed, in the same tree, around its words."""

import collections
import gzip
import html
import pathlib
import re
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "client"))

from fake_server import SERVE, SIGNATURES, Model, upper_case_model

from keras_transformer.client import Client, ServingError
from keras_transformer.errors import InputError
from keras_transformer.markup import SplitMarkup, translate_markup
from keras_transformer.results import Translation

_NEWS = pathlib.Path(__file__).parent / "data" / "text" / "newstest2014.gz"
_VOID = ("br", "img")


class _Reverser:
    """Translates words into upper case, from the last to the first."""

    def __init__(self):
        self.sentences = []

    def translate(self, sentences, **options):
        self.sentences = sentences
        return [[Translation(" ".join(each.upper().split()[::-1]), 0.0)] for each in sentences]

    def align(self, source, target):
        counts = [len(each.split()) for each in source]
        return [[(count - 1 - place, place) for place in range(count)] for count in counts]


class _Copier(_Reverser):
    """Translates words into upper case, in order."""

    def translate(self, sentences, **options):
        self.sentences = sentences
        return [[Translation(each.upper(), 0.0)] for each in sentences]

    def align(self, source, target):
        return [[(place, place) for place in range(len(each.split()))] for each in source]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a <b>big dog</b> ran", "RAN <b>DOG BIG</b> A"),
        ("<p>a <b>big <i>dog</i></b> ran</p>", "<p>RAN <b><i>DOG</i> BIG</b> A</p>"),
        ("<a h='x?a=1&amp;b'>one</a> &lt; &amp; two", "TWO &amp; &lt; <a h='x?a=1&amp;b'>ONE</a>"),
        ("<i>a</i> <b>b</b>", "<b>B</b> <i>A</i>"),
        ("no markup", "MARKUP NO"),
        ("<b> </b>", "<b> </b>"),
        ("{name}", "{name}"),
        ("", ""),
    ],
)  # fmt: skip
def test_elements_follow_their_words(text, expected):
    assert translate_markup(_Reverser(), [text]) == [expected]


@pytest.mark.parametrize(
    "text, plain, expected",
    [
        ("Hello {name}, welcome", "Hello, welcome", "HELLO {name}, WELCOME"),
        ("{n} new files", "new files", "{n} NEW FILES"),
        ("You have %d new files.", "You have new files.", "YOU HAVE %d NEW FILES."),
        ("Open %1$s or {{ app.name }} now", "Open or now", "OPEN %1$s OR {{ app.name }} NOW"),
        ("see <b>{x}</b> there", "see there", "SEE <b>{x}</b> THERE"),
        ("see https://a.org/b?c=d&e=f.", "see.", "SEE https://a.org/b?c=d&e=f."),
        ("write to me@a.org, please", "write to, please", "WRITE TO me@a.org, PLEASE"),
        ("见https://a.org/b?c=d。请看", "见。请看", "见https://a.org/b?c=d。请看"),
        ("写信到me@a.org。", "写信到。", "写信到me@a.org。"),
        ("see git+https://a.org/b", "see git+", "SEE GIT+https://a.org/b"),
        ("100% sure and 50%d", "100% sure and 50%d", "100% SURE AND 50%D"),
        ("run <code>a &lt; b</code> twice", "run twice", "RUN <code>a &lt; b</code> TWICE"),
        ("one<br/>two", "one two", "ONE<br/> TWO"),
        ("<p>one</p><p>two</p>", "one two", "<p>ONE</p> <p>TWO</p>"),
        ("(<b>big</b>), he said", "(big), he said", "(<b>BIG</b>), HE SAID"),
        ("un<b>happy</b> dog", "unhappy dog", "<b>UNHAPPY</b> DOG"),
        ("the <b>end</b>.", "the end.", "THE <b>END</b>."),
        ("a <b></b> b", "a  b", "A <b></b> B"),
        ("a <img alt='>' src=x> b <!-- c --> d", "a  b  d", "A <img alt='>' src=x> B <!-- c --> D"),
        ("<b>a <i>b</b> c</i>", "a b c", "<b>A <i>B</b> C</i>"),
        ("a </b> <u>b", "a  b", "A </b> <u>B"),
        ("a &amp;amp; <b>b</b>", "a &amp; b", "A &amp;AMP; <b>B</b>"),
        ("a <!-- b <i>c", "a ", "A <!-- b <i>c "),
        ("a <b <i>c</i>", "a <b c", "A &lt;B <i>C</i>"),
        ("a <code>b <code>c</code> d", "a b d", "A <code>B <code>c</code> D"),
    ],
)
def test_markup_keeps_its_place(text, plain, expected):
    translator = _Copier()
    (found,) = translate_markup(translator, [text])
    assert translator.sentences == [plain]
    assert re.sub(" +", " ", found) == expected


def test_long_words_are_searched_in_linear_time():
    started = time.monotonic()
    SplitMarkup(["a" * 100_000, "a.b-" * 25_000 + "@", "<" + "a" * 100_000])
    for opening in ("<!--", "<! ", "<a", "<a ", '<a "', "<code>"):
        SplitMarkup([opening * 25_000])
    assert time.monotonic() - started < 5  # minutes where the time grows with the square


class _Checker(HTMLParser):
    """Finds elements with their parents; fails for tags that do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text = [], collections.Counter(), ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag, tuple(attrs), tuple(self.open)] += 1
        if tag not in _VOID:
            self.open.append((tag, tuple(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.tags[tag, tuple(attrs), tuple(self.open)] += 1

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        self.text += data


def _mark_up(words, random, depth=0):
    """Returns words with elements around some runs, nested up to four deep, and points."""
    parts, place = [], 0
    while place < len(words):
        size, kind = int(random.integers(1, 6)), random.random()
        run = [html.escape(word, quote=False) for word in words[place : place + size]]
        number = int(random.integers(1_000_000))
        if kind < 0.5 and depth < 4:
            name = ("b", "i", "span", "a")[number % 4]
            inner = _mark_up(words[place : place + size], random, depth + 1)
            parts.append(f'<{name} id="{number}">{inner}</{name}>')
        elif kind < 0.6:
            parts += [f'<br id="{number}"/>', *run]
        elif kind < 0.65:
            parts += [f"{{v{number}}}", *run]
        elif kind < 0.7:
            parts += [*run, f'<i id="{number}"><img src="{number}"></i>']
        else:
            parts += run
        place += size
    return " ".join(parts)


class _Noisy:
    """Translates a sentence into some of its words in another order, with some wrong links."""

    def __init__(self):
        self._links = {}

    def translate(self, sentences, **options):
        return [[Translation(self._shuffle(sentence), 0.0)] for sentence in sentences]

    def align(self, source, target):
        return [self._links[sentence] for sentence in source]

    def _shuffle(self, sentence):
        words = sentence.split()
        random = np.random.default_rng(len(sentence))
        order = np.argsort(np.arange(len(words)) + random.normal(scale=2.0, size=len(words)))
        order = order[random.random(len(words)) < 0.9]
        wrong = random.random(len(order)) < 0.2
        links = np.where(wrong, random.integers(0, len(words), len(order)), order)
        self._links[sentence] = [(int(i), j) for j, i in enumerate(links) if random.random() < 0.95]
        return " ".join(words[i] for i in order)


def marked_up_news(count=200):
    """Returns sentences of the news with markup."""
    lines = gzip.decompress(_NEWS.read_bytes()).decode().splitlines()
    random = np.random.default_rng(7)
    sentences = [line.split("\t")[0].split() for line in lines[:count]]
    return [_mark_up(words, random) for words in sentences]


@pytest.mark.parametrize("translator", [_Noisy, _Reverser, _Copier])
def test_200_sentences_have_each_tag_once_in_the_same_tree(translator):
    texts = marked_up_news()
    assert len(texts) == 200 and sum(text.count("<") for text in texts) > 2000
    translator = translator()
    split = SplitMarkup(texts)
    translations = [best.text for best, *_ in translator.translate(split.sentences)]
    for text, plain, found in zip(
        texts, translations, translate_markup(translator, texts), strict=True
    ):
        before, after = _Checker(text), _Checker(found)
        assert after.tags == before.tags
        names = re.compile(r"\{v\d+\}")
        assert sorted(names.findall(found)) == sorted(names.findall(text))
        assert names.sub("", after.text).split() == plain.split()


def test_most_words_of_elements_stay_in_them():
    texts = marked_up_news()
    kept = total = 0
    for text, found in zip(texts, translate_markup(_Reverser(), texts), strict=True):
        contents = [re.sub(r"<[^>]*>", " ", _first_element(each)) for each in (text, found)]
        words, moved = (
            collections.Counter(re.findall(r"\w+", html.unescape(content).upper()))
            for content in contents
        )
        kept += sum((words & moved).values())
        total += max(sum(words.values()), sum(moved.values()))
    assert kept > 0.97 * total


def _first_element(text):
    """Returns the content of the outer element with the smallest number, if there is one."""
    found = {m[2]: m for m in re.finditer(r'<(b|i|span|a) id="(\d+)">', text)}
    if not found:
        return ""
    start = found[min(found)]
    depth, end = 1, start.end()
    for tag in re.finditer(rf"<(/?){start[1]}[ >]", text[start.end() :]):
        depth += -1 if tag[1] else 1
        if not depth:
            end = start.end() + tag.start()
            break
    return text[start.end() : end]


def test_sentences_of_a_text_are_translated_alone():
    pytest.importorskip("pysbd")
    translator = _Reverser()
    text = "<p>Dr. No <b>left. Who</b> stays?</p> {x} I do."
    (found,) = translate_markup(translator, [text, ""], "en")[:1]
    assert translator.sentences == ["Dr. No left.", "Who stays?", "I do."]
    assert _Checker(found).tags == _Checker(text).tags
    assert found == "<p><b>LEFT.</b> NO DR. STAYS? WHO</p> {x} DO. I"


def test_sentences_without_spaces_between_them_keep_their_elements():
    pytest.importorskip("pysbd")
    split = SplitMarkup(["我爱你。<b>他来了。</b>", "我爱你。他 <b>来了</b>。再见"], "zh")
    assert split.sentences == ["我爱你。", "他来了。", "我爱你。", "他 来了。", "再见"]
    links = [[(0, 0), (0, 1), (0, 2)], [(0, 0), (0, 1)]]
    links += [links[0], [(0, 0), (1, 1)], [(0, 0)]]
    translations = ["I love you.", "He came."] * 2 + ["Bye"]
    assert split.join(translations, links) == [
        "I love you. <b>He came.</b>", "I love you. He <b>came</b>. Bye"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Copied %s%s now", "Copied now"),
        ("{first}{last} came", "came"),
        ("You are %d%% done", "You are done"),
        ("Open https://a.org/u/{id} now", "Open now"),
        ("Open https://a.org/{x}/b, then", "Open, then"),
    ],
)
def test_placeholders_that_touch_are_one_word(text, sentence):
    split = SplitMarkup([text])
    assert split.sentences == [sentence]
    assert split.join([sentence], [[]]) == [text]


def test_wrong_inputs_are_reported():
    with pytest.raises(InputError, match="texts must be a list of sentences, got one"):
        translate_markup(_Copier(), "<b>one</b>")


def test_translator_translates_markup(translator):
    texts = ["<b>two</b> house", "sun &amp; <i>tree <u>cat</u></i>"]
    for text, found in zip(texts, translate_markup(translator, texts), strict=True):
        assert _Checker(found).tags == _Checker(text).tags


every_protocol = pytest.mark.parametrize("protocol", list(SERVE))


def reversing_model() -> Model:
    """Returns a model that reverses the words of a sentence, and attends so."""

    def predict(signature, inputs):
        if signature != "attention":
            texts = [[" ".join(text.split()[::-1])] for text in inputs["text"]]
            return {"translations": texts, "scores": [[-1.0] for _ in texts]}
        columns = [
            [["▁" + word for word in text.split()] + ["</s>"] for text in inputs[side]]
            for side in ("source", "target")
        ]
        width = max(len(row) for column in columns for row in column)
        pieces = [[row + [""] * (width - len(row)) for row in column] for column in columns]
        weights = [np.eye(width)[: len(row) - 1][::-1].tolist() for row in columns[0]]
        weights = [[*row, *np.eye(width)[len(row) :].tolist()] for row in weights]
        return {"attention": weights, "source_pieces": pieces[0], "target_pieces": pieces[1]}

    return Model(SIGNATURES, predict)


@every_protocol
def test_client_translates_200_sentences_with_markup(protocol):
    texts = marked_up_news()
    with (
        SERVE[protocol](reversing_model()) as address,
        Client(address, protocol=protocol) as client,
    ):
        found = translate_markup(client, texts)
        assert translate_markup(client, ["a <b>big dog</b> ran"]) == ["ran <b>dog big</b> a"]
    for text, translation in zip(texts, found, strict=True):
        assert _Checker(translation).tags == _Checker(text).tags


@every_protocol
def test_model_without_attention_is_reported(protocol):
    model = upper_case_model()
    del model.signatures["attention"]
    with (
        SERVE[protocol](model) as address,
        Client(address, protocol=protocol) as client,
        pytest.raises(ServingError, match="without signature attention; it has"),
    ):
        translate_markup(client, ["<b>one</b>"])
