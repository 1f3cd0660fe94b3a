"""What a GPU computes, beside a CPU, within tolerances. This command runs all of it:

    python -m pytest -n 8 -m gpu tests/test_gpu.py

With GPU_TESTS_ON=CPU the "GPU" is a CPU too, which tries the tests themselves.
"""

import os
import pathlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Translator, export, load_exported, train
from keras_transformer.config import (
    RecurrentConfig,
    SearchConfig,
    TrainingConfig,
    TransformerConfig,
    UniversalConfig,
)
from keras_transformer.models import build_model
from keras_transformer.training.optimizer import compile_for_training

sys.path.append(str(pathlib.Path(__file__).parent / "training"))
import tiny_run

KIND = os.environ.get("GPU_TESTS_ON", "GPU")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tf.config.list_physical_devices(KIND), reason="needs a GPU"),
]

SIZES = dict(vocabulary_size=40, model_dim=32, dropout=0.0)
CONFIGS = {
    "transformer": TransformerConfig(**SIZES, num_layers=2, feed_forward_dim=64, num_heads=4),
    "recurrent": RecurrentConfig(**SIZES, hidden_dim=24),
    "universal": UniversalConfig(**SIZES, num_steps=3, feed_forward_dim=64, num_heads=4),
}
SETTINGS = dict(train_steps=12, batch_tokens=64, warmup_steps=6, learning_rate=0.02)


@pytest.fixture(scope="module", autouse=True)
def exact_products():
    """Switches TF32 off, whose products have 10 bits."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(before)


def batch():
    random = np.random.default_rng(1)
    source, target, labels = random.integers(4, 40, (3, 16, 12)).astype("int32")
    labels[3, 5:] = labels[9:, 2:] = 0
    target[:, 0] = 2  # BOS
    return {"source": source, "target": target}, labels


def flat(weights):
    return np.concatenate([weight.ravel() for weight in weights])


def check_difference(mean, largest):
    """Checks how far weights are apart that three updates moved by more than 0.005.

    Adam divides gradients by their size: where one is near 0, rounding decides how a weight moves.
    """
    assert mean < 1e-6
    assert largest < 1e-4


def updates(device, kind, start, jit_compile, steps=3, precision="float32", **options):
    """Gives the model after some updates, and their losses."""
    with tf.device(f"/{device}:0"):
        model = build_model(CONFIGS[kind], dtype=precision)
        if start is not None:  # a GPU draws others
            model.set_weights(start)
        training = TrainingConfig(**SETTINGS, precision=precision, **options)
        compile_for_training(model, training, jit_compile)
        losses = [model.train_on_batch(*batch(), return_dict=True)["loss"] for _ in range(steps)]
    return model, [float(loss) for loss in losses]


@pytest.mark.parametrize("options", [{}, dict(accumulation_steps=3, clip_norm=0.5)], ids=str)
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "XLA"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_updates_equal_those_of_the_cpu(kind, jit_compile, options):
    start = build_model(CONFIGS[kind]).get_weights()
    on_cpu, expected = updates("CPU", kind, start, False, **options)
    on_gpu, losses = updates(KIND, kind, start, jit_compile, **options)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    before, cpu, gpu = map(flat, (start, on_cpu.get_weights(), on_gpu.get_weights()))
    check_difference(np.abs(gpu - cpu).mean(), np.abs(gpu - cpu).max())
    assert np.abs(cpu - before).max() > 0.005


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains(precision):
    model, losses = updates(KIND, "transformer", None, True, steps=20, precision=precision)
    assert losses[-1] < 0.9 * losses[0]
    assert np.all(np.isfinite(losses))
    assert {weight.dtype for weight in model.weights} == {"float32"}


TWO_DEVICES = """
import sys
import numpy as np
import tensorflow as tf
kind = sys.argv[1]
device = tf.config.list_physical_devices(kind)[0]
memory = 4000 if kind == "GPU" else None
tf.config.set_logical_device_configuration(
    device, [tf.config.LogicalDeviceConfiguration(memory_limit=memory)] * 2
)
tf.config.experimental.enable_tensor_float_32_execution(False)
import test_gpu
from keras_transformer.models import build_model
from keras_transformer.training.distribution import make_strategy
from keras_transformer.training.optimizer import compile_for_training
from keras_transformer.config import TrainingConfig

start = build_model(test_gpu.CONFIGS["transformer"]).get_weights()
results = []
for strategy, jit_compile in (("none", False), ("mirrored", False), ("mirrored", True)):
    strategy = make_strategy(strategy)
    with strategy.scope():
        model = build_model(test_gpu.CONFIGS["transformer"])
        training = TrainingConfig(**test_gpu.SETTINGS, clip_norm=0.5)
        compile_for_training(model, training, jit_compile)
        model.set_weights(start)
    data = tf.data.Dataset.from_tensors(test_gpu.batch()).repeat()
    model.fit(data, steps_per_epoch=3, verbose=0)
    results.append(np.concatenate([weight.ravel() for weight in model.get_weights()]))
    difference = np.abs(results[-1] - results[0])
    print(strategy.num_replicas_in_sync, difference.mean(), difference.max())
"""


def test_two_devices_equal_one(run_python):
    folder = os.path.dirname(__file__)
    program = f"import sys; sys.path.insert(0, {folder!r})\n{TWO_DEVICES}"
    lines = [line.split() for line in run_python("-c", program, KIND).splitlines()]
    assert [int(replicas) for replicas, *_ in lines] == [1, 2, 2]
    for _, *difference in lines:
        check_difference(*map(float, difference))


# A run that reads words backwards

CORPUS, DEV = tiny_run.corpus(), tiny_run.text(16, seed=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run."""
    found = tiny_run.create(tmp_path_factory.mktemp("gpu") / "run", dropout=0.0)
    with tf.device(f"/{KIND}:0"):
        train(found, CORPUS, DEV, show=False)
    return found


def test_resumed_run_ends_close_to_the_undisturbed_one(run, tmp_path):
    resumed = tiny_run.copy_of(run, tmp_path / "run", until_step=8)
    with tf.device(f"/{KIND}:0"):
        train(resumed, CORPUS, DEV, show=False)
    expected, found = (each.load_model("step-12").get_weights() for each in (run, resumed))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-4)


def test_beam_search_and_export_answer_as_the_cpu_does(run, tmp_path):
    texts = tiny_run.text(24, seed=2).source
    answers = {}
    for device in ("CPU", KIND):
        with tf.device(f"/{device}:0"):
            keras.backend.clear_session()
            search = SearchConfig(beam_size=4)
            translator = Translator(run.load_model(), *run.vocabularies(), search)
            answers[device] = translator.translate(texts)
    exported = export(translator, tmp_path / "model")
    answers["export"] = load_exported(exported).translate(texts)
    (expected, scores), *others = (
        ([best.text for best in given], [best.score for best in given])
        for given in answers.values()
    )
    for found, found_scores in others:
        assert found == expected
        np.testing.assert_allclose(found_scores, scores, atol=1e-4)
