"""A beam search whose steps see a slice of the KV cache, against one that masks the rest of it."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from model_cases import CONFIGS, SOURCE, random_model

from keras_transformer.layers import SelfAttention, WindowedSelfAttention, slot_bias
from keras_transformer.models import transformer
from keras_transformer.search import beam_search, kv_cache_capacities

WINDOW, LONGEST = 3, 11


@pytest.fixture(params=["sinusoidal", "relative", "rotary"])
def model(request):
    config = CONFIGS["transformer, window"].replace(key_dim=4)
    return random_model(config.replace(positions=request.param, decoder_attention_window=WINDOW))


def search(model, capacity=None):
    """Searches translations that a length penalty makes far longer than the window."""
    state = model.encode(ops.array(SOURCE), num_hypotheses=3, capacity=capacity)
    result = beam_search(
        model.step, state, bos_ids=tf.fill([3], 2), beam_size=3, max_lengths=tf.fill([3], LONGEST),
        length_penalty=4.0, max_length_bound=LONGEST if capacity else None,
    )  # fmt: skip
    return result.ids, result.scores


def masked(ids, state, slots, window):
    """Shows all slots; those before the window are hidden and not cut off."""
    positions = ops.arange(ops.shape(state.ancestors)[2])
    ancestors = ops.where(positions < state.time - window // 2, -1, state.ancestors)
    return slot_bias(ids, state._replace(ancestors=ancestors), slots)


def test_search_with_cache_slices_equals_a_mask(model, monkeypatch):
    tokens, scores = search(model)
    assert (tokens.numpy() != 0).sum(axis=-1).max() > 3 * WINDOW
    found = search(model, kv_cache_capacities(LONGEST)[0])
    np.testing.assert_array_equal(found[0], tokens)
    np.testing.assert_allclose(found[1], scores, atol=1e-5)
    monkeypatch.setattr(transformer, "slot_bias", masked)
    monkeypatch.setattr(WindowedSelfAttention, "step", SelfAttention.step)
    found = search(model)
    np.testing.assert_array_equal(found[0], tokens)
    np.testing.assert_allclose(found[1], scores, atol=1e-5)
