"""Models that other toolkits wrote, and what these compute with them; models of random weights."""

import json
import pathlib
from typing import Any, NamedTuple

import keras
import numpy as np
from safetensors.numpy import load_file, save_file

from keras_transformer.interop import read_model
from keras_transformer.interop.foreign import ForeignModel, ImportOptions
from keras_transformer.interop.reading import ids_to_tokens, read_pytorch
from keras_transformer.interop.vocabularies import Symbols, sentencepiece_vocabulary
from keras_transformer.models import Transformer
from keras_transformer.text import Vocabulary

EOS = 3


class Search(NamedTuple):
    """How a toolkit searches: the rule for the end, and the limits of `SearchConfig`."""

    early_stop: str
    min_length: int
    max_length: int
    max_extra_length: int
    max_source_length: int


_OPUS, _MARIAN = Search("current", 0, 0, 50, 511), Search("narrow", 0, 0, 50, 512)
# By name the format, the search, and the toolkit to which the model can be exported.
SAMPLES = {
    "hf_marian": ("transformers", _OPUS, "transformers"),
    "hf_marian_bin": ("transformers", _OPUS, None),
    "hf_marian_separate": ("transformers", _OPUS, "transformers"),
    "marian_post_swish_tied": ("marian", _MARIAN, "ctranslate2"),
    "marian_pre_relu": ("marian", _MARIAN, None),
    "marian_embnorm_untied": ("marian", _MARIAN, "ctranslate2"),
    "fairseq_math": ("fairseq", Search("first", 1, 200, 200, 1023), None),
    "fairseq_pre_gelu": ("fairseq", Search("first", 1, 200, 200, 63), None),
    "opennmt_tf": ("opennmt_tf", Search("exact", 0, 250, 250, 512), None),
    "ct2_float32": ("ctranslate2", Search("first", 1, 256, 256, 1023), None),
    "ct2_int8": ("ctranslate2", Search("first", 1, 256, 256, 1024), None),
}
NEEDS_TORCH = ("hf_marian_bin", "fairseq_math", "fairseq_pre_gelu")


class Sample(NamedTuple):
    """A model, read, with what its own toolkit computes."""

    name: str
    model: ForeignModel
    sentences: list[dict[str, Any]]

    def ours(self, ids: list[int], side: str) -> list[int]:
        """Returns our ids of theirs, EOS last."""
        symbols = getattr(self.model, side)
        order = {id_: ours for ours, id_ in reversed(list(enumerate(symbols.order)))}
        order[symbols.eos] = EOS
        found = [order[id_] for id_ in ids]
        return found if found and found[-1] == EOS else [*found, EOS]

    def our_ids(self, side: str) -> list[list[int]]:
        """Returns our ids of the source or target of each sentence."""
        return [self.ours(entry[f"{side}_ids"], side) for entry in self.sentences]


def import_options(folder: pathlib.Path) -> ImportOptions:
    """Returns the vocabularies and numbers that the files in a sample's folder do not state."""
    if folder.name == "opennmt_tf":
        return ImportOptions(vocabularies=(folder / "v.src", folder / "v.tgt"), num_heads=4)
    if folder.name == "fairseq_pre_gelu":
        return ImportOptions(vocabularies=(folder / "dict.en.txt", folder / "dict.de.txt"))
    if folder.name == "ct2_float32":
        beside = folder.parent / "hf_marian"
        return ImportOptions(spms=(beside / "source.spm", beside / "target.spm"))
    return ImportOptions()


def read_sample(sample_model, name: str) -> Sample:
    """Reads a sample; its oracle.json is no part of the model."""
    folder = sample_model(name)
    sample_model("hf_marian")
    sentences = json.loads((folder / "oracle.json").read_text())["sentences"]
    return Sample(name, read_model(folder, None, import_options(folder)), sentences)


def opus_vocabulary(folder: pathlib.Path, side: str) -> tuple[Vocabulary, dict[int, int]]:
    """Returns the vocabulary of a side of OPUS's tokenizers, and our id of each of theirs."""
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    names = {"unk": "<unk>", "eos": "</s>", "pad": "<pad>"}
    symbols = Symbols.find(ids_to_tokens(ids, "vocab.json"), "vocab.json", **names)
    ours = {id_: place for place, id_ in enumerate(symbols.order) if id_ is not None}
    return sentencepiece_vocabulary(folder / f"{side}.spm", symbols, side), ours


def pad(rows: list[list[int]]) -> np.ndarray:
    """Returns an array of rows of any length."""
    width = max(map(len, rows))
    return np.array([row + [0] * (width - len(row)) for row in rows])


def assert_equal_weights(model, other):
    """Both models have the same configuration but for dropout, and the same weights."""
    assert model.config.replace(dropout=other.config.dropout) == other.config
    for weight, expected in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(weight, expected, err_msg=expected.path)


def make_model(config, *, seed=3, scale=2.0, noise=0.3, **options):
    """Gives random weights, gains and biases included, whose log-probabilities are far apart."""
    keras.utils.set_random_seed(seed)
    model = Transformer(config, **options)
    generator = np.random.default_rng(seed)
    for variable in model.weights:
        value = variable.numpy()
        if variable.name in ("kernel", "table"):
            variable.assign(scale * value)
        else:
            variable.assign(value + generator.normal(size=value.shape, scale=noise))
    return model


def some_ids(*lengths):
    """Gives random tokens, none of them reserved."""
    generator = np.random.default_rng(2)
    return [generator.integers(EOS + 1, 30, size=length).tolist() for length in lengths]


# Changes of a sample's folder


def with_values(file, **changes):
    """Changes values of a JSON file."""

    def change(folder):
        values = json.loads((folder / file).read_text(encoding="utf-8")) | changes
        (folder / file).write_text(json.dumps(values), encoding="utf-8")

    return change


def with_tensors(change):
    """Changes the tensors of a model of transformers."""

    def change_folder(folder):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change_folder


def with_state(change):
    """Changes a checkpoint of fairseq, or what is in the state."""

    def change_folder(folder):
        import torch

        (path,) = folder.glob("checkpoint_*.pt")
        state = read_pytorch(path)
        change(state)
        torch.save(state, path)

    return change_folder
