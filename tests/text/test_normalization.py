"""Text before it is tokenized: Unicode's rules, in Python and in a graph."""

import functools
import itertools
import pathlib
import unicodedata

import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_transformer
from keras_transformer.config import UNK_ID
from keras_transformer.text import Tokenizer, Vocabulary, learn_vocabulary
from keras_transformer.text.normalization import CONTROLS, IGNORABLE, JOINERS, SPACES

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
TEXT = ["the old bridge", "größer geht's nicht", "می\u200cخواهم", "à 5\u202f%", "한국 ệ 👩\u200d🌾"]


def learn(**options) -> Vocabulary:
    return learn_vocabulary(TEXT * 3, kind="char", **options)


# Where all unknown characters are spelled in bytes, ids show what was read.
VOCABULARIES = {
    **{name: functools.partial(learn, normalization=name) for name in ("nfc", "nfkc", "identity")},
    "bytes": functools.partial(learn, byte_fallback=True),
    "identity bytes": functools.partial(learn, normalization="identity", byte_fallback=True),
    "package": lambda: Vocabulary.load(next(PACKAGE.glob("pretrained/*/source.model"))),
}
get_vocabulary = functools.cache(lambda name: VOCABULARIES[name]())
COMPOSING = ["nfc", "nfkc", "bytes", "package"]


@functools.cache
def graph_of(name: str):
    tokenizer = Tokenizer(get_vocabulary(name))
    return tf.function(tokenizer.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])


def ids_of(name: str, texts: list[str]) -> list[list[int]]:
    """Returns the ids of texts after a check that Python and the graph agree."""
    ids = get_vocabulary(name).encode(texts)
    assert graph_of(name)(tf.constant(texts)).to_list() == ids
    return ids


UNSEEN = str.maketrans(dict.fromkeys(IGNORABLE, "") | dict.fromkeys(SPACES, " "))
CHARACTERS = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cs", "Cn")]
MARKS = [c for c in CHARACTERS if unicodedata.combining(c)]


def visible(text: str) -> str:
    """Returns text as a vocabulary without joiners and other spaces has to read it."""
    return unicodedata.normalize("NFC", text.translate(UNSEEN))


@pytest.mark.parametrize("name", ["bytes", "package"])
def test_canonically_equal_text_has_equal_ids(name):
    # The cases of Unicode's NormalizationTest.txt: each character that normalization changes, in
    # two forms; and each mark before and after marks of other classes.
    decomposed = [(c, unicodedata.normalize("NFD", c)) for c in CHARACTERS]
    spellings = [text for pair in decomposed if len({*pair}) == 2 for text in pair]
    spellings += [f"a\u0315\u0300\u05ae{c}b" for c in MARKS]
    spellings += [f"a{c}\u0315\u0300\u05aeb" for c in MARKS]
    assert len(spellings) > 27_000
    texts = [f"1{text}1" for text in spellings]
    ids = ids_of(name, texts)
    assert ids == ids_of(name, [*map(visible, texts)])
    if name == "bytes":
        assert get_vocabulary(name).decode(ids) == [*map(visible, texts)]


@pytest.mark.parametrize("normalization", ["nfc", "nfkc"])
@pytest.mark.parametrize(
    "spellings",
    ["\u05d1\u05b0\u05bc \u05d1\u05bc\u05b0", "\u0643\u0651\u064e \u0643\u064e\u0651",
     "ệ e\u0323\u0302 e\u0302\u0323 ê\u0323 ẹ\u0302", "\u212b \xc5 A\u030a"],
)  # fmt: skip
def test_marks_in_any_order_are_one_text(spellings, normalization):
    first, *others = spellings.split(" ")
    vocabulary = learn_vocabulary([first] * 60, normalization=normalization)
    ids = vocabulary.encode([first])
    assert vocabulary.encode(others) == ids * len(others) and UNK_ID not in ids[0]
    assert Tokenizer(vocabulary).tokenize(others).to_list() == ids * len(others)


@pytest.mark.parametrize("name", ["nfc", "nfkc", "identity", "bytes", "package"])
def test_ignorable_characters_are_dropped_unless_they_are_tokens(name):
    vocabulary = get_vocabulary(name)
    known = set("".join(vocabulary.pieces(range(vocabulary.size))))
    # NFKC of other toolkits makes spaces and letters of some.
    dropped = [c for c in IGNORABLE if c not in known and (name != "nfkc" or ord(c) > 0xFFFF)]
    texts = ["the old bridge"] + [f"{c}the {c} old bri{c}{c}dge{c}" for c in dropped]
    assert ids_of(name, texts) == ids_of(name, texts[:1]) * len(texts)
    assert ids_of(name, [f" {c}\n" for c in IGNORABLE]) == [[]] * len(IGNORABLE)


