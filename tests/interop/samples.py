"""Models that other toolkits wrote, and what these compute with them; models of random weights."""

import json
import pathlib
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.interop import read_model
from keras_transformer.interop.foreign import ForeignModel, ImportOptions
from keras_transformer.models import Transformer

FORMATS = {
    "hf_marian": "transformers", "hf_marian_bin": "transformers",
    "hf_marian_separate": "transformers", "marian_post_swish_tied": "marian",
    "marian_pre_relu": "marian", "marian_embnorm_untied": "marian", "fairseq_math": "fairseq",
    "fairseq_pre_gelu": "fairseq", "opennmt_tf": "opennmt_tf", "ct2_float32": "ctranslate2",
    "ct2_int8": "ctranslate2",
}  # fmt: skip
NAMES = list(FORMATS)
EOS = 3


class Sample(NamedTuple):
    """A model, read, with what its own toolkit computes."""

    model: ForeignModel
    sentences: list[dict[str, Any]]
    is_long: bool  # whether its sentences are

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


def given(folder: pathlib.Path) -> ImportOptions:
    """Returns what the files in a sample's folder do not tell."""
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
    return Sample(read_model(folder, None, given(folder)), sentences, name == "fairseq_math")


def pad(rows: list[list[int]]) -> np.ndarray:
    """Returns an array of rows of any length."""
    width = max(map(len, rows))
    return np.array([row + [0] * (width - len(row)) for row in rows])


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
