"""Loss, metrics and learning rate, with numbers by hand; the loss also as defined, in float64.

Shapes: B batch, T target length, V vocabulary.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.objectives import (
    InverseSquareRoot,
    Padding,
    Perplexity,
    SmoothedCrossEntropy,
    TargetTokens,
    TokenAccuracy,
    WarmUp,
)

PAD = 0
LABELS = np.array([[1, 3, 4], [2, PAD, PAD]])
LOGITS = np.random.default_rng(0).normal(scale=3.0, size=(2, 3, 5)).astype("float32")


def reference(labels, logits, smoothing):
    """The mean over real tokens of -sum(q log p), and its gradient, (p - q) / number of tokens.

    q = (1 - smoothing) onehot + smoothing / V.
    """
    size, is_real = logits.shape[-1], labels != PAD
    probabilities = np.exp(logits.astype(np.float64))
    probabilities /= probabilities.sum(-1, keepdims=True)
    expected = (1 - smoothing) * np.eye(size)[labels] + smoothing / size
    losses = -(expected * np.log(probabilities)).sum(-1)
    gradient = np.where(is_real[..., None], probabilities - expected, 0) / is_real.sum()
    return losses[is_real].mean(), gradient


def loss_and_gradient(labels, logits, smoothing, loss_scale=1.0):
    logits = tf.convert_to_tensor(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = SmoothedCrossEntropy(smoothing)(labels, logits)
        scaled = loss_scale * loss
    return loss, tape.gradient(scaled, logits)


@pytest.mark.parametrize(
    ("smoothing", "loss_scale", "label_dtype", "dtype"),
    [
        (0.0, 1.0, "int32", "float32"),
        (0.1, 1024.0, "int64", "float32"),
        (0.7, 1.0, "uint16", "float32"),
        (0.1, 1.0, "float32", "float32"),
        (0.1, 1.0, "int32", "bfloat16"),
        (0.1, 1.0, "int32", "float16"),
    ],
)
def test_loss_and_gradient_follow_the_definition(smoothing, loss_scale, label_dtype, dtype):
    logits = tf.cast(LOGITS, dtype)
    loss, gradient = loss_and_gradient(LABELS.astype(label_dtype), logits, smoothing, loss_scale)
    expected, slope = reference(LABELS, tf.cast(logits, "float32").numpy(), smoothing)
    assert (loss.dtype, gradient.dtype) == ("float32", dtype)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    tolerance = dict(rtol=1e-4, atol=1e-7) if dtype == "float32" else dict(rtol=1e-2, atol=1e-4)
    gradient = tf.cast(gradient, "float32") / loss_scale
    np.testing.assert_allclose(gradient, slope, **tolerance)


LOWEST = float(np.finfo("float32").min)
EXTREME = [  # labels and logits of one sentence, its loss, and the gradient
    ([2, 1], [[1e4, -1e4, 0]] * 2, 1.5e4, [[0.5, 0, -0.5], [0.5, -0.5, 0]]),
    # Tokens that a model rules out leave the loss finite.
    ([3], [[-np.inf, -np.inf, 0, 0]], np.log(2), [[0, 0, 0.5, -0.5]]),
    ([3], [[LOWEST, LOWEST, 0, 0]], np.log(2), [[0, 0, 0.5, -0.5]]),
    ([PAD, PAD], [[1, 2, 3], [4, 5, 6]], 0, [[0, 0, 0]] * 2),
]


@pytest.mark.parametrize(("labels", "logits", "expected", "slope"), EXTREME)
def test_extreme_logits_have_exact_loss_and_gradient(labels, logits, expected, slope):
    logits = np.array([logits], "float32")
    loss, gradient = loss_and_gradient(np.array([labels]), logits, 0.0)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, [slope], atol=1e-7)


def test_default_precision_of_keras_rounds_neither_labels_nor_counts():
    keras.config.set_floatx("bfloat16")
    try:
        loss, count = SmoothedCrossEntropy(0.0), TargetTokens()
        metrics = [count, Padding(), TokenAccuracy(), Perplexity()]
    finally:
        keras.config.set_floatx("float32")
    logits = np.zeros((1, 1, 600), "float32")
    logits[0, 0, 511] = 20.0  # bfloat16 rounds 511 to 512
    np.testing.assert_allclose(loss(np.array([[511]]), logits), 0, atol=1e-5)
    count.update_state(np.full((7, 10_001), 3), None)
    assert float(count.result()) == 70_007
    assert {metric.dtype for metric in metrics} == {"float32"}


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1)])
def test_sample_weights_multiply_the_losses(shape):
    loss, labels = SmoothedCrossEntropy(), LABELS.reshape(shape)
    losses = np.where(LABELS != PAD, loss.call(LABELS, LOGITS), 0)
    of_tokens = np.array([[1.0, 0.0, 2.0], [0.5, 7.0, 7.0]])
    expected = (losses * of_tokens).sum() / 4
    np.testing.assert_allclose(loss(labels, LOGITS, of_tokens), expected, rtol=1e-6)
    np.testing.assert_allclose(loss(labels, LOGITS, of_tokens[..., None]), expected, rtol=1e-6)
    expected = (losses[0].sum() + 3 * losses[1].sum()) / 4
    np.testing.assert_allclose(loss(labels, LOGITS, np.array([1, 3])), expected, rtol=1e-6)


def test_a_keras_model_with_a_mask_compiles_with_them():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Embedding(5, 8, mask_zero=True), keras.layers.Dense(5)])
    metrics = [TokenAccuracy(), Perplexity()]
    model.compile(keras.optimizers.Adam(0.05), SmoothedCrossEntropy(), metrics=metrics)
    ids = np.array([[2, 4, 3], [1, 0, 0]])
    stops = [keras.callbacks.EarlyStopping(f"val_{metric.name}", patience=9) for metric in metrics]
    options = dict(validation_data=(ids, LABELS), callbacks=stops, verbose=0)
    history = model.fit(ids, LABELS, epochs=8, **options).history["loss"]
    assert history[-1] < 0.7 * history[0]
    expected, _ = reference(LABELS, model(ids).numpy(), 0.1)
    np.testing.assert_allclose(model.evaluate(ids, LABELS, verbose=0)[0], expected, rtol=1e-5)
    assert [stop.monitor_op(2, 1) for stop in stops] == [True, False]  # which way they improve


# The labels have the probabilities 1/2, 1/4 and 1/8; only the first is the most probable.
COUNTED = np.array([[1, 2, PAD], [3, PAD, PAD]])
PROBABILITIES = np.array(
    [
        [[2, 4, 1, 1], [3, 2, 2, 1], [8, 0, 0, 0]],
        [[1, 4, 2, 1], [0, 8, 0, 0], [2, 2, 2, 2]],
    ]
)
COUNTED_LOGITS = np.log(PROBABILITIES + 1e-9).astype("float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("metric", "expected", "of_padding"),
    [
        (TokenAccuracy(), 1 / 3, 0),
        (Perplexity(), (1 / 2 * 1 / 4 * 1 / 8) ** (-1 / 3), 1),
        (TargetTokens(), 3, 0),
        (Padding(), 9 / 12, 1),
    ],
)
def test_metrics_count_the_real_tokens_of_all_batches(metric, expected, of_padding, dtype):
    metric.reset_state()
    metric.update_state(np.zeros_like(COUNTED), COUNTED_LOGITS)
    assert metric.result() == of_padding
    for labels, logits in zip(COUNTED, COUNTED_LOGITS, strict=True):  # two tokens, then one
        metric.update_state(labels[None], tf.cast(logits[None], dtype))
    assert metric.result().dtype == "float32"
    tolerance = {"float32": 1e-6, "bfloat16": 0.02}[dtype]
    np.testing.assert_allclose(metric.result(), expected, rtol=tolerance)


@pytest.mark.parametrize(
    ("metric", "labels", "logits", "expected"),
    [
        (Perplexity(), [[1, 2]], [[[0, 1e4, -1e4], [-1e4, 0, 40.0]]], 1),  # and not infinite
        (TokenAccuracy(), [[1, 2]], np.zeros((1, 2, 4)), 1),  # ties are right
    ],
)
def test_metric_of_one_batch(metric, labels, logits, expected):
    metric.update_state(np.array(labels), logits)
    np.testing.assert_allclose(metric.result(), expected)


@pytest.mark.parametrize(
    ("value", "config"),
    [
        (SmoothedCrossEntropy(0.25, name="mine"), {"smoothing": 0.25, "name": "mine"}),
        (InverseSquareRoot(256, 100, scale=2.0),
         {"model_dim": 256, "warmup_steps": 100, "scale": 2.0}),
        (WarmUp(0.1, 5, 5),
         {"peak": 0.1, "warmup_steps": 5, "train_steps": 5, "decay": "constant"}),
        *((metric(), {"name": metric().name})
          for metric in (TokenAccuracy, Perplexity, TargetTokens, Padding)),
    ],
)  # fmt: skip
def test_config_round_trip(value, config):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(value))
    assert type(again) is type(value)
    assert config.items() <= again.get_config().items()


def test_warm_up_needs_a_step():
    with pytest.raises(InputError, match="warmup_steps must be at least 1, got 64 and 0"):
        InverseSquareRoot(model_dim=64, warmup_steps=0)
    with pytest.raises(InputError, match="decay cosine needs steps after the warm-up, got warmup"):
        WarmUp(0.1, warmup_steps=5, train_steps=5, decay="cosine")


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1)])
@pytest.mark.parametrize("weights", [[1.0, 0.0], [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]])
def test_sample_weights_apply_to_sentences_and_tokens(weights, shape):
    labels = np.array([[1, 2, 0], [3, 1, 1]])
    logits = np.eye(4, dtype="float32")[[[1, 3, 0], [3, 1, 2]]] * 5  # right: 1 of 2, 2 of 3
    for metric in (TokenAccuracy(), Perplexity()):
        expected = type(metric)()
        metric.update_state(labels.reshape(shape), logits, sample_weight=np.array(weights))
        expected.update_state(labels[:1], logits[:1])
        assert float(metric.result()) == pytest.approx(float(expected.result()))


def test_first_update_of_an_optimizer_is_step_1():
    # With a constant gradient of 1 each update of Adam is as large as the rate.
    schedule = InverseSquareRoot(1, warmup_steps=3, scale=0.3 * 3**0.5)
    optimizer = keras.optimizers.Adam(schedule, epsilon=1e-9)
    weight = keras.Variable(np.zeros(1, "float32"))
    values = [0.0]
    for _ in range(4):
        optimizer.apply_gradients([(np.ones(1, "float32"), weight)])
        values.append(float(weight[0]))
    np.testing.assert_allclose(np.diff(values), [-0.1, -0.2, -0.3, -0.3 * 0.75**0.5], rtol=1e-4)


@pytest.mark.parametrize("how", ["graph", "xla"])
def test_loss_is_the_same_in_every_mode(how):
    random = np.random.default_rng(1)
    labels = random.integers(1, 4000, (2, 8))
    logits = random.normal(scale=4.0, size=(2, 8, 4000)).astype("float32")
    call = functools.partial(loss_and_gradient, smoothing=0.1)
    call = tf.function(call, jit_compile=how == "xla", autograph=False)
    loss, gradient = call(labels, tf.constant(logits))
    expected, slope = reference(labels, logits, 0.1)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, slope, atol=1e-6 / labels.size, rtol=1e-5)
    labels[0, 0] = -100  # outside of the vocabulary
    assert np.isnan(call(labels, tf.constant(logits))[0])
