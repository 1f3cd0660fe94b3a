"""Tokenizing inside the graph: the same ids and text as outside it, also after export."""

import pathlib
import random
import time

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.files import read_lines
from keras_transformer.text import Tokenizer, Vocabulary, learn_vocabulary

DATA = pathlib.Path(__file__).parents[1] / "data" / "text"
KINDS = ["bpe", "unigram", "char", "word"]
SCRIPTS = [
    "The old bridge over the river was closed for three years.",
    "Straßenbahnen, Äpfel und Übermut: größer geht's nicht!",
    "الجسر القديم فوق النهر مُغلق منذ ثلاث سنوات.",
    "Старый мост через реку был закрыт три года.",
    "河上的旧桥关闭了三年。",
    "नदी पर पुराना पुल तीन साल से बंद था।",
    "Ｆｕｌｌ－ｗｉｄｔｈ ﬁne ﬂow… ½ ① ㎏ ﷺ",
    "cafe\u0301 A\u030angstro\u0308m ệ e\u0323\u0302",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🙂",
    "tabs\tand\u00a0no-break\u3000wide spaces\u2028lines\u3000",
]
ODDITIES = [
    "",
    " ",
    " \t \u3000 ",
    "\u200b",
    "zero\u200bwidth\u200djoined\ufeffmarks\u00adsoft",
    "controls\x00\x01\x1f\x7f\x85here",
    "  many    spaces  ",
    "line\nbreak\r\nand\x0bmore",
    "<s> </s> <pad> <unk>",
    "unknown Ω ж 龘 ꙮ \U0010ffff \ue000 characters",
    "▁ written ▁▁out ▅ ⁇",
    "\u0301 begins with an accent",
    "the bridge " * 10_000,
    "旧桥" * 55_000,
    "a" * 100_001,
]


def _learn(kind: str, normalization: str = "nfkc", byte_fallback: bool = False) -> Vocabulary:
    size = {"bpe": 400, "unigram": 150, "char": 1000, "word": 1000}[kind] + 256 * byte_fallback
    return learn_vocabulary(
        SCRIPTS * 3, size=size, kind=kind, normalization=normalization, byte_fallback=byte_fallback
    )


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request) -> Tokenizer:
    return Tokenizer(_learn(request.param))


def _texts(strings: tf.Tensor) -> list[str]:
    return [string.decode() for string in strings.numpy()]


@pytest.mark.parametrize(
    ("kind", "normalization", "byte_fallback"),
    [*((kind, "nfkc", False) for kind in KINDS),
     ("bpe", "identity", False), ("unigram", "nfkc", True), ("word", "identity", False)],
)  # fmt: skip
def test_ids_and_their_text_are_those_of_python(kind, normalization, byte_fallback):
    vocabulary = _learn(kind, normalization, byte_fallback)
    tokenizer, texts = Tokenizer(vocabulary), SCRIPTS + ODDITIES
    ids = tokenizer.tokenize(tf.constant(texts))
    assert ids.to_list() == vocabulary.encode(texts)
    assert not tf.reduce_any(ids[: len(SCRIPTS)].flat_values == UNK_ID)
    found = _texts(tokenizer.detokenize(ids))
    assert found == vocabulary.decode(ids.to_list())
    assert found[: len(SCRIPTS)] == [vocabulary.normalize(text) for text in SCRIPTS]


def _near_ties() -> tuple[list[str], list[str]]:
    """Gives sentences to learn from, and text that unigrams cut in almost equally likely ways."""
    generator = random.Random(1)
    letters = "aehilnorst"
    words = ["".join(generator.choices(letters, k=generator.randrange(1, 7))) for _ in range(300)]
    frequencies = [1 / rank for rank in range(1, 301)]
    sentences = [" ".join(generator.choices(words, frequencies, k=12)) for _ in range(500)]
    return sentences, ["".join(generator.choices(letters + "  ", k=5000)) for _ in range(40)]


def _real_text() -> tuple[list[str], list[str]]:
    lines = [*read_lines(DATA / "newstest2014.gz"), *read_lines(DATA / "arabic_words.gz")]
    return lines[::2], [*lines, " ".join(lines)[:120_000]]


@pytest.mark.parametrize(
    ("options", "make"),
    [
        ({"kind": "unigram", "size": 200}, _near_ties),
        *(({"kind": kind, "size": 1000}, _real_text) for kind in KINDS),
    ],
)
def test_much_text_has_the_ids_of_python_and_comes_back(options, make):
    sentences, texts = make()
    vocabulary = learn_vocabulary(sentences, **options)
    ids = Tokenizer(vocabulary).tokenize(tf.constant(texts)).to_list()
    assert ids == vocabulary.encode(texts)
    known = [(row, text) for row, text in zip(ids, texts, strict=True) if UNK_ID not in row]
    decoded = vocabulary.decode([row for row, _ in known])
    assert known and decoded == [vocabulary.normalize(text) for _, text in known]


def test_invalid_utf8_becomes_unknown(tokenizer):
    generator = random.Random(1)
    broken = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\x80", b"\xf0\x9f\x98"]
    broken += [generator.randbytes(generator.randrange(60)) for _ in range(500)]
    rows = tokenizer.tokenize(tf.constant([*broken, b"the old bridge"])).to_list()
    assert all(UNK_ID in row for row in rows[:6])
    assert rows[-1] == tokenizer.vocabulary.encode(["the old bridge"])[0]


