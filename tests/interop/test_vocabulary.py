"""The tokenizers of a published OPUS model, rewritten, give the ids that MarianTokenizer gives."""

import functools
import json
import random

import pytest
import sentencepiece
import tensorflow as tf
from samples import opus_vocabulary

from keras_transformer.config import EOS_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.interop import read_model
from keras_transformer.text import Tokenizer


@pytest.fixture(scope="module")
def folder(sample_model):
    return sample_model("opus_tokenizers")


@pytest.fixture(scope="module")
def load(folder):
    """Gives the vocabulary of a side, and our id of each of theirs."""
    return functools.partial(opus_vocabulary, folder)


def check_ids(vocabulary, texts, expected):
    """Compares ids in Python and in a graph."""
    assert vocabulary.encode(texts) == expected
    assert Tokenizer(vocabulary).tokenize(tf.constant(texts)).to_list() == expected


@pytest.mark.parametrize("name", ["source", "target", "odd"])
def test_opus_tokenizers_give_marian_tokenizers_ids(name, folder, load):
    vocabulary, ours = load("target" if name == "target" else "source")
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    entries = [json.loads(line) for line in lines if line]
    # MarianTokenizer takes these names for special tokens.
    special = ("</s>", "<pad>")
    entries = [each for each in entries if not any(name in each["text"] for name in special)]
    assert len(entries) >= (100 if name == "odd" else 490)
    texts = [entry["text"] for entry in entries]
    expected = [[ours[id_] for id_ in entry["ids"]][:-1] for entry in entries]  # without EOS
    check_ids(vocabulary, texts, expected)
    ids, surfaces = Tokenizer(vocabulary).tokenize_with_surfaces(tf.constant(texts), 999)
    assert ids.to_list() == expected
    assert [len(row) for row in surfaces.to_list()] == [len(row) for row in expected]


@pytest.mark.parametrize("side", ["source", "target"])
def test_strings_of_sentencepiece_are_looked_up_as_by_marian_tokenizer(side, folder, load):
    """Among them runs of characters that it does not know, such as the ++ of C++."""
    vocabulary, ours = load(side)
    processor = sentencepiece.SentencePieceProcessor(str(folder / f"{side}.spm"))
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    runs = [token for token in ids if processor.unk_id() in processor.encode(token)]
    generator = random.Random(7)
    parts = [*runs, *"+½北京≠😀жC.", " ", " ", "C", "Paris", " J'ai", "2024", "é"]
    texts = ["J'apprends C++.", "C++ et i++;", "+", "+++", "C+=2"]
    texts += ["".join(generator.choices(parts, k=generator.randint(1, 8))) for _ in range(1000)]
    expected = [
        [ours[ids.get(piece, ids["<unk>"])] for piece in row]
        for row in processor.encode(texts, out_type=str)
    ]
    check_ids(vocabulary, texts, expected)
    if side == "source":
        assert vocabulary.pieces(expected[0])[-2:] == ["++", "."]


# Language codes


@pytest.fixture(scope="module")
def sides(sample_model):
    """The vocabularies of a model with the codes >>deu<< and >>nld<<."""
    return read_model(sample_model("hf_marian")).vocabularies


def test_code_is_read_after_spaces_and_without_one_behind_it(sides):
    source, target = sides
    assert (source.language_codes, target.language_codes) == ((">>deu<<", ">>nld<<"), ())
    expected = source.encode([">>nld<< Two dogs play."])
    spaces = (("", ""), (" ", " "), ("\n\t", "  "), ("\ufeff", "\n"))
    texts = [f"{before}>>nld<<{after}Two dogs play." for before, after in spaces]
    check_ids(source, texts, expected * 4)
    ordinary = ["Two >> dogs <<", "a >>nld<< b", ">>nld<<", "x" * 9]
    check_ids(source, ordinary, source.encode(ordinary))
    assert target.encode([">>xyz<< Hund"]) == target.encode([" >>xyz<< Hund"])  # text there


def test_unknown_code_is_an_error_that_lists_near_ones_and_in_a_graph_unknown(sides):
    source, _ = sides
    with pytest.raises(
        InputError, match=r"no language code >>de<<; it has 2, for example >>deu<<$"
    ):
        source.encode(["Two dogs", " >>de<<Two dogs"])
    tokenizer, text = Tokenizer(source), tf.constant([">>de<<Two dogs"])
    (ids,) = tokenizer.tokenize(text).to_list()
    (two_dogs,) = source.encode(["Two dogs"])
    assert UNK_ID in ids and ids[ids.index(UNK_ID) + 1 :] == two_dogs
    _, surfaces = tokenizer.tokenize_with_surfaces(text, 9)
    surfaces = b"".join(surfaces.to_list()[0]).decode()
    assert surfaces.isprintable()  # what a translation may copy


def test_translations_end_without_a_space(sides):
    _, target = sides
    pieces = target.pieces(range(target.size))
    ids = [[*target.encode(["Mann"])[0], pieces.index("▁"), pieces.index("▁"), EOS_ID]]
    assert target.decode(ids) == ["Mann"]
    assert Tokenizer(target).detokenize(tf.constant(ids)).numpy().tolist() == [b"Mann"]
