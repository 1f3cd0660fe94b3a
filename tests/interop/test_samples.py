"""Models of other toolkits, imported, compute what their own toolkits computed with them."""

import functools
import pathlib

import numpy as np
import pytest
import samples
import tensorflow as tf

from keras_transformer.config import BOS_ID, PAD_ID, SearchConfig
from keras_transformer.inference.translator import search_translations
from keras_transformer.text import Tokenizer

SCORED = {"marian_pre_relu"}  # whose own decoder is wrong


@pytest.fixture(scope="module")
def load(shared_data):
    """Gives a sample and the model that it becomes, read once."""

    @functools.cache
    def load(name: str):
        sample = samples.read_sample(pathlib.Path(shared_data("interop")) / name)
        return sample, sample.model.to_model()

    return load


def log_probs_of(model, source, target):
    """Gives the log-probabilities of each row's target tokens, EOS last."""
    labels = samples.pad(target)
    shifted = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)
    logits = model({"source": samples.pad(source), "target": shifted})
    found = -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits).numpy()
    return [row[: len(ids)] for row, ids in zip(found, target, strict=True)]


@pytest.mark.parametrize("name", samples.NAMES)
def test_given_translations_have_the_log_probabilities_of_the_toolkit(name, load):
    sample, model = load(name)
    entries = sample.oracle["sentences"]
    source = [sample.ours(entry["source_ids"], "source") for entry in entries]
    target = [sample.ours(entry["target_ids"], "target") for entry in entries]
    for found, entry in zip(log_probs_of(model, source, target), entries, strict=True):
        np.testing.assert_allclose(found, entry["target_log_probs"], atol=2e-5)


@pytest.mark.parametrize("name", samples.NAMES)
def test_text_is_cut_into_the_tokens_of_the_toolkit_in_python_and_in_the_graph(name, load):
    sample, _ = load(name)
    entries = sample.oracle["sentences"]
    for side, vocabulary in zip(("source", "target"), sample.model.vocabularies, strict=True):
        texts = [entry[side] for entry in entries]
        found = vocabulary.encode(texts)
        for entry, ids in zip(entries, found, strict=True):
            assert [*ids, samples.EOS] == sample.ours(entry[f"{side}_ids"], side)
        assert Tokenizer(vocabulary).tokenize(tf.constant(texts)).to_list() == found


@pytest.mark.parametrize("name", sorted(set(samples.NAMES) - SCORED))
def test_scores_of_the_toolkits_hypotheses_are_its_own(name, load):
    sample, model = load(name)
    pairs = [
        (sample.ours(entry["source_ids"], "source"), each)
        for entry in sample.oracle["sentences"]
        for each in [entry["greedy"], *entry["beam4"]]
        if not each.get("inconsistent")
    ]
    labels = [sample.ours(each["ids"], "target") for _, each in pairs]
    found = log_probs_of(model, [source for source, _ in pairs], labels)
    for row, (_, each) in zip(found, pairs, strict=True):
        # Of a hypothesis that may have been cut, the score may be without EOS.
        misses = [abs(each["score"] - row.sum()), abs(each["score"] - row[:-1].sum())]
        assert min(misses) < (1e-3 if name.startswith("marian") else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("name", sorted(set(samples.NAMES) - SCORED))
def test_our_search_finds_what_the_toolkit_found_or_something_better(name, beam_size, load):
    sample, model = load(name)
    key = "greedy" if beam_size == 1 else "beam4"
    search = SearchConfig(
        beam_size=beam_size,
        length_penalty=0.0,
        min_length=1 if name.startswith("fairseq") else 0,
        max_extra_length=20,
        forbid_unknown=name.startswith("marian"),
    )
    entries = sample.oracle["sentences"]
    source = samples.pad([sample.ours(entry["source_ids"], "source") for entry in entries])
    vocabulary = sample.model.vocabularies[1]
    found = search_translations(model, tf.constant(source, tf.int32), search, vocabulary)
    equal = finished = 0
    for ids, value, entry in zip(found.ids[:, 0], found.scores[:, 0], entries, strict=True):
        best = entry[key] if beam_size == 1 else entry[key][0]
        ours = [id_ for id_ in ids.numpy().tolist() if id_ != PAD_ID]
        theirs = sample.ours(best["ids"], "target")
        limit = np.count_nonzero(sample.ours(entry["source_ids"], "source")) + 19
        if len(theirs) > min(limit, 32):
            continue  # cut by one limit or the other
        finished += 1
        equal += ours == theirs
        # Theirs may have stopped early, or considered other candidates for the end.
        assert ours == theirs or beam_size > 1
        if ours != theirs:
            assert float(value) >= best["score"] - 2e-3
    assert equal >= 0.9 * finished


def test_a_note_names_the_codes_of_languages(load):
    sample, _ = load("hf_marian")
    assert sample.model.notes == (
        ["Begin a sentence with the code of a language and a space: >>deu<<, >>nld<<."]
    )
