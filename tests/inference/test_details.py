"""Details of translations: token scores, alignments and what was cut, by search itself."""

import numpy as np
import pytest
from helpers import n_best

from keras_transformer import Translator
from keras_transformer.errors import InputError
from keras_transformer.inference import XlaShapes

_SENTENCES = ["two house", "sun", "", "cat sun tree two", "hello", "tree hello cat", " "]
_SEARCHES = {
    "beam": dict(num_translations=4),
    "greedy": dict(beam_size=1),
    "sampling": dict(method="sampling", num_translations=3, temperature=2.0),
    "penalties": dict(coverage_penalty=0.4, length_penalty=1.0, no_repeat_ngram=2),
}


def _assert_as_given(translator, sentences, results):
    """Compares details with the scores and the attention of the texts, given to the model."""
    pairs = [
        (sentence, each)
        for sentence, best in zip(sentences, results, strict=True)
        for each in (best, *best.alternatives)
        if sentence.strip()
    ]
    sources, found = map(list, zip(*pairs, strict=True))
    texts = [each.text for each in found]
    scores = translator.score(sources, texts)
    attention = translator.attention(sources, texts)
    alignments = translator.align(sources, texts)
    num_same = 0
    for each, score, weights, pairs in zip(found, scores, attention, alignments, strict=True):
        if each.tokens != weights.target:
            continue  # text that the vocabulary would tokenize otherwise
        num_same += 1
        np.testing.assert_allclose(each.token_scores, score.token_scores, atol=2e-4)
        assert sum(each.token_scores) == pytest.approx(score.score, abs=1e-3)
        np.testing.assert_allclose(each.attention, weights.weights, atol=1e-4)
        assert each.source_tokens == weights.source
        assert each.alignment == pairs
    assert num_same > len(found) / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", _SEARCHES)
def test_details_equal_score_and_attention(make_translator, translator, name):
    judge, translator = translator, make_translator(**_SEARCHES[name])
    results = translator.translate(_SENTENCES, details=True)
    plain = translator.translate(_SENTENCES)
    for ours, theirs in zip(n_best(results), n_best(plain), strict=True):
        assert ours.text == theirs.text
        assert ours.score == pytest.approx(theirs.score, rel=1e-5)
    _assert_as_given(judge, _SENTENCES, results)


def test_blank_sentences_have_no_details(translator):
    blank = translator.translate(" ", details=True)
    assert (blank.text, blank.score, blank.tokens, blank.token_scores) == ("", 0.0, [], [])
    assert not blank.source_cut and not blank.output_cut
    assert blank.alignment == []
    assert blank.attention.shape[0] == 0


def test_tokens_end_with_eos_and_alignment_has_each_word(translator, words):
    found = translator.translate("cat two sun", details=True)
    assert found.tokens == [*(f"▁{words[word]}" for word in ("cat", "two", "sun")), "</s>"]
    assert found.source_tokens == ["▁cat", "▁two", "▁sun", "</s>"]
    assert len(found.token_scores) == 4
    assert found.attention.shape == (4, 4)
    np.testing.assert_allclose(found.attention.sum(axis=1), 1.0, atol=1e-5)
    assert [target for _, target in found.alignment] == [0, 1, 2]


@pytest.mark.parametrize("length, is_cut", [(11, False), (12, False), (13, True), (400, True)])
def test_source_is_cut_beyond_its_limit(translator, length, is_cut):
    other, cut = translator.translate(["sun", " ".join(["two"] * length)], details=True)
    assert (other.source_cut, cut.source_cut) == (False, is_cut)
    assert len(cut.source_tokens) == min(length, 12) + 1


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_output_is_cut_at_its_limit(translator, limit):
    found = translator.translate("cat two sun", details=True, max_length=limit)
    assert len(found.tokens) == min(limit, 3) + 1
    assert found.output_cut == (limit <= 3)


def test_details_cannot_be_combined_with_xla(trained):
    with pytest.raises(InputError, match="details cannot be combined with XLA"):
        Translator(*trained, xla=XlaShapes((1,), (8,)), details=True)
