"""The tokenizers of a published OPUS model, rewritten, give the ids that MarianTokenizer gives."""

import json

import pytest
import samples
import tensorflow as tf

from keras_transformer.interop.reading import ids_to_tokens
from keras_transformer.interop.vocabularies import Symbols, sentencepiece_vocabulary
from keras_transformer.text import Tokenizer


@pytest.fixture(scope="module")
def folder(sample_model):
    return sample_model("opus_tokenizers")


@pytest.fixture(scope="module")
def load(folder):
    """Gives the vocabulary of a side, and our id of each of theirs."""
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    names = {"unk": "<unk>", "eos": "</s>", "pad": "<pad>"}
    symbols = Symbols.find(ids_to_tokens(ids, "vocab.json"), "vocab.json", **names)
    ours = {id_: place for place, id_ in enumerate(symbols.order) if id_ is not None}

    def load(side):
        return sentencepiece_vocabulary(folder / f"{side}.spm", symbols, side), ours

    return load


def read(folder, name):
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def is_read_otherwise(entry):
    """Whether a line has what MarianTokenizer reads in a way of its own.

    It counts a run of unknown characters as one token, and takes "</s>" in a text for the end.
    """
    return entry.get("unknown_run") or any(name in entry["text"] for name in ("</s>", "<pad>"))


@pytest.mark.parametrize("name", ["source", "target", "odd"])
def test_opus_tokenizers_give_marian_tokenizers_ids(name, folder, load):
    vocabulary, ours = load("target" if name == "target" else "source")
    entries = [each for each in read(folder, name) if not is_read_otherwise(each)]
    assert len(entries) >= (79 if name == "odd" else 490)
    texts = [entry["text"] for entry in entries]
    found = vocabulary.encode(texts)
    for entry, ids in zip(entries, found, strict=True):
        assert [*ids, samples.EOS] == [ours[id_] for id_ in entry["ids"]], entry["text"]
    assert Tokenizer(vocabulary).tokenize(tf.constant(texts)).to_list() == found
