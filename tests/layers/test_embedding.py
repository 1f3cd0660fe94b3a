"""Token embeddings and their projection (3.4); positional encodings against their formulas."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
import transformer_oracle

from keras_transformer.layers import PositionalEncoding, TokenEmbedding
from keras_transformer.layers.embedding import relative_scores, relative_values

D = 8


def test_projection_of_a_functional_model_trains_the_matrix(tmp_path):
    layer, ids = TokenEmbedding(6, 4), keras.Input((None,), dtype="int32")
    hidden = keras.layers.Dense(4)(layer(ids))
    model = keras.Model(ids, [hidden, layer(hidden, reverse=True)])
    layer.table.assign(2 * layer.table.value)  # as training would
    model.save(tmp_path / "model.keras")
    x = np.array([[5, 2, 4]])
    for each in (model, keras.saving.load_model(tmp_path / "model.keras")):
        found, logits = each(x)
        expected = np.asarray(found) @ np.transpose(np.asarray(layer.table.value))
        np.testing.assert_allclose(logits, expected, rtol=1e-5)
    assert model.output_shape[1] == (None, None, 6)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(x)[1][..., 1])
    gradient = tf.convert_to_tensor(tape.gradient(total, layer.table.value))
    assert np.abs(gradient[1]).min() > 0  # no token of x, but projected on


def test_new_vectors_have_variance_1_beside_the_sinusoids():
    layer = TokenEmbedding(500, 64)
    vectors = np.asarray(layer(np.arange(500)))
    assert abs(vectors.var() - 1) < 0.05  # 32,000 numbers: the standard error is 0.008


def formula(kind, dim, length):
    """Returns the encodings of the float64 oracle."""
    config = SimpleNamespace(positions=kind, model_dim=dim, first_position=0)
    return transformer_oracle.encode_positions(SimpleNamespace(config=config), length)


@pytest.mark.parametrize("dim", [4, 512])
@pytest.mark.parametrize("kind", ["sinusoidal", "concatenated", "halves"])
def test_sinusoids_follow_their_formula(kind, dim):
    expected = formula(kind, dim, 5001)
    result = PositionalEncoding(dim, kind).encode(np.arange(100))
    np.testing.assert_allclose(result, expected[:100], atol=2e-5)
    # The float32 angle 5000 is exact to 2^-12, so sines and cosines are to about 5e-4.
    far = PositionalEncoding(dim, kind).encode(np.array([5000]))
    np.testing.assert_allclose(far, expected[5000:], atol=6e-4)


def test_positions_beyond_the_learned_ones_have_the_last_row():
    layer = PositionalEncoding(D, "learned", first_position=1, max_positions=4)
    layer.build()
    vectors = layer(np.zeros((1, 5, D), "float32"))[0]
    np.testing.assert_array_equal(vectors, layer.table.numpy()[[1, 2, 3, 3, 3]])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_rounds_the_result_and_not_the_angles(policy):
    # Position 301 is no bfloat16 number: rounded angles would give sin(302) instead.
    result = np.asarray(
        tf.cast(PositionalEncoding(D, dtype=policy).encode(np.array([301])), tf.float32)
    )
    np.testing.assert_allclose(result[0], formula("sinusoidal", D, 302)[301], atol=4e-3)


def test_gradient_of_a_relative_table_needs_little_memory():
    distances = tf.range(5)[None] - tf.range(5)[:, None]

    @tf.function
    def gradient(query, table):
        with tf.GradientTape() as tape:
            tape.watch(table)
            scores = relative_scores(query, table, distances)
            loss = tf.reduce_sum(relative_values(scores, table, distances))
        return tf.convert_to_tensor(tape.gradient(loss, table))

    specs = tf.TensorSpec([2, 3, 5, 7]), tf.TensorSpec([9, 7])
    operations = gradient.get_concrete_function(*specs).graph.get_operations()
    ranks = [output.shape.rank or 0 for each in operations for output in each.outputs]
    assert max(ranks) == 4  # none of [batch, heads, queries, keys, dim]
