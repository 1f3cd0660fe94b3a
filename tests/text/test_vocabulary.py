"""Learning, saving and using a vocabulary outside the graph."""

import hashlib
import io
import os
import re
import types

import pytest
import sentencepiece

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.text import Vocabulary, learn_vocabulary

KINDS = ["bpe", "unigram", "char", "word"]
SENTENCES = [
    "Zwei junge Männer sind im Freien in der Nähe vieler Büsche.",
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "Zwei Männer stehen am Herd und bereiten Essen zu.",
    "Ein Hund rennt über die Wiese, und ein Kind rennt ihm nach.",
]
NUM_CHARACTERS = len(set("".join(SENTENCES)))


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return learn_vocabulary(SENTENCES, size=80)


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        ("bpe", 70, 70),
        ("unigram", 70, 70),
        ("char", 1000, 4 + NUM_CHARACTERS),
        ("word", 1000, 4 + len(set(" ".join(SENTENCES).split()))),
    ],
)
def test_size_and_first_four_tokens(kind, size, expected):
    vocabulary = learn_vocabulary(SENTENCES, size=size, kind=kind)
    assert vocabulary.size == expected
    reserved = vocabulary.pieces([PAD_ID, UNK_ID, BOS_ID, EOS_ID])
    assert reserved == ["<pad>", "<unk>", "<s>", "</s>"]
    assert vocabulary.decode(vocabulary.encode(SENTENCES)) == SENTENCES


@pytest.mark.parametrize(
    ("kind", "text", "size", "pieces"),
    [
        ("word", "a a a b b c", 4 + 2, ["▁a", "▁b"]),  # the most frequent ones
        # Sennrich et al. 2016: "a b" stands five times, "ab c" three times; nothing else repeats.
        ("bpe", "xab yab xabc yabc zabc", 4 + 7 + 2, ["ab", "abc"]),
    ],
)
def test_tokens_are_the_most_frequent_words_or_merges(kind, text, size, pieces):
    assert learn_vocabulary([text], size=size, kind=kind).pieces([4, 5]) == pieces


@pytest.mark.parametrize(
    ("normalization", "text", "normal"),
    [
        ("nfc", "  ﬁx…  Ａ１\te\u0301 ", "ﬁx… Ａ１ é"),
        ("nfkc", "  ﬁx…\tＡ１\u200b  e\u0301\x01 ", "fix... A1 é"),
        ("identity", "  ﬁx… Ａ１  e\u0301 ", "ﬁx… Ａ１ e\u0301"),  # only squeezes spaces
    ],
)
def test_normalization_by_name(normalization, text, normal):
    vocabulary = learn_vocabulary(SENTENCES, size=80, normalization=normalization)
    assert vocabulary.normalize(text) == normal


