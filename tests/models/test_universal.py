"""What the Universal Transformer's halting decides, costs and shows."""

import numpy as np
import pytest
import tensorflow as tf
import transformer_oracle
from model_cases import INPUTS, SOURCE, TARGET, random_model

from keras_transformer.config import UniversalConfig
from keras_transformer.objectives import SmoothedCrossEntropy

SIZES = dict(vocabulary_size=13, model_dim=8, feed_forward_dim=12, num_heads=2, dropout=0.0)
PLAIN = UniversalConfig(**SIZES, num_steps=4)
SIDES = {"source": SOURCE, "target": TARGET}


def test_halting_gradients_are_within_a_percent_of_finite_differences():
    model, random = random_model(PLAIN), np.random.default_rng(1)
    source, target = SOURCE[:1], TARGET[:1]
    slopes = random.normal(size=(1, 6, 13))
    with tf.GradientTape() as tape:
        logits = model({"source": source, "target": target}, training=True)
        # Its weight is 0.01, and so are its gradients without this factor.
        value = tf.reduce_sum(logits * slopes) + 1000 * model.losses[0]
    units = [stack.halting_unit for stack in (model.encoder, model.decoder)]
    variables = [variable for unit in units for variable in (unit.kernel, unit.bias)]
    gradients = tape.gradient(value, [variable.value for variable in variables])

    def value_of() -> float:
        found = transformer_oracle.answer(model, source[0], target[0])
        ponder = sum(np.sum(part) for side in found.halting.values() for part in side)
        return np.sum(found.logits * slopes[0]) + 1000 * PLAIN.ponder_weight * ponder / 6

    for variable, gradient in zip(variables, gradients, strict=True):
        values = np.array(variable)
        for index in np.ndindex(*values.shape):
            ends = []
            for change in (1e-3, -1e-3):
                changed = values.copy()
                changed[index] += change
                variable.assign(changed)
                ends.append(value_of())
            variable.assign(values)
            slope = (ends[0] - ends[1]) / 2e-3
            np.testing.assert_allclose(gradient[index], slope, rtol=0.01, atol=0.01)


def test_training_adds_the_ponder_cost_and_reports_steps_and_remainders():
    model = random_model(PLAIN.replace(ponder_weight=0.3))
    values = {name: np.asarray(value) for name, value in model.token_values(INPUTS).items()}
    cost = 0.3 * sum(value.sum() for value in values.values()) / np.sum(TARGET != 0)
    model(INPUTS, training=False)
    assert model.losses == []
    model(INPUTS, training=True)
    np.testing.assert_allclose(model.losses, [cost], rtol=1e-6)
    labels, loss = np.where(TARGET != 0, 5, 0), SmoothedCrossEntropy(0.1)
    cross_entropy = float(loss(labels, model(INPUTS)))
    model.compile("sgd", loss, run_eagerly=True)
    evaluated = model.evaluate(INPUTS, labels, return_dict=True, verbose=0)
    assert evaluated == {"loss": pytest.approx(cross_entropy, rel=1e-5)}
    shown = model.train_on_batch(INPUTS, labels, return_dict=True)
    np.testing.assert_allclose(shown["loss"], cross_entropy + cost, rtol=1e-5)
    for side, ids in SIDES.items():
        for name in ("steps", "remainders"):
            mean = values[f"{side}_{name}"].sum() / np.sum(ids != 0)
            np.testing.assert_allclose(shown[f"train_{side}_{name}"], mean, rtol=1e-5)
    fixed = random_model(PLAIN.replace(adaptive_steps=False))
    fixed.compile("sgd", loss, run_eagerly=True)
    assert set(fixed.train_on_batch(INPUTS, labels, return_dict=True)) == {"loss"}
