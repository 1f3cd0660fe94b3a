"""The tree of a search has what the search considered, chose and found."""

import collections

import numpy as np
import pytest


def path_of(tree, leaf):
    path = []
    while tree.nodes[leaf].parent >= 0:
        path.insert(0, tree.nodes[leaf])
        leaf = tree.nodes[leaf].parent
    return path


def depth_of(tree, node):
    return len(path_of(tree, node))


def test_translations_are_those_of_the_search_with_their_scores(view, make_translator):
    expected = make_translator(num_translations=4).translate([view.sentence])[0]
    found = view.tree.translations
    assert [each.text for each in found] == [each.text for each in expected]
    np.testing.assert_allclose(
        [each.score for each in found], [each.score for each in expected], atol=1e-4
    )


def test_probabilities_along_a_translation_multiply_to_its_own(view, make_translator):
    translator = make_translator()
    texts = [each.text for each in view.tree.translations]
    scores = translator.score([view.sentence] * len(texts), texts)
    for found, score in zip(view.tree.translations, scores, strict=True):
        path = path_of(view.tree, found.node)
        assert [node.outcome for node in path] == ["kept"] * (len(path) - 1) + ["finished"]
        np.testing.assert_allclose(
            [node.log_prob for node in path], score.token_scores, rtol=1e-4, atol=1e-4
        )


def test_as_many_hypotheses_stay_open_as_the_beam_has(view):
    tree = view.tree
    kept = collections.Counter(
        depth_of(tree, index) for index, node in enumerate(tree.nodes) if node.outcome == "kept"
    )
    assert kept[0] == 1  # the root
    assert set(list(kept.values())[1:]) == {4}
    assert len(tree.translations) == sum(node.outcome == "finished" for node in tree.nodes) == 4


def test_siblings_are_sorted_and_share_one_distribution(view):
    siblings = collections.defaultdict(list)
    for node in view.tree.nodes[1:]:
        siblings[node.parent].append(node)
    for nodes in siblings.values():
        log_probs = [node.log_prob for node in nodes]
        assert log_probs == sorted(log_probs, reverse=True)
        assert len({node.token for node in nodes}) == len(nodes) >= 4
        assert np.exp(log_probs).sum() <= 1 + 1e-5


@pytest.mark.parametrize("beam_size", [1, 3])
def test_what_a_constraint_forbids_is_no_candidate(make_look, words, beam_size):
    banned = words["cat"]
    tree = make_look(beam_size=beam_size, banned_phrases=(banned,))("hello two cat").tree
    assert banned not in tree.translations[0].text
    assert f"▁{banned}" not in [node.token for node in tree.nodes]
    assert {"</s>", "<pad>"} & {node.token for node in tree.nodes} == {"</s>"}


def test_samples_are_watched_as_beams_are(make_look, make_translator):
    options = dict(method="sampling", num_translations=3, seed=7, temperature=2.0)
    expected = make_translator(**options).translate(["two cat house"])[0]
    tree = make_look(**options)("two cat house").tree
    assert {each.text for each in tree.translations} == {each.text for each in expected}
    for found in tree.translations:
        path = path_of(tree, found.node)
        assert [node.outcome for node in path] == ["kept"] * (len(path) - 1) + ["finished"]


def test_watching_changes_no_translation(make_look, make_translator):
    sentences = ["hello", "two cat house sun", "tree tree"]
    translator = make_translator(beam_size=2)
    for sentence, (expected, *_) in zip(sentences, translator.translate(sentences), strict=True):
        tree = make_look(beam_size=2)(sentence).tree
        assert tree.translations[0].text == expected.text
        assert tree.translations[0].score == pytest.approx(expected.score, abs=1e-4)