def test_symbols_are_one_token_each_however_rare():
    text = ["the cat sat on the mat"] * 3
    vocabulary = learn_vocabulary(text, size=30, symbols=["⟨NP", "∕DT"])
    assert vocabulary.size == 30
    (ids,) = vocabulary.encode(["the ∕DT cat ⟨NP"])
    pieces = vocabulary.pieces(ids)
    assert (pieces.count("▁∕DT"), pieces.count("▁⟨NP")) == (1, 1)
    assert vocabulary.decode([ids]) == ["the ∕DT cat ⟨NP"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_numbers_are_read_digit_by_digit(kind):
    vocabulary = learn_vocabulary(["in 2024 or 2023, room 17", "2024 17 17"] * 9, kind=kind)
    (ids,) = vocabulary.encode(["2024 17"])
    pieces = [piece for piece in vocabulary.pieces(ids) if piece != "▁"]
    assert [piece.lstrip("▁") for piece in pieces] == list("202417")


def test_space_ids_are_the_tokens_of_nothing_but_spaces():
    characters = learn_vocabulary(["ein Hund"], size=20, kind="char")
    assert characters.pieces(characters.space_ids) == ["▁"]
    assert learn_vocabulary(["ein Hund"], size=20, kind="word").space_ids == ()


@pytest.mark.parametrize("kind", KINDS)
def test_same_text_gives_the_same_bytes(kind):
    settings = dict(size=60, kind=kind, normalization="nfc")
    first = learn_vocabulary(SENTENCES, **settings)
    assert first.fingerprint == hashlib.sha256(first.model_bytes).hexdigest()
    assert b".tsv" not in first.model_bytes  # the file of its rules
    packed = [sentence.encode() for sentence in SENTENCES]
    with_ends = [sentence + "\r\n" for sentence in SENTENCES]
    for same in (iter(SENTENCES), packed, with_ends):
        assert learn_vocabulary(same, **settings).model_bytes == first.model_bytes
    assert first.encode(packed) == first.encode(SENTENCES)


def test_sample_does_not_depend_on_the_order():
    numbers = [str(number) for number in range(1000)]
    first, second = (
        learn_vocabulary(lines, size=1000, kind="word", max_sentences=50)
        for lines in (numbers, reversed(numbers))
    )
    assert first.model_bytes == second.model_bytes
    words = first.pieces(range(4, first.size))
    assert len(words) == 50
    assert {int(word[1:]) // 250 for word in words} == {0, 1, 2, 3}  # from all of the text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_very_long_lines_are_learned_from(kind):
    spaced, unbroken = "Hund und Katze " * 10_000, "é" * 100_000
    vocabulary = learn_vocabulary(["x", spaced, unbroken], size=17, kind=kind)
    assert UNK_ID not in vocabulary.encode(["Hund und Katze é"])[0]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_largest_and_smallest_size_are_named_and_the_default_is_the_largest(kind):
    largest = learn_vocabulary(SENTENCES, kind=kind)
    for size in (8000, largest.size + 1):
        message = f"{kind} vocabulary of size {size}: .*a value <= {largest.size}"
        with pytest.raises(InputError, match=message):
            learn_vocabulary(SENTENCES, size=size, kind=kind)
    asked = learn_vocabulary(SENTENCES, size=largest.size, kind=kind)
    assert asked.pieces(range(asked.size)) == largest.pieces(range(largest.size))
    smallest = 4 + NUM_CHARACTERS
    with pytest.raises(InputError, match=f"size 10: .* 10 vs {smallest}"):
        learn_vocabulary(SENTENCES, size=10, kind=kind)
    assert learn_vocabulary(SENTENCES, size=smallest, kind=kind).size == smallest


@pytest.mark.parametrize(
    ("sentences", "options", "message"),
    [
        ([], {}, "there is no text"),
        (["", "\u200b"], {}, "there is no text"),
        ("ein Hund", {}, "sentences must be a list of sentences, got one: 'ein Hund'"),
        ({"ein": "Hund"}, {}, "must be a list of sentences, got a dict"),
        (None, {}, "must be a list of sentences, got a NoneType"),
        (SENTENCES, {"symbols": [""]}, "symbols must be words in .*, got ''"),
        (SENTENCES, {"symbols": ["cafe\u0301"]}, "symbols must be words in normalization form C"),
        (["ab\udcff"], {}, "must be Unicode, got a lone"),
        ([b"gr\xfcn"], {}, r"text must be UTF-8, got b'gr\\xfcn'"),
        (["ein", None], {}, "text must be a string, got None"),
        ([float("nan")], {"max_sentences": 9}, "text must be a string, got nan"),
        (SENTENCES, {"size": 4}, "size must be from 5 to 2,147,483,647, got 4"),
        (SENTENCES, {"size": 260, "byte_fallback": True}, "size must be from 261 to"),
        (SENTENCES, {"size": 1 << 31}, "size must be from 5 to"),
        (SENTENCES, {"kind": "wordpiece"}, "kind must be one of bpe, .* got 'wordpiece'"),
        (SENTENCES, {"normalization": "nfd"}, "normalization must be one of .* got 'nfd'"),
        (SENTENCES, {"character_coverage": 1.5}, "character_coverage must be .* got 1.5"),
    ],
    ids=str,
)
def test_wrong_text_and_options_are_rejected(sentences, options, message):
    with pytest.raises(InputError, match=message):
        learn_vocabulary(sentences, **{"size": 60, **options})


TABLE = types.SimpleNamespace(columns=["en"], __iter__=iter)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda vocabulary: vocabulary.encode("ein Hund"), "a list of sentences, got one:"),
        (lambda vocabulary: vocabulary.encode(TABLE), "a list of sentences, got a SimpleNamespace"),
        (lambda vocabulary: vocabulary.encode(["ein", "ab\udcff"]), "must be Unicode, got a lone"),
        (lambda vocabulary: vocabulary.decode([[5, -1]]), "out of range"),
        (lambda vocabulary: vocabulary.pieces([5, 80]), "out of range"),
    ],
)
def test_wrong_arguments_are_rejected(vocabulary, use, message):
    with pytest.raises((InputError, IndexError), match=message):
        use(vocabulary)


def test_reader_errors_are_passed_on_and_nothing_is_printed(capfd):
    def sentences():
        yield from SENTENCES
        raise InputError("line 6 is not UTF-8")

    learn_vocabulary(SENTENCES, size=60)
    with pytest.raises(InputError, match=r"^line 6 is not UTF-8$"):
        learn_vocabulary(sentences(), size=60)
    with pytest.raises(InputError):
        learn_vocabulary(SENTENCES, size=60_000)
    assert capfd.readouterr() == ("", "")


def test_vocabulary_file_round_trip(vocabulary, tmp_path):
    path = tmp_path / "subwords.model"
    path.write_bytes(b"an older one")
    vocabulary.save(path)
    loaded = Vocabulary.load(path)
    assert loaded.fingerprint == vocabulary.fingerprint
    assert loaded.encode(SENTENCES) == vocabulary.encode(SENTENCES)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("content", [None, b"", b"no model", "cut"])
def test_missing_or_damaged_file_is_named(vocabulary, tmp_path, content):
    path = tmp_path / "subwords.model"
    if content == "cut":
        content = vocabulary.model_bytes[:-1000]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"cannot read the vocabulary {re.escape(str(path))}: "):
        Vocabulary.load(path)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "ids",
    [{}, {"unk_id": 1, "bos_id": -1, "eos_id": 0}, {"pad_id": 3}, {"bos_id": 7, "eos_id": 8}],
    ids=str,
)
def test_sentencepiece_model_with_other_ids_is_rewritten(tmp_path, kind, ids):
    path, model = tmp_path / "ordinary.model", io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=60, minloglevel=2,
        model_type=kind, **ids,
    )  # fmt: skip
    path.write_bytes(model.getvalue())
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    vocabulary = Vocabulary.load(path)
    added = [theirs.pad_id(), theirs.bos_id(), theirs.eos_id()].count(-1)
    assert vocabulary.size == 60 + added
    sentences = [*SENTENCES, "ein Ω Hund"]
    expected = [theirs.id_to_piece(ids) for ids in theirs.encode(sentences, out_type=int)]
    assert [vocabulary.pieces(ids) for ids in vocabulary.encode(sentences)] == expected
    assert vocabulary.decode(vocabulary.encode(SENTENCES)) == SENTENCES
    vocabulary.save(path)
    assert Vocabulary.load(path).fingerprint == vocabulary.fingerprint
