"""The learning rate of Vaswani et al. 2017, eq. 3, with numbers worked out by hand."""

import keras
import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.objectives import InverseSquareRoot

PAPER = InverseSquareRoot(model_dim=512, warmup_steps=4000)


def rate_at(schedule: InverseSquareRoot, step: int) -> float:
    """Gives the rate of the update that the paper numbers `step`; Keras counts from 0."""
    return float(schedule(step - 1))


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, 1.7469281e-07),  # 512^-0.5 * 4000^-1.5
        (2, 3.4938562e-07),
        (4_000, 6.9877124e-04),  # (512 * 4000)^-0.5
        (16_000, 3.4938562e-04),  # half, at four times the steps
        (100_000, 1.3975425e-04),  # 512^-0.5 * 100000^-0.5
    ],
)
def test_rate_is_that_of_the_paper(step, rate):
    np.testing.assert_allclose(rate_at(PAPER, step), rate, rtol=1e-6)


def test_rate_grows_during_warm_up_and_then_falls():
    rates = [rate_at(InverseSquareRoot(64, warmup_steps=10), step) for step in range(1, 30)]
    assert int(np.argmax(rates)) + 1 == 10
    assert np.all(np.diff(rates[:10]) > 0)
    assert np.all(np.diff(rates[9:]) < 0)


def test_with_peak_reaches_that_rate_after_warm_up():
    schedule = InverseSquareRoot.with_peak(0.005, warmup_steps=2000)
    np.testing.assert_allclose(rate_at(schedule, 2000), 0.005, rtol=1e-6)
    np.testing.assert_allclose(rate_at(schedule, 500), 0.005 / 4, rtol=1e-6)
    np.testing.assert_allclose(rate_at(schedule, 8000), 0.005 / 2, rtol=1e-6)
    at_once = InverseSquareRoot.with_peak(0.1, warmup_steps=1)
    np.testing.assert_allclose([rate_at(at_once, step) for step in (1, 4)], [0.1, 0.05], rtol=1e-6)


def test_first_update_of_an_optimizer_is_step_1():
    # With a constant gradient of 1 each update of Adam is as large as the rate.
    schedule = InverseSquareRoot.with_peak(0.3, warmup_steps=3)
    optimizer = keras.optimizers.Adam(schedule, epsilon=1e-9)
    weight = keras.Variable(np.zeros(1, "float32"))
    values = [0.0]
    for _ in range(4):
        optimizer.apply_gradients([(np.ones(1, "float32"), weight)])
        values.append(float(weight[0]))
    np.testing.assert_allclose(np.diff(values), [-0.1, -0.2, -0.3, -0.3 * 0.75**0.5], rtol=1e-4)


def test_schedule_round_trips_in_an_optimizer_config():
    optimizer = keras.optimizers.Adam(InverseSquareRoot(256, 100, scale=2.0))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    schedule = again._learning_rate
    assert isinstance(schedule, InverseSquareRoot)
    assert schedule.get_config() == {"model_dim": 256, "warmup_steps": 100, "scale": 2.0}


def test_warm_up_needs_a_step():
    with pytest.raises(InputError, match="warmup_steps must be at least 1, got 64 and 0"):
        InverseSquareRoot(model_dim=64, warmup_steps=0)
