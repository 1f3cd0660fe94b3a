"""Files with flipped bits and files cut short: an error, or the model that they hold."""

import functools
import random

import numpy as np
import pytest
import samples

from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.interop import foreign, read_model
from keras_transformer.models import Transformer
from keras_transformer.text import learn_vocabulary

# For each format its weights, where sizes and names stand, and its smaller files.
WEIGHTS = [
    ("hf_marian", "model.safetensors"), ("hf_marian_bin", "pytorch_model.bin"),
    ("marian_post_swish_tied", "model.npz"), ("fairseq_pre_gelu", "checkpoint_last.pt"),
    ("opennmt_tf", "ckpt-130.index"), ("ct2_int8", "model.bin"),
]  # fmt: skip
OTHERS = [
    ("hf_marian", "config.json"), ("hf_marian", "vocab.json"), ("hf_marian", "source.spm"),
    ("marian_pre_relu", "vocab.src.yml"), ("marian_pre_relu", "decoder.yml"),
    ("fairseq_pre_gelu", "dict.en.txt"), ("opennmt_tf", "v.src"),
    ("opennmt_tf", "ckpt-130.data-00000-of-00001"), ("ct2_int8", "source_vocabulary.json"),
]  # fmt: skip
COUNT = 20  # of damaged files
MOST_FLIPS = 3  # bits of a file
ANY_VOCABULARY = learn_vocabulary(["a"], size=8, kind="char")


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


def count_differences(model, original, by_row):
    """Gives the most numbers, or rows, that differ in a tensor; None if the tensors are others."""
    if set(model.tensors) != set(original.tensors):
        return None
    pairs = [(model.tensors.get(name), original.tensors.get(name)) for name in original.tensors]
    if any(np.shape(one) != np.shape(other) for one, other in pairs):
        return None
    differences = [np.atleast_2d(one != other) for one, other in pairs]
    return max(int(np.sum(each.any(axis=-1) if by_row else each)) for each in differences)


@functools.cache
def transformer(config):
    return Transformer(config, dtype="float32")


@pytest.mark.parametrize(("name", "file"), WEIGHTS + OTHERS)
def test_damaged_files_are_rejected_or_read(name, file, copy, monkeypatch):
    is_weights = (name, file) in WEIGHTS
    if is_weights:  # vocabularies take longest
        monkeypatch.setattr(foreign, "make_vocabularies", lambda *_: (ANY_VOCABULARY,) * 2)
    folder = copy(name)
    path, options = folder / file, samples.import_options(folder)
    content, (format_name, *_) = path.read_bytes(), samples.SAMPLES[name]
    original = read_model(folder, format_name, options)
    path.unlink()
    generator, rejected = random.Random(10), 0
    for _ in range(COUNT):
        path.write_bytes(mutated(content, generator))
        try:
            model = read_model(folder, format_name, options)
            # In int8 a scale is of a row.
            differences = count_differences(model, original, by_row=name == "ct2_int8")
            SearchConfig(**model.search)
            if not is_weights:  # options and tokens may be others
                assert differences == 0
            if is_weights and differences is not None and model.options == original.options:
                assert differences <= MOST_FLIPS
                assert (model.source, model.target) == (original.source, original.target)
            else:
                model.fill(transformer(model.config))
        except InputError as error:
            assert str(error).isprintable()  # one line
            rejected += 1
        path.unlink()  # it may be mapped into memory still
    assert rejected >= (0.1 * COUNT if is_weights else 1)
