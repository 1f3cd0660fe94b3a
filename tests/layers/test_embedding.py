"""Token embeddings and the projection that shares their matrix (3.4)."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.layers import TokenEmbedding

TABLE = np.arange(20.0).reshape(5, 4) / 7


def make_embedding(**options):
    layer = TokenEmbedding(5, 4, **options)
    layer.build()
    layer.set_weights([TABLE])
    return layer


def test_vectors_are_rows_scaled_by_sqrt_of_model_dim():
    ids = np.array([[0, 3], [4, 3]])
    # sqrt(4) = 2
    np.testing.assert_allclose(make_embedding()(ids), 2 * TABLE[ids], rtol=1e-6)


def test_embedding_without_scaling():
    ids = np.array([[0, 3], [4, 3]])
    np.testing.assert_allclose(make_embedding(scale=False)(ids), TABLE[ids], rtol=1e-6)


def test_projection_is_the_unscaled_transposed_matrix():
    x = np.array([[1.0, 0, 0, 0], [0, 0, 1, 1]])
    # The first row picks column 0, the second adds columns 2 and 3.
    expected = np.stack([TABLE[:, 0], TABLE[:, 2] + TABLE[:, 3]])
    np.testing.assert_allclose(make_embedding().project(x.astype("float32")), expected, rtol=1e-6)


def test_embedding_and_projection_train_one_matrix():
    layer = make_embedding()
    x = np.ones((1, 4), "float32")
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(np.array([2]))) + tf.reduce_sum(layer.project(x)[0, 1])
    (variable,) = layer.trainable_variables
    gradient = tf.convert_to_tensor(tape.gradient(total, variable.value))
    # Token 2 was embedded: sqrt(4) = 2 in each entry. Token 1 was projected on: x in its row.
    np.testing.assert_array_equal(gradient, [[0] * 4, [1] * 4, [2] * 4, [0] * 4, [0] * 4])


def test_new_vectors_have_variance_1_beside_the_sinusoids():
    layer = TokenEmbedding(500, 64)
    vectors = np.asarray(layer(np.arange(500)))
    assert abs(vectors.var() - 1) < 0.05  # 32,000 numbers: the standard error is 0.008


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_float_ids_are_not_rounded(policy):
    # bfloat16 has no 1001 and float16 no 2049, and Keras rounds floats that enter a layer.
    layer = TokenEmbedding(2050, 4, dtype=policy)
    ids = np.array([1001, 2049])
    np.testing.assert_array_equal(layer(ids.astype("float64")), layer(ids))


def test_half_precision_keeps_the_matrix_in_float32():
    layer = make_embedding(dtype="mixed_bfloat16")
    assert layer.table.dtype == "float32"
    assert layer(np.array([1])).dtype == tf.bfloat16
    assert layer.project(tf.ones([1, 4], tf.bfloat16)).dtype == tf.bfloat16
