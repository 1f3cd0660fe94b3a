"""Views of a small trained model: attention, search tree, statistics of heads; their page."""

import json
import re

import numpy as np
import pytest
from helpers import banning_task
from plain_search import Banned

from keras_transformer.config import EOS_ID, SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.explorer.page import make_page, page_content
from keras_transformer.explorer.views import head_statistics, inspect_model
from keras_transformer.tasks import TranslationTask

SEARCH = dict(beam_size=4, max_source_length=12, max_extra_length=5)


@pytest.fixture(scope="module")
def make_inspector(trained):
    model, *vocabularies = trained

    def make(name="runs/words", model=model, banned=(), **changes):
        search = SearchConfig(**SEARCH | changes)
        task = banning_task(banned) or TranslationTask()
        return inspect_model(name, model, tuple(vocabularies), task, search)

    return make


@pytest.fixture(scope="module")
def inspect(make_inspector):
    return make_inspector()


@pytest.fixture(scope="module")
def view(inspect):
    return inspect("hello two cat")


def test_view_has_what_the_translator_gives(view, make_translator):
    translator = make_translator(num_translations=4)
    best = translator.translate(view.sentence)
    (attention,) = translator.attention([view.sentence], [best.text])
    assert view.translation == best.text
    assert view.source == attention.source == ["▁hello", "▁two", "▁cat", "</s>"]
    assert view.written == attention.target and view.read == ["<s>", *view.written[:-1]]
    assert list(view.attentions) == ["encoder", "decoder", "cross"]
    for kind, weights in view.attentions.items():
        assert weights.shape == (1, 2, *map(len, view.tokens(kind)))
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    mean = view.attentions["cross"][-1].mean(axis=0)
    np.testing.assert_allclose(mean, attention.weights, atol=1e-5)

    expected = [best, *best.alternatives]
    texts = [each.text for each in expected]
    scores = translator.score([view.sentence] * len(texts), texts)
    for found, best, score in zip(view.tree.translations, expected, scores, strict=True):
        assert (found.text, found.score) == (best.text, pytest.approx(best.score, abs=1e-4))
        path = path_of(view.tree, found.node)
        assert [node.outcome for node in path] == ["kept"] * (len(path) - 1) + ["finished"]
        np.testing.assert_allclose(
            [node.log_prob for node in path], score.token_scores, rtol=1e-4, atol=1e-4
        )


def path_of(tree, leaf):
    path = []
    while tree.nodes[leaf].parent >= 0:
        path.insert(0, tree.nodes[leaf])
        leaf = tree.nodes[leaf].parent
    return path


def test_view_copies_unknown_words_as_the_translator(make_inspector, words):
    options = dict(banned=tuple(words.values()), max_length=1)
    assert make_inspector(**options)("sun Владимир").translation == "Владимир"
    kept = make_inspector(**options, replace_unknowns=False)
    assert kept("sun Владимир").translation == "⁇"


def test_nothing_to_show_is_reported(inspect, make_inspector, trained, monkeypatch):
    with pytest.raises(InputError, match="the sentence is empty"):
        inspect("  ")

    class WithoutAttention:
        attentions = staticmethod(lambda inputs: {})
        __getattr__ = staticmethod(lambda name: getattr(trained[0], name))

    every_token = Banned([[*range(trained[2].size)]])
    monkeypatch.setattr(TranslationTask, "constraints", lambda *_: [every_token])
    with pytest.raises(InputError, match="runs/words: the search found no translation of 'hello'"):
        inspect("hello")
    monkeypatch.undo()
    with pytest.raises(InputError, match="runs/blind has no attention to show"):
        make_inspector("runs/blind", WithoutAttention())("hello")


@pytest.mark.parametrize("beam_size", [1, 4])
def test_tree_has_no_forbidden_candidates(make_inspector, words, beam_size):
    """Where fewer tokens are allowed than the beam has places, rows of -inf fill it."""
    banned = tuple(sorted({*words.values()} - {words["cat"]}))
    options = dict(beam_size=beam_size, max_length=3, banned=banned, forbid_unknown=True)
    view = make_inspector(**options)("hello two cat")
    assert set(view.translation.split()) == {words["cat"]}
    assert all(np.isfinite(node.log_prob) for node in view.tree.nodes)
    tokens = {node.token for node in view.tree.nodes}
    assert "</s>" in tokens and not tokens & {"<pad>", *(f"▁{word}" for word in banned)}
    assert "Infinity" not in make_page(page_content([view]))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_end_that_is_forced_though_forbidden_is_in_the_tree(make_inspector, monkeypatch, beam_size):
    monkeypatch.setattr(TranslationTask, "constraints", lambda *_: [Banned([[EOS_ID]])])
    view = make_inspector(beam_size=beam_size, max_length=2)("hello")
    ends = [path_of(view.tree, each.node)[-1].token for each in view.tree.translations]
    assert ends == ["</s>"] * beam_size
    assert "Infinity" not in make_page(page_content([view]))


@pytest.mark.parametrize(
    ("kind", "sentences", "expected"),
    [
        # The first token has no previous one, so it does not count there.
        ("encoder", [[[1, 0, 0], [1, 0, 0], [0, 1, 0]]],
         {"previous": 1, "next": 0, "end": 0, "diagonal": 1 / 3, "distance": 2 / 3, "entropy": 0}),
        ("encoder", [[[0, 1, 0], [0, 0, 1], [0, 0, 1]]], {"previous": 0, "next": 1, "end": 2 / 3}),
        ("decoder", [[[1, 0], [1, 0]]], {"end": 1}),  # BOS
        ("encoder", [[[0.25] * 4] * 4], {"entropy": 2, "distance": (1.5 + 1 + 1 + 1.5) / 4}),
        # From corner to corner.
        ("cross", [[[1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]],
         {"diagonal": 1, "distance": 0}),
        # Sentences count by their tokens; of a single token some statistics have none.
        ("encoder", [[[1]], [[1 / 3] * 3] * 3], {"diagonal": (1 + 3 / 3) / 4}),
        ("encoder", [[[1]]], {"previous": 0, "next": 0, "entropy": 0}),
    ],
)  # fmt: skip
def test_statistics_of_a_head(kind, sentences, expected):
    found = head_statistics([np.array(rows, "f")[None, None] for rows in sentences], kind)
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value), name


def data_of(page):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*)</script>', page)[1]
    )


def test_page_loads_nothing(view):
    page = make_page(page_content([view]))
    code = re.sub(r'"data":"[^"]*"', "", page)  # base64 has slashes
    code = re.sub(r"^\s*//.*", "", code, flags=re.M)
    assert not re.findall(r"https?:|//[a-z]|@import|url\(", code)
    assert re.findall(r"(?:src|href)=(\S+)", page) == ['"data:,">']
    assert "default-src 'none'" in page


@pytest.mark.parametrize(
    "sentence", ["</script><script>alert(1)</script><!--", "{{script}} {{data}}"]
)
def test_marks_in_a_sentence_stay_text(view, sentence):
    page = make_page(page_content([view._replace(sentence=sentence)]))
    assert data_of(page)["sentences"] == [sentence]
    assert "</script><script>alert(1)" not in page
    assert "async function unpack" in page.rpartition("<script>")[2]