def test_joiners_stay_and_spaces_only_without_normalization():
    texts = ["می\u200cخواهم", "5\u202f%", "👩\u200d🌾"]
    for name, space in (("nfc", " "), ("identity", "\u202f")):
        ids = ids_of(name, texts)
        read = [text.replace("\u202f", space) for text in texts]
        assert get_vocabulary(name).decode(ids) == read and UNK_ID not in itertools.chain(*ids)
    assert ids_of("nfc", ["\u202f", "\u200c"]) == [[], []]


def test_no_break_spaces_of_the_learned_text_are_spaces():
    """Also for programs that read the SentencePiece model alone."""
    spaces = "\xa0\u2000\u2002\u2007\u2009\u202f\u205f\u3000"
    vocabulary = learn_vocabulary([f"a{c}b" for c in spaces] * 9, kind="char")
    assert vocabulary.pieces(range(4, vocabulary.size)) == ["▁", "a", "b"]
    plain = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model_bytes)
    texts = [f"b{c}a" for c in spaces]
    assert plain.encode(texts) == vocabulary.encode(texts) == vocabulary.encode(["b a"]) * 8


@pytest.mark.parametrize("name", ["nfc", "identity", "bytes"])
def test_other_spaces_and_control_characters_separate_words(name):
    spaces = [c for c in SPACES if c != "\u202f" or name != "identity"]
    texts = [f"the{c}old {c}bridge{c}" for c in spaces]
    assert ids_of(name, texts) == ids_of(name, ["the old bridge"]) * len(texts)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.text(
            st.one_of(
                st.sampled_from("aeo éệ한\u1112\u1161\u11ab1>\u05d1\u064a"),
                st.sampled_from(MARKS),
                st.sampled_from([*JOINERS, "\u034f", "\ufe0f", "\u115f", "\xad", *SPACES]),
                st.characters(exclude_categories=("Cs", "Cn")),
            )
        ),
        min_size=1,
    ),
    st.sampled_from([*VOCABULARIES]),
)
def test_any_text_has_the_same_ids_in_python_and_in_the_graph(texts, name):
    ids = ids_of(name, texts)
    if name in COMPOSING:
        for form in ("NFC", "NFD"):
            assert ids_of(name, [unicodedata.normalize(form, text) for text in texts]) == ids
        unseen = [text + "\ufe0f\u034f" for text in texts]
        assert ids_of(name, unseen) == ids
    if name == "bytes":
        decoded = get_vocabulary(name).decode(ids)
        spelled = [" ".join(text.replace("▁", " ").split(" ")) for text in decoded]
        assert ids_of(name, spelled) == ids


def test_bytes_that_are_not_utf8_are_unknown_tokens_beside_invisible_characters():
    text = tf.constant([b"old\xe2\x80\x8b\xe4 old", b"\xffe\xcc\x81\xff"])
    ids = graph_of("nfc")(text).to_list()
    assert ids == get_vocabulary("nfc").encode(["old\ue000 old", "\ue000é\ue000"])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
@settings(max_examples=10, deadline=None)
@given(
    lines=st.lists(
        st.lists(
            st.one_of(
                st.sampled_from(["<s>", "</s>", "<unk>", "<pad>", "<0x41>", "▅", "⁇", "<", "s>"]),
                st.sampled_from(
                    ["e\u0301", "\u05d1\u05bc\u05b0", "\ufeff", "\xad", "\x07", "❤\ufe0f"]
                ),
                st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=3),
            )
        ).map("".join),
        min_size=1,
        max_size=5,
    )
)
def test_each_character_of_the_learned_text_has_a_token(kind, lines):
    lines = ["ein Hund", *lines]
    vocabulary = learn_vocabulary(lines, kind=kind)
    ids = vocabulary.encode(lines)
    assert UNK_ID not in itertools.chain(*ids)
    assert vocabulary.decode(ids) == [vocabulary.normalize(line).strip(" ") for line in lines]
    learned = set("".join(vocabulary.pieces(range(4, vocabulary.size))))
    assert not learned & ({*IGNORABLE, *CONTROLS} - {*JOINERS})