def test_bytes_spell_unknown_words_and_control_characters_read_as_spaces():
    vocabulary = _learn("bpe", byte_fallback=True)
    tokenizer = Tokenizer(vocabulary)
    first = vocabulary.pieces(range(vocabulary.size)).index("<0x00>")
    [old] = vocabulary.encode(["old"])
    rows = [[*old, first + byte, *old] for byte in range(256)]
    rows += [[*old, *(first + byte for byte in char.encode()), *old] for char in "\x85\x9f\xa0é\n"]
    texts = vocabulary.decode(rows)
    assert texts == _texts(tokenizer.detokenize(tf.ragged.constant(rows).to_tensor(PAD_ID)))
    assert all(len(text.splitlines()) == 1 and "\t" not in text for text in texts)
    assert texts[10] == texts[9] == "old  old"
    assert texts[65] == "oldA old"
    words = learn_vocabulary(["ein Hund"], kind="word", byte_fallback=True)
    ids = words.encode(unknown := ["Œuvre ein Œdem Œuvre", "ein Ω"])
    assert words.decode(ids) == unknown
    assert _texts(Tokenizer(words).detokenize(tf.ragged.constant(ids))) == unknown


def test_decoding_skips_pad_and_bos_and_stops_at_eos(tokenizer):
    [old, bridge] = tokenizer.vocabulary.encode(["old", "bridge"])
    row = [BOS_ID, PAD_ID, *old, PAD_ID, EOS_ID, *bridge, EOS_ID, PAD_ID]
    assert _texts(tokenizer.detokenize(tf.constant([row]))) == ["old"]
    assert tokenizer.vocabulary.decode([row]) == ["old"]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_detokenizing_keeps_any_leading_shape(tokenizer, dtype):
    [ids] = tokenizer.vocabulary.encode(["the old bridge"])
    for row, expected in ((ids, {b"the old bridge"}), ([], {b""})):
        for leading in ((), (3,), (2, 3), (2, 1, 3), (0,), (2, 0)):
            text = tokenizer.detokenize(np.full((*leading, len(row)), row, dtype))
            assert text.shape == leading
            assert set(np.ravel(text.numpy()).tolist()) <= expected
    signature = [tf.TensorSpec([None, 4, None], dtype)]
    traced = tf.function(tokenizer.detokenize, input_signature=signature).get_concrete_function()
    assert traced.output_shapes.as_list() == [None, 4]
    ids = tokenizer.tokenize(tf.zeros([0], tf.string))
    assert (ids.shape.as_list(), ids.dtype) == ([0, None], tf.int32)


def test_surfaces_are_the_parts_of_the_text(tokenizer):
    texts = ["the bridge龘龘  of ꙮ", "", "龘", "bridge"]
    ids, surfaces = (
        each.to_list() for each in tokenizer.tokenize_with_surfaces(tf.constant(texts), 20)
    )
    assert ids == tokenizer.tokenize(tf.constant(texts), 20).to_list()
    assert [len(row) for row in surfaces] == [len(row) for row in ids]
    parts = [[part.decode() for part in row] for row in surfaces]
    assert ["".join(row).replace(" ", "") for row in parts] == [
        text.replace(" ", "") for text in texts
    ]
    unknown = [
        [part for part, token in zip(*row, strict=True) if token == UNK_ID]
        for row in zip(parts, ids, strict=True)
    ]
    assert unknown[2] == ["龘"] and not unknown[1]
    # Where all tokens are words, neighbouring unknown words are one.
    assert "龘龘" in unknown[0][0] and unknown[0][-1].endswith("ꙮ")


def test_ids_outside_the_vocabulary_are_an_error(tokenizer):
    with pytest.raises(tf.errors.OutOfRangeError, match="Invalid id"):
        tokenizer.detokenize(tf.constant([[4, tokenizer.vocabulary.size]]))


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_text_has_the_first_tokens_of_the_whole(kind):
    generator = random.Random(1)
    words = ["ein", "Hund", "läuft", "über", "die", "Straße", "ﬁnal", "ｗｉｄｅ", "木木", "😀"]
    lines = [" ".join(generator.choices(words[:-1], k=8)) for _ in range(200)]
    size = {"bpe": 40, "unigram": 30, "char": 24, "word": 10}[kind]
    vocabulary = learn_vocabulary(lines, size=size, kind=kind)
    texts = [
        " ".join(generator.choices(words, k=20_000)),
        " ".join(generator.choices(words, k=3)),
        "",
        "Straßen" * 3 + " " + "Hund " * 20_000,
    ]
    whole = vocabulary.encode(texts)
    for most in (1, 5, 40):
        assert vocabulary.max_characters(most) < len(texts[0]) // 2
        found = Tokenizer(vocabulary).tokenize(tf.constant(texts), most)
        assert found.to_list() == [row[:most] for row in whole]


@pytest.mark.parametrize("text", [b"\x80", b"\xff", "я".encode(), b"ein Hund ", b"\xcc\x81"])
def test_of_megabytes_only_the_beginning_is_read(text):
    tokenizer = Tokenizer(learn_vocabulary(["ein Hund"] * 5, size=16, kind="char"))
    texts = [tf.constant([text * (count // len(text))]) for count in (1000, 50_000_000)]
    seconds = []
    for each in texts:
        start = time.process_time()
        tokenizer.tokenize(each, 3)
        seconds.append(time.process_time() - start)
    assert seconds[1] < seconds[0] + 0.5  # all of it would take seconds
