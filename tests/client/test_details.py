"""The client reads details of translations, over both protocols."""

import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from fake_server import SERVE, SIGNATURES, Model, upper_case_model

from keras_transformer import InputError, translate_paragraphs
from keras_transformer.client import Client

every_protocol = pytest.mark.parametrize("protocol", list(SERVE))


def _detailed_model():
    """Translates to upper case; each word attends to its own place."""

    def predict(signature, inputs):
        texts = inputs["text"]
        words = [["▁" + word for word in text.split()] + ["</s>"] for text in texts]
        words = [row if len(row) > 1 else [] for row in words]
        width = max(map(len, words)) + 1  # and padding
        padded = [row + [""] * (width - len(row)) for row in words]
        return {
            "translations": [[text.upper()] for text in texts],
            "scores": [[-float(len(text))] for text in texts],
            "tokens": [[[token.upper() for token in row]] for row in padded],
            "token_scores": [[[-0.5 if token else 0.0 for token in row]] for row in padded],
            "source_cut": [len(text) > 12 for text in texts],
            "output_cut": [[len(text) > 20] for text in texts],
            "source_tokens": padded,
            "attention": [[np.eye(width).tolist()] for _ in texts],
        }

    return Model(SIGNATURES, predict)


@every_protocol
def test_client_returns_details(protocol):
    sentences = ["a dog barks", "", "one two three four five", "a longer one"]
    with (
        SERVE[protocol](_detailed_model()) as address,
        Client(address, protocol=protocol) as client,
    ):
        found = [best for (best,) in client.translate(sentences, details=True)]
        plain = client.translate(sentences)
    assert [each[0][:2] for each in plain] == [each[:2] for each in found]
    assert found[0].tokens == ["▁A", "▁DOG", "▁BARKS", "</S>"]
    assert found[0].source_tokens == ["▁a", "▁dog", "▁barks", "</s>"]
    assert found[0].token_scores == [-0.5] * 4
    assert found[0].alignment == [(0, 0), (1, 1), (2, 2)]
    np.testing.assert_array_equal(found[0].attention, np.eye(4))
    assert (found[1].tokens, found[1].token_scores, found[1].alignment) == ([], [], [])
    assert [each.source_cut for each in found] == [False, False, True, False]
    assert [each.output_cut for each in found] == [False, False, True, False]


@every_protocol
def test_model_without_details_is_reported(protocol):
    with (
        SERVE[protocol](upper_case_model()) as address,
        Client(address, protocol=protocol) as client,
        pytest.raises(InputError, match="export it again with --details"),
    ):
        client.translate(["one"], details=True)


@every_protocol
def test_client_translates_paragraphs(protocol):
    pytest.importorskip("pysbd")
    model = upper_case_model()
    with SERVE[protocol](model) as address, Client(address, protocol=protocol) as client:
        found = translate_paragraphs(client, [" Dr. No left.  Who stays?", ""], "en", max_length=9)
    assert found == [" DR. NO LEFT.  WHO STAYS?", ""]
    assert sorted(model.requests[-1].inputs["text"]) == ["Dr. No left.", "Who stays?"]
