"""What only the recurrent model has; its arithmetic is in test_architectures.py."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.config import RecurrentConfig
from keras_transformer.errors import InputError
from keras_transformer.layers.masks import MASKED
from keras_transformer.layers.recurrent import discount_past, scan
from keras_transformer.models import RecurrentModel

RANDOM = np.random.default_rng(5)
SMALL = dict(vocabulary_size=13, model_dim=4, hidden_dim=6, dropout=0.0)
CONFIGS = {
    "additive": RecurrentConfig(**SMALL, attention_dim=5),
    "intra_decoder": RecurrentConfig(**SMALL, num_layers=2, intra_decoder_attention=True),
    "everything": RecurrentConfig(
        **SMALL,
        num_layers=2,
        intra_temporal_attention=True,
        intra_decoder_attention=True,
        input_feeding=True,
    ),
}
# Three sentences with targets, EOS and padding included; the targets start with BOS.
SOURCE = np.array([[4, 9, 5, 7, 3], [12, 3, 0, 0, 0], [6, 6, 8, 3, 0]])
TARGET = np.array([[2, 5, 6, 10, 4, 9], [2, 7, 7, 8, 0, 0], [2, 4, 0, 0, 0, 0]])
INPUTS = {"source": SOURCE, "target": TARGET}


def make_model(config: RecurrentConfig, **options) -> RecurrentModel:
    """Returns a model with random weights, biases included."""
    model = RecurrentModel(config, **options)
    model.set_weights([RANDOM.normal(scale=0.5, size=w.shape) for w in model.weights])
    return model


def logits_of(model, source, target, **options):
    return np.asarray(model({"source": source, "target": target}, **options))


# Attention


def test_intra_temporal_attention_does_not_overflow():
    scores = tf.constant([[[200.0, -200.0, 0.0], [200.0, -200.0, 1.0], [-200.0, 200.0, 0.0]]])
    with tf.GradientTape() as tape:
        tape.watch(scores)
        found, _ = scan(discount_past, scores, ops.full_like(scores[:, 0], MASKED))
        weights = ops.softmax(found, axis=-1)
    assert np.isfinite(tape.gradient(weights, scores)).all()
    # e_t - log(sum over earlier steps of exp(e_j)), by hand: log(2 exp(200)) = 200 + log 2.
    expected = [
        [200.0, -200.0, 0.0],
        [0.0, 0.0, 1.0],
        [-400 - np.log(2), 400 - np.log(2), -np.log(1 + np.e)],
    ]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6, atol=1e-6)


def test_attentions_have_one_head():
    weights = make_model(CONFIGS["everything"]).attentions(INPUTS)
    assert {name: tuple(each.shape) for name, each in weights.items()} == {
        "cross": (1, 3, 1, 6, 5),
        "decoder": (1, 3, 1, 6, 6),
    }
    own = np.asarray(weights["decoder"])[0, 0, 0]
    np.testing.assert_array_equal(own[np.triu_indices(6)], 0)
    np.testing.assert_allclose(own.sum(axis=-1), [0, 1, 1, 1, 1, 1], atol=1e-6)
    assert make_model(CONFIGS["additive"]).attentions(INPUTS).keys() == {"cross"}


# The whole model


def test_hypotheses_attend_to_their_own_ancestors():
    model = make_model(CONFIGS["intra_decoder"])
    # The second hypothesis of each sentence continues the first one after two tokens.
    state = model.encode(SOURCE[:1], num_hypotheses=2)
    for time, (first, second) in enumerate([(2, 2), (5, 7), (6, 8), (10, 9)]):
        ancestors = [[0] * (time + 1), [0 if time > 1 and t < 2 else 1 for t in range(time + 1)]]
        if time == 2:
            state = state._replace(
                recurrent_state=tf.nest.map_structure(
                    lambda leaf: tf.gather(leaf, [0, 0], axis=1), state.recurrent_state
                )
            )
        state = state._replace(time=np.int32(time), ancestors=np.array([ancestors], "int32"))
        logits, state = model.step(np.array([[first, second]]), state)
    for place, target in enumerate([[2, 5, 6, 10], [2, 5, 8, 9]]):
        expected = logits_of(model, SOURCE[:1], np.array([target]))[0, -1]
        np.testing.assert_allclose(logits[0, place], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["additive", "everything"])
def test_dropout_acts_in_training_only(name):
    plain = make_model(CONFIGS[name])
    model = RecurrentModel(plain.config.replace(dropout=0.5))
    model.set_weights(plain.get_weights())
    expected = logits_of(plain, SOURCE, TARGET)
    np.testing.assert_array_equal(logits_of(model, SOURCE, TARGET), expected)
    assert np.abs(logits_of(model, SOURCE, TARGET, training=True) - expected).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["additive", "everything"])
def test_xla_gradients_equal_the_graph(name):
    model = make_model(CONFIGS[name])

    def gradients(source, target):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model({"source": source, "target": target}, training=True) ** 2)
        return [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_weights)]

    # As in training, where batches have several shapes.
    ids = [tf.TensorSpec([None, None], tf.int32)] * 2
    plain, compiled = (
        tf.function(gradients, ids, jit_compile=xla, autograph=False)(SOURCE, TARGET)
        for xla in (False, True)
    )
    for weight, expected, found in zip(model.trainable_weights, plain, compiled, strict=True):
        assert np.abs(expected).max() > 0, weight.path
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6, err_msg=weight.path)


# Sizes and settings


def test_flops_are_counted_by_hand():
    # U = 6, D = 4, A = 5, V = 13; 3 source and 2 target tokens.
    encoder = 3 * (2 * 24 * (4 + 6) + 12 * 5)  # both ways, and keys
    bridges = 2 * 12 * 6
    decoder = 2 * (24 * (4 + 6) + 6 * 5 + 18 * 4)  # LSTM, query, output
    pairs = 2 * 3 * (5 + 12)  # a score and a context
    expected = 2 * (encoder + bridges + decoder + pairs + 2 * 4 * 13)
    assert RecurrentModel(CONFIGS["additive"]).count_flops(3, 2) == expected


def test_attention_dim_of_dot_products_is_rejected():
    with pytest.raises(InputError, match="attention_dim 4 cannot be combined with attention_type"):
        RecurrentConfig(vocabulary_size=9, attention_dim=4, attention_type="dot")
