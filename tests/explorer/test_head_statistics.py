"""What heads do, on matrices whose statistics are known."""

import numpy as np
import pytest

from keras_transformer.explorer.views import head_statistics


def statistics_of(*rows, kind="encoder"):
    weights = np.array(rows, np.float32)[None, None]
    return {name: values.item() for name, values in head_statistics([weights], kind).items()}


def test_a_head_on_the_previous_token():
    found = statistics_of([1, 0, 0], [1, 0, 0], [0, 1, 0])
    # The first token has no previous one, so it does not count there.
    assert (found["previous"], found["next"], found["end"]) == (1, 0, 0)
    assert found["diagonal"] == pytest.approx(1 / 3)
    assert found["distance"] == pytest.approx(2 / 3)
    assert found["entropy"] == 0


def test_a_head_on_the_next_token_and_one_on_the_end():
    found = statistics_of([0, 1, 0], [0, 0, 1], [0, 0, 1])
    assert (found["previous"], found["next"]) == (0, 1)
    assert found["end"] == pytest.approx(2 / 3)
    assert statistics_of([0, 0, 1], [0, 0, 1], [0, 0, 1])["end"] == 1


def test_the_end_of_what_a_decoder_reads_is_bos():
    assert statistics_of([1, 0], [1, 0], kind="decoder")["end"] == 1


def test_a_head_that_spreads_over_four_tokens_has_two_bits():
    found = statistics_of(*[[0.25] * 4] * 4)
    assert found["entropy"] == pytest.approx(2)
    assert found["distance"] == pytest.approx((1.5 + 1 + 1 + 1.5) / 4)


def test_the_diagonal_of_cross_attention_goes_from_corner_to_corner():
    found = statistics_of([1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1], kind="cross")
    assert (found["diagonal"], found["distance"]) == (1, 0)


def test_sentences_count_by_their_tokens():
    short, long = np.eye(1)[None, None], np.ones((1, 1, 3, 3)) / 3
    found = head_statistics([short, long], "encoder")
    assert found["diagonal"].item() == pytest.approx((1 + 3 / 3) / 4)
    assert np.isfinite(list(head_statistics([short], "encoder").values())).all()
