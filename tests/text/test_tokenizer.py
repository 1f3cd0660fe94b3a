"""Tokenizing inside the graph: the same ids and text as outside it, also after export."""

import pathlib
import random

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
    "tabs\tand\u00a0no-break\u3000wide spaces\u2028lines",
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
    size = {"bpe": 400, "unigram": 150, "char": 1000, "word": 1000}[kind]
    return learn_vocabulary(
        SCRIPTS * 3,
        size=size + 256 * byte_fallback,
        kind=kind,
        normalization=normalization,
        byte_fallback=byte_fallback,
    )


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request) -> Tokenizer:
    return Tokenizer(_learn(request.param))


def _texts(strings: tf.Tensor) -> list[str]:
    return [string.decode() for string in strings.numpy()]


def test_ids_match_python(tokenizer):
    texts = SCRIPTS + ODDITIES
    assert tokenizer.tokenize(tf.constant(texts)).to_list() == tokenizer.vocabulary.encode(texts)


@pytest.mark.parametrize(
    ("kind", "normalization", "byte_fallback"),
    [("bpe", "identity", False), ("unigram", "nfkc", True), ("word", "identity", False)],
)
def test_ids_match_python_with_other_options(kind, normalization, byte_fallback):
    vocabulary = _learn(kind, normalization, byte_fallback)
    texts = SCRIPTS + ODDITIES
    ids = vocabulary.encode(texts)
    tokenizer = Tokenizer(vocabulary)
    assert tokenizer.tokenize(tf.constant(texts)).to_list() == ids
    padded = tf.ragged.constant(ids, dtype=tf.int32).to_tensor(PAD_ID)
    assert _texts(tokenizer.detokenize(padded)) == vocabulary.decode(ids)


def test_near_ties_match_python():
    generator = random.Random(1)
    letters = "aehilnorst"
    words = ["".join(generator.choices(letters, k=generator.randrange(1, 7))) for _ in range(300)]
    frequencies = [1 / rank for rank in range(1, 301)]
    sentences = [" ".join(generator.choices(words, frequencies, k=12)) for _ in range(500)]
    vocabulary = learn_vocabulary(sentences, size=200, kind="unigram")
    texts = ["".join(generator.choices(letters + "  ", k=5000)) for _ in range(40)]
    ids = Tokenizer(vocabulary).tokenize(tf.constant(texts)).to_list()
    assert ids == vocabulary.encode(texts)


def test_text_comes_back_as_in_python(tokenizer):
    ids = tokenizer.tokenize(tf.constant(SCRIPTS + ODDITIES))
    assert not tf.reduce_any(ids[: len(SCRIPTS)].flat_values == UNK_ID)
    texts = _texts(tokenizer.detokenize(ids))
    assert texts == tokenizer.vocabulary.decode(ids.to_list())
    assert texts[: len(SCRIPTS)] == [tokenizer.vocabulary.normalize(text) for text in SCRIPTS]


def test_unknown_token_reads_as_question_marks(tokenizer):
    bridge = "bridge over the river"
    ids = tokenizer.tokenize(tf.constant([f"龘 {bridge} 龘 {bridge} 龘"]))
    text = tokenizer.detokenize(ids.to_tensor())
    assert _texts(text) == [f"⁇ {bridge} ⁇ {bridge} ⁇"]


def test_invalid_utf8_becomes_unknown(tokenizer):
    generator = random.Random(1)
    broken = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\x80", b"\xf0\x9f\x98"]
    broken += [generator.randbytes(generator.randrange(60)) for _ in range(500)]
    rows = tokenizer.tokenize(tf.constant([*broken, b"the old bridge"])).to_list()
    assert all(UNK_ID in row for row in rows[:6])
    assert rows[-1] == tokenizer.vocabulary.encode(["the old bridge"])[0]


def test_generated_control_characters_read_as_spaces():
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


def test_decoding_skips_pad_and_bos_and_stops_at_eos(tokenizer):
    [old, bridge] = tokenizer.vocabulary.encode(["old", "bridge"])
    row = [BOS_ID, PAD_ID, *old, PAD_ID, EOS_ID, *bridge, EOS_ID, PAD_ID]
    assert _texts(tokenizer.detokenize(tf.constant([row]))) == ["old"]
    assert tokenizer.vocabulary.decode([row]) == ["old"]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_detokenizing_keeps_any_leading_shape(tokenizer, dtype):
    [ids] = tokenizer.vocabulary.encode(["the old bridge"])
    for leading in ((), (3,), (2, 3), (2, 1, 3), (0,), (2, 0)):
        text = tokenizer.detokenize(np.full((*leading, len(ids)), ids, dtype))
        assert text.shape == leading
        assert set(np.ravel(text.numpy()).tolist()) <= {b"the old bridge"}
    for leading in ((2,), (2, 3), (0,)):
        text = tokenizer.detokenize(np.zeros((*leading, 0), dtype))
        assert text.shape == leading
        assert set(np.ravel(text.numpy()).tolist()) <= {b""}


