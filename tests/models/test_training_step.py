"""Training on several devices gives the weights that one device gives.

Devices can be split only before TensorFlow starts, so a process of its own trains on two.
"""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest

from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer
from keras_transformer.training import SmoothedCrossEntropy, TokenAccuracy

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

# Batches of four sentences: the first replica's two are long and the second's two are short, then
# the other way round, then the second replica has nothing but padding.
SCRIPT = """
    import json, sys
    import keras
    import numpy as np
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # saves time

    from keras_transformer.config import ModelConfig
    from keras_transformer.models import Transformer
    from keras_transformer.training import SmoothedCrossEntropy, TokenAccuracy

    random = np.random.default_rng(0)
    labels = random.integers(3, 11, size=(12, 7))
    for row, length in zip(labels, [7, 6, 1, 1, 1, 2, 7, 7, 5, 4, 0, 0]):
        row[length:] = 0
    source = random.integers(3, 11, size=(12, 5))
    target = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=2)
    inputs = {"source": source, "target": target}

    config = ModelConfig(vocabulary_size=11, num_layers=1, model_dim=8, feed_forward_dim=16,
                         num_heads=2, dropout=0.0)
    start = Transformer(config).get_weights()
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def keras_loss():
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)

    def train(strategy, optimizer, loss, **options):
        with strategy.scope():
            model = Transformer(config)
            model.set_weights(start)
            model.compile(optimizer=optimizer(), loss=loss(), metrics=[TokenAccuracy()],
                          jit_compile=False, run_eagerly=strategy is not mirrored, **options)
        history = model.fit(inputs, labels, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return model.get_weights(), [history.history["loss"], history.history["accuracy"]]

    def largest(ours, theirs):
        return float(max(np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True)))

    def compare(optimizer, loss, on_one={}, on_two={}):
        one, logs_of_one = train(tf.distribute.get_strategy(), optimizer, loss, **on_one)
        two, logs_of_two = train(mirrored, optimizer, loss, **on_two)
        return {"change": largest(one, start), "difference": largest(one, two),
                "logs_of_one": logs_of_one, "logs_of_two": logs_of_two}

    print(json.dumps({
        "sgd": compare(lambda: keras.optimizers.SGD(0.1), SmoothedCrossEntropy),
        "adam, clipped, in parts, loss of Keras": compare(
            lambda: keras.optimizers.Adam(0.01), keras_loss,
            {"clip_norm": 0.5}, {"clip_norm": 0.5, "accumulation_steps": 2}),
    }))
"""

RUNS = ["sgd", "adam, clipped, in parts, loss of Keras"]


@pytest.fixture(scope="module")
def runs() -> dict[str, dict]:
    """What training on one and on two devices gave, by optimizer and loss."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize("run", RUNS)
def test_two_devices_with_unequal_sentences_give_the_weights_of_one(runs, run):
    assert runs[run]["change"] > 0.01
    # Adam divides by the size of the gradient, which makes much of its last digits.
    assert runs[run]["difference"] < (1e-5 if run.startswith("adam") else 1e-6)


@pytest.mark.parametrize("run", RUNS)
def test_two_devices_report_the_losses_and_metrics_of_one(runs, run):
    for one, two in zip(runs[run]["logs_of_one"], runs[run]["logs_of_two"], strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5)


@pytest.fixture(scope="module")
def model() -> Transformer:
    config = ModelConfig(
        vocabulary_size=11, num_layers=1, model_dim=8, feed_forward_dim=16, num_heads=2, dropout=0.0
    )
    return Transformer(config)


LABELS = np.array([[5, 6, 7, 8, 9, 3], [4, 3, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0]])
INPUTS = {"source": LABELS, "target": np.pad(LABELS[:, :-1], ((0, 0), (1, 0)), constant_values=2)}


def test_every_real_symbol_counts_once_however_batches_divide_them(model):
    logits = np.asarray(model(INPUTS), "float64")
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    own = np.take_along_axis(log_probs, LABELS[..., None], axis=-1)[..., 0]
    expected = -own[LABELS != 0].mean()
    model.compile(
        loss=SmoothedCrossEntropy(0.0),
        metrics=[TokenAccuracy()],
        run_eagerly=True,
        jit_compile=False,
    )
    right = (logits.argmax(axis=-1) == LABELS)[LABELS != 0].mean()
    for batch_size in (1, 2, 3):
        loss, accuracy = model.evaluate(INPUTS, LABELS, batch_size=batch_size, verbose=0)
        assert loss == pytest.approx(expected, rel=1e-5)
        assert accuracy == pytest.approx(right)


def test_an_update_follows_the_mean_gradient_of_the_real_symbols(model):
    start = model.get_weights()
    model.compile(
        optimizer=keras.optimizers.SGD(1.0),
        loss=SmoothedCrossEntropy(0.0),
        run_eagerly=True,
        jit_compile=False,
    )
    model.train_on_batch(INPUTS, LABELS)
    after_all = model.get_weights()
    steps = []
    for row in range(3):  # each sentence alone, without its padding
        model.set_weights(start)
        real = LABELS[row : row + 1, : (LABELS[row] != 0).sum()]
        target = np.pad(real[:, :-1], ((0, 0), (1, 0)), constant_values=2)
        model.train_on_batch({"source": LABELS[row : row + 1], "target": target}, real)
        steps.append([new - old for new, old in zip(model.get_weights(), start, strict=True)])
    # 6, 2 and 1 symbols of 9
    for new, old, a, b, c in zip(after_all, start, *steps, strict=True):
        np.testing.assert_allclose(new - old, (6 * a + 2 * b + c) / 9, atol=1e-5)


def updates(model, **options):
    """Returns the changes that one step of SGD at rate 1 makes."""
    start = model.get_weights()
    model.compile(
        optimizer=keras.optimizers.SGD(1.0),
        loss=SmoothedCrossEntropy(),
        run_eagerly=True,
        **options,
    )
    model.train_on_batch(INPUTS, LABELS)
    changes = [new - old for new, old in zip(model.get_weights(), start, strict=True)]
    model.set_weights(start)
    return changes


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_a_batch_in_parts_gives_the_update_of_the_whole(model, parts):
    # Three sentences of 6, 2 and 1 symbols: a mean of the parts' means would differ.
    whole = updates(model)
    in_parts = updates(model, accumulation_steps=parts)
    for expected, result in zip(whole, in_parts, strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_clipping_scales_the_whole_gradient_down_to_the_norm(model):
    plain = updates(model)
    norm = np.sqrt(sum((change**2).sum() for change in plain))
    for limit, factor in ((norm / 4, 1 / 4), (norm * 4, 1)):
        clipped = updates(model, clip_norm=float(limit))
        for expected, result in zip(plain, clipped, strict=True):
            np.testing.assert_allclose(result, factor * expected, atol=1e-6)


@pytest.mark.parametrize("options", [dict(accumulation_steps=0), dict(clip_norm=0.0)], ids=str)
def test_impossible_options_are_refused(model, options):
    with pytest.raises(InputError, match="at least 1 and clip_norm above 0, got"):
        model.compile(loss=SmoothedCrossEntropy(), **options)


def test_a_batch_of_padding_alone_changes_nothing(model):
    start = model.get_weights()
    model.compile(
        optimizer=keras.optimizers.SGD(1.0), loss=SmoothedCrossEntropy(), run_eagerly=True
    )
    nothing = np.zeros_like(LABELS)
    model.train_on_batch({"source": LABELS, "target": nothing}, nothing)
    for old, new in zip(start, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
