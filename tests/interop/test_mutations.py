"""Files with flipped bits and files cut short: an error, or the model that they hold."""

import functools
import pathlib
import random
import shutil

import numpy as np
import pytest
import samples

from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.interop import read_model
from keras_transformer.models import Transformer
from keras_transformer.text import learn_vocabulary

# For each format its weights, where sizes and names stand, and its smaller files.
WEIGHTS = {
    "hf_marian": "model.safetensors",
    "hf_marian_bin": "pytorch_model.bin",
    "marian_post_swish_tied": "model.npz",
    "fairseq_pre_gelu": "checkpoint_last.pt",
    "opennmt_tf": "ckpt-130.index",
    "ct2_int8": "model.bin",
}
OTHERS = [
    ("hf_marian", "config.json"), ("hf_marian", "vocab.json"), ("hf_marian", "source.spm"),
    ("marian_pre_relu", "vocab.src.yml"), ("marian_pre_relu", "decoder.yml"),
    ("fairseq_pre_gelu", "dict.en.txt"), ("opennmt_tf", "v.src"),
    ("opennmt_tf", "ckpt-130.data-00000-of-00001"), ("ct2_int8", "source_vocabulary.json"),
]  # fmt: skip
MOST_FLIPS = 3  # bits of a file
ANY_VOCABULARY = learn_vocabulary(["a"], size=8, kind="char")
READERS = ("ctranslate2", "fairseq", "marian", "opennmt_tf", "transformers")


def mutated(content, generator):
    """Gives a file cut short, or with one to three bits flipped, half of them near an end."""
    if generator.random() < 0.2:
        return content[: generator.randrange(len(content))]
    found = bytearray(content)
    for _ in range(generator.choice([1, 1, 2, MOST_FLIPS])):
        reach = generator.choice([len(found), min(len(found), 2000)])
        place = generator.randrange(reach)
        found[generator.choice([place, -1 - place])] ^= 1 << generator.randrange(8)
    return bytes(found)


def count_differences(model, original, by_row=False):
    """Gives how many numbers, or rows, of each tensor differ; None if the tensors are others."""
    if set(model.tensors) != set(original.tensors):
        return None
    pairs = [(model.tensors.get(name), original.tensors.get(name)) for name in original.tensors]
    if any(np.shape(one) != np.shape(other) for one, other in pairs):
        return None
    differences = [np.atleast_2d(one != other) for one, other in pairs]
    return [int(np.sum(each.any(axis=-1) if by_row else each)) for each in differences]


@pytest.fixture
def mutate(sample_model, tmp_path):
    """Reads a sample many times, each time with one of its files changed."""

    def mutate(name, file, check):
        folder = pathlib.Path(shutil.copytree(sample_model(name), tmp_path / name))
        path, given = folder / file, samples.given(folder)
        content = path.read_bytes()
        original = read_model(folder, samples.FORMATS[name], given)
        path.unlink()
        generator, refused = random.Random(10), 0
        for _ in range(COUNT):
            path.write_bytes(mutated(content, generator))
            try:
                check(read_model(folder, samples.FORMATS[name], given), original)
            except InputError as error:
                assert str(error).isprintable()  # one line
                refused += 1
            path.unlink()  # it may be mapped into memory still
        return refused

    return mutate


@functools.cache
def transformer(config):
    return Transformer(config, dtype="float32")


def check_weights(model, original, by_row):
    """Only the numbers whose bits were flipped may differ; an option, too, where it is a number."""
    differences = count_differences(model, original, by_row)
    if differences is None or model.options != original.options:
        model.fill(transformer(model.config))
        return
    assert max(differences) <= MOST_FLIPS
    assert (model.source, model.target) == (original.source, original.target)


def check_others(model, original):
    """Options and tokens may be others, the tensors not."""
    assert (differences := count_differences(model, original)) and not any(differences)
    SearchConfig(**model.search)
    model.fill(transformer(model.config))


COUNT = 20  # of damaged files


@pytest.mark.parametrize("name", WEIGHTS)
def test_damaged_weights_are_rejected_or_read(name, mutate, monkeypatch):
    if name in ("hf_marian_bin", "fairseq_pre_gelu"):
        pytest.importorskip("torch", reason="needs the package torch")
    for reader in READERS:  # vocabularies take longest, and are the next test's
        function = f"keras_transformer.interop.{reader}.make_vocabularies"
        monkeypatch.setattr(function, lambda *arguments: (ANY_VOCABULARY, ANY_VOCABULARY))
    check = functools.partial(check_weights, by_row=name == "ct2_int8")  # a scale is of a row
    assert mutate(name, WEIGHTS[name], check) >= 0.1 * COUNT


@pytest.mark.parametrize(("name", "file"), OTHERS)
def test_other_damaged_files_are_rejected_or_read(name, file, mutate):
    assert mutate(name, file, check_others) >= 1