def test_surfaces_are_the_parts_of_the_text(tokenizer):
    texts = ["the bridge龘龘  of ꙮ", "", "龘", "bridge"]
    ids, surfaces = (
        each(tf.constant(texts), 20).to_list() for each in (tokenizer.tokenize, tokenizer.surfaces)
    )
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


def test_shapes_are_known_while_tracing(tokenizer):
    @tf.function(input_signature=[tf.TensorSpec([None, 4, None], tf.int32)])
    def detokenize(ids):
        text = tokenizer.detokenize(ids)
        assert text.shape.as_list() == [None, 4]
        return text

    assert detokenize(tf.zeros([2, 4, 5], tf.int32)).shape == (2, 4)
    ids = tokenizer.tokenize(tf.zeros([0], tf.string))
    assert (ids.shape.as_list(), ids.dtype) == ([0, None], tf.int32)


def test_ids_outside_the_vocabulary_are_an_error(tokenizer):
    with pytest.raises(tf.errors.OutOfRangeError, match="Invalid id"):
        tokenizer.detokenize(tf.constant([[4, tokenizer.vocabulary.size]]))


class _Pair(tf.Module):
    """Two tokenizers with different models, as a translation model has."""

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        super().__init__()
        self.tokenizers = source, target

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(self, text):
        ids = [tokenizer.tokenize(text).to_tensor(PAD_ID) for tokenizer in self.tokenizers]
        texts = [each.detokenize(row) for each, row in zip(self.tokenizers, ids, strict=True)]
        return {
            "source": ids[0],
            "target": ids[1],
            "from_source": texts[0],
            "from_target": texts[1],
        }


@pytest.mark.parametrize("loader", ["eager", "session"])
def test_two_tokenizers_in_one_saved_model(tmp_path, loader):
    vocabularies = {"source": _learn("bpe"), "target": _learn("char")}
    pair = _Pair(*map(Tokenizer, vocabularies.values()))
    tf.saved_model.save(pair, str(tmp_path), signatures=pair.serve)
    texts = [SCRIPTS[0], SCRIPTS[4], "Ω bridge", ""]
    if loader == "eager":
        outputs = tf.saved_model.load(str(tmp_path)).signatures["serving_default"](
            tf.constant(texts)
        )
        answer = {name: value.numpy() for name, value in outputs.items()}
    else:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            meta = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path))
            signature = meta.signature_def["serving_default"]
            fetches = {name: info.name for name, info in signature.outputs.items()}
            answer = session.run(fetches, {signature.inputs["text"].name: texts})
    for side, vocabulary in vocabularies.items():
        rows = [[id_ for id_ in row if id_ != PAD_ID] for row in answer[side].tolist()]
        assert rows == vocabulary.encode(texts)
        assert [text.decode() for text in answer[f"from_{side}"]] == vocabulary.decode(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_real_text_match_python(kind):
    lines = [*read_lines(DATA / "newstest2014.gz"), *read_lines(DATA / "arabic_words.gz")]
    vocabulary = learn_vocabulary(lines[::2], size=1000, kind=kind)
    texts = [*lines, " ".join(lines)[:120_000]]
    ids = Tokenizer(vocabulary).tokenize(tf.constant(texts)).to_list()
    assert ids == vocabulary.encode(texts)


class Recording:
    """A SentencePiece tokenizer that keeps the bytes that it is given."""

    def __init__(self, sentencepiece):
        self.sentencepiece = sentencepiece
        self.read = []

    def tokenize(self, text):
        self.read += text.numpy().tolist()
        return self.sentencepiece.tokenize(text)


@pytest.mark.parametrize("kind", KINDS)
def test_long_text_is_cut_before_tokenization(kind, monkeypatch):
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
    tokenizer = Tokenizer(vocabulary)
    for most in (1, 5, 40):
        limit = vocabulary.max_characters(most)
        assert limit < len(texts[0]) // 2
        assert vocabulary.encode(texts, max_tokens=most) == [row[:most] for row in whole]
        sentencepiece = Recording(Tokenizer(vocabulary)._sentencepiece())
        monkeypatch.setattr(tokenizer, "_sentencepiece", lambda it=sentencepiece: it)
        found = tokenizer.tokenize(tf.constant(texts), most)
        assert found.to_list() == [row[:most] for row in whole]
        assert [each.decode() for each in sentencepiece.read] == [text[:limit] for text in texts]


@pytest.mark.parametrize("text", [b"\x80" * 100_000, b"\xff" * 100_000, "я".encode() * 50_000])
def test_number_of_tokenized_bytes_is_bounded(text, monkeypatch):
    vocabulary = learn_vocabulary(["ein Hund"] * 5, size=16, kind="char")
    tokenizer = Tokenizer(vocabulary)
    sentencepiece = Recording(tokenizer._sentencepiece())
    monkeypatch.setattr(tokenizer, "_sentencepiece", lambda: sentencepiece)
    tokenizer.tokenize(tf.constant([text]), 3)
    assert 0 < len(sentencepiece.read[0]) <= 4 * vocabulary.max_characters(3)
