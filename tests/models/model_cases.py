"""The table of models that tests of this folder share, and what is asked of each.

A new architecture is a line in `CONFIGS`. The oracles are in tests/oracles.
"""

import functools

import numpy as np
import tiny_run
from gru_architecture import BagConfig
from keras import ops

from keras_transformer.config import RecurrentConfig, TransformerConfig, UniversalConfig
from keras_transformer.models import build_model

SIZES = dict(vocabulary_size=tiny_run.make_vocabulary().size, model_dim=8, dropout=0.1)
HEADS = SIZES | dict(num_heads=2, feed_forward_dim=12)
WIDTHS = dict(key_dim=3, value_dim=5)
WINDOWS = dict(encoder_attention_window=5, decoder_attention_window=3, max_relative_distance=2)
SEPARATE = dict(share_embeddings="none", target_vocabulary_size=11, output_bias=True)
CONFIGS = {
    "transformer": TransformerConfig(**HEADS, num_layers=2),
    "transformer, pre": TransformerConfig(
        **HEADS, **SEPARATE, num_layers=2, norm_position="pre", norm_epsilon=1e-5,
        positions="concatenated", first_position=1, attention_bias=True,
    ),
    "transformer, learned": TransformerConfig(
        **HEADS, **WIDTHS, num_layers=2, share_embeddings="target", target_vocabulary_size=11,
        norm_epsilon=1e-3, positions="learned", max_positions=20,
    ),
    "transformer, toolkits": TransformerConfig(
        **HEADS, num_layers=2, decoder_layers=1, activation="swish", positions="halves",
        embedding_norm=True, scale_embeddings=False, source_eos=False, attention_bias=True,
    ),
    "transformer, relative": TransformerConfig(**HEADS, num_layers=1, positions="relative"),
    "transformer, window": TransformerConfig(
        **HEADS, **WIDTHS, **WINDOWS, num_layers=2, positions="relative",
    ),
    "transformer, ssru": TransformerConfig(
        **HEADS, num_layers=2, positions="concatenated", decoder_mixer="ssru",
    ),
    "recurrent": RecurrentConfig(**SIZES, hidden_dim=6, attention_dim=5),
    "recurrent, deep": RecurrentConfig(**SIZES, **SEPARATE, num_layers=2, hidden_dim=6),
    "recurrent, all": RecurrentConfig(
        **SIZES, num_layers=2, hidden_dim=12, intra_decoder_attention=True,
    ),
    "universal": UniversalConfig(**HEADS, num_steps=4),
    "universal, pre": UniversalConfig(
        **HEADS, num_steps=4, norm_position="pre", positions="learned",
    ),
    "universal, fixed": UniversalConfig(
        **HEADS, num_steps=3, adaptive_steps=False, positions="relative"
    ),
    "universal, all": UniversalConfig(
        **HEADS, num_steps=3, norm_position="pre", positions="relative", halting_bias=0.0,
    ),
    "bag": BagConfig(**SIZES, units=24),  # an example's, without attention
}  # fmt: skip
# Of each architecture the one with most weights and the largest state.
VARIANTS = ["transformer, window", "transformer, ssru", "recurrent, all", "universal, all", "bag"]
# Three sentences with targets, EOS and padding included; the targets start with BOS.
SOURCE = np.array([[4, 9, 5, 7, 3], [8, 3, 0, 0, 0], [6, 6, 8, 3, 0]])
TARGET = np.array([[2, 5, 6, 10, 4, 9], [2, 7, 7, 8, 0, 0], [2, 4, 0, 0, 0, 0]])
INPUTS = {"source": SOURCE, "target": TARGET}


def random_model(config, dtype=None):
    """Returns a model with random weights, norms and biases included."""
    model, random = build_model(config, dtype=dtype), np.random.default_rng(3)
    model.set_weights([random.normal(scale=0.4, size=w.shape) for w in model.get_weights()])
    return model


@functools.cache
def model_of(name, dtype=None):
    """Returns the model of a case, which no test changes."""
    return random_model(CONFIGS[name], dtype)


def logits_of(model, inputs=INPUTS, **options):
    logits = model(inputs, **options)
    return np.asarray(ops.cast(logits, "float64" if logits.dtype == "float64" else "float32"))


def steps_of(model, beams=1, **options):
    """Returns the logits [B, T, V] of the last hypothesis, step by step, and the last state."""
    state = model.encode(SOURCE, num_hypotheses=beams, **options)
    rows = []
    for time in range(TARGET.shape[1]):
        logits, state = model.step(np.repeat(TARGET[:, time : time + 1], beams, axis=1), state)
        rows.append(np.asarray(ops.cast(logits[:, -1], "float32")))
    return np.stack(rows, axis=1), state
