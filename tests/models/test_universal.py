"""What the Universal Transformer's halting decides, costs and shows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_run
import transformer_oracle

from keras_transformer.config import ModelConfig, SearchConfig, TransformerConfig, UniversalConfig
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator
from keras_transformer.models import UniversalTransformer, build_model
from keras_transformer.objectives import SmoothedCrossEntropy
from keras_transformer.search import beam_search

BOS = 2
SIZES = dict(vocabulary_size=13, model_dim=8, feed_forward_dim=12, num_heads=2, dropout=0.0)
PLAIN = UniversalConfig(**SIZES, num_steps=4)
FIXED = dict(adaptive_steps=False)
VARIANTS = {
    "sum": PLAIN,
    "sum-pre": PLAIN.replace(norm_position="pre", positions="learned"),
    "blend": PLAIN.replace(halting_output="blend"),
    "blend-pre": PLAIN.replace(halting_output="blend", norm_position="pre", positions="learned"),
    "fixed": PLAIN.replace(**FIXED),
}

# Three sentences with targets, EOS and padding included; the targets start with BOS.
SOURCE = np.array([[4, 9, 5, 7, 3], [12, 3, 0, 0, 0], [6, 6, 8, 3, 0]])
TARGET = np.array([[2, 5, 6, 10, 4, 9], [2, 7, 7, 8, 0, 0], [2, 4, 0, 0, 0, 0]])
INPUTS = {"source": SOURCE, "target": TARGET}


def make_model(config, seed=5):
    """Returns a model with random weights, those of the halting units such that N differs."""
    random = np.random.default_rng(seed)
    model = UniversalTransformer(config)
    model.set_weights([random.normal(scale=0.4, size=w.shape) for w in model.weights])
    return model


@pytest.fixture(scope="module", params=VARIANTS)
def model(request):
    return make_model(VARIANTS[request.param])


def test_tokens_take_different_numbers_of_steps():
    counts = make_model(PLAIN).token_values(INPUTS)
    assert len(set(np.asarray(counts["source_steps"])[SOURCE != 0])) > 1
    assert len(set(np.asarray(counts["target_steps"])[TARGET != 0])) > 1


# What the halting unit decides


@pytest.mark.parametrize(("bias", "steps"), [(20.0, 1), (-20.0, 4)])
def test_extreme_halting_bias_takes_one_step_or_all(bias, steps):
    model = make_model(PLAIN)
    for stack in (model.encoder, model.decoder):
        stack.halting_unit.kernel.assign(np.zeros((8, 1)))
        stack.halting_unit.bias.assign([bias])
    values = model.token_values(INPUTS)
    for side, ids in (("source", SOURCE), ("target", TARGET)):
        np.testing.assert_array_equal(values[f"{side}_steps"], steps * (ids != 0))
        np.testing.assert_allclose(values[f"{side}_remainders"], ids != 0, atol=1e-6)


@pytest.mark.parametrize("name", ["sum", "blend"])
def test_with_one_step_adaptive_and_fixed_are_the_plain_layer(name):
    config = VARIANTS[name].replace(num_steps=1)
    adaptive = make_model(config)
    fixed = UniversalTransformer(config.replace(**FIXED))
    units = {id(weight) for stack in (adaptive.encoder, adaptive.decoder)
             for weight in stack.halting_unit.weights}  # fmt: skip
    shared = [np.asarray(weight) for weight in adaptive.weights if id(weight) not in units]
    fixed.set_weights(shared)
    one, other = (np.asarray(model(INPUTS))[TARGET != 0] for model in (adaptive, fixed))
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_halting_gradients_are_within_a_percent_of_finite_differences():
    model, random = make_model(PLAIN), np.random.default_rng(1)
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


def test_ponder_cost_per_target_token():
    weight = 0.3
    model = make_model(PLAIN.replace(ponder_weight=weight))
    values = model.token_values(INPUTS)
    cost = weight * sum(np.sum(value) for value in values.values()) / np.sum(TARGET != 0)
    model(INPUTS, training=False)
    assert model.losses == []
    model(INPUTS, training=True)
    np.testing.assert_allclose(model.losses, [cost], rtol=1e-6)


def test_training_reports_steps_and_remainders():
    model = make_model(PLAIN.replace(ponder_weight=0.3))
    values = {name: np.asarray(value) for name, value in model.token_values(INPUTS).items()}
    labels = np.where(TARGET != 0, 5, 0)
    loss = SmoothedCrossEntropy(0.1)
    cross_entropy = float(loss(labels, model(INPUTS)))
    model.compile("sgd", loss, run_eagerly=True)
    shown = model.train_on_batch(INPUTS, labels, return_dict=True)
    for side, ids in (("source", SOURCE), ("target", TARGET)):
        for name in ("steps", "remainders"):
            mean = values[f"{side}_{name}"].sum() / np.sum(ids != 0)
            np.testing.assert_allclose(shown[f"train_{side}_{name}"], mean, rtol=1e-5)
    cost = 0.3 * sum(value.sum() for value in values.values()) / np.sum(TARGET != 0)
    np.testing.assert_allclose(shown["loss"], cross_entropy + cost, rtol=1e-5)
    fixed = make_model(VARIANTS["fixed"])
    fixed.compile("sgd", loss, run_eagerly=True)
    assert set(fixed.train_on_batch(INPUTS, labels, return_dict=True)) == {"loss"}


def test_an_evaluation_has_the_cross_entropy_alone():
    model = make_model(PLAIN)
    model.compile("sgd", SmoothedCrossEntropy(0.1), run_eagerly=True)
    labels = np.where(TARGET != 0, 5, 0)
    shown = model.evaluate(INPUTS, labels, return_dict=True, verbose=0)
    expected = float(SmoothedCrossEntropy(0.1)(labels, model(INPUTS)))
    assert shown == {"loss": pytest.approx(expected, rel=1e-5)}


# In a search and under XLA


def test_branching_beams_have_full_pass_probabilities(model):
    state = model.encode(tf.constant(SOURCE), num_hypotheses=3)
    limits = {"bos_ids": np.full(3, BOS), "max_lengths": np.full(3, 6)}
    found = beam_search(model.step, state, **limits, beam_size=3, length_penalty=0.0)
    labels = np.asarray(found.ids[:, 0])
    shifted = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
    log_probs = np.asarray(tf.nn.log_softmax(model({"source": SOURCE, "target": shifted})))
    taken = np.take_along_axis(log_probs, labels[:, :, None], axis=-1)[..., 0] * (labels != 0)
    np.testing.assert_allclose(found.log_probs[:, 0], taken.sum(axis=1), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sum", "blend-pre"])
def test_xla_gives_the_logits_and_gradients_of_the_graph(name):
    model = make_model(VARIANTS[name].replace(num_steps=2))

    def logits_and_gradients(source, target):
        with tf.GradientTape() as tape:
            logits = model({"source": source, "target": target}, training=True)
            value = tf.reduce_sum(logits**2) + sum(model.losses)
        weights = [weight.value for weight in model.trainable_weights]
        gradients = tape.gradient(value, weights, unconnected_gradients="zero")
        return [logits, *map(tf.convert_to_tensor, gradients)]

    inputs = [tf.constant(SOURCE, tf.int32), tf.constant(TARGET, tf.int32)]
    plain, compiled = (
        tf.function(logits_and_gradients, jit_compile=jit, autograph=False)(*inputs)
        for jit in (False, True)
    )
    largest = max(np.abs(gradient).max() for gradient in plain[1:])
    np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-6, atol=1e-6)
    for one, other in zip(plain[1:], compiled[1:], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6 * largest)


# What it shows


def test_attention_is_the_weighted_sum_of_steps(model):
    attention = np.asarray(model.attention(INPUTS))
    weights = {name: np.asarray(value) for name, value in model.attentions(INPUTS).items()}
    lengths = {"encoder": (5, 5), "decoder": (6, 6), "cross": (6, 5)}
    for name, shape in lengths.items():
        assert weights[name].shape == (4, 3, 2, *shape)
        np.testing.assert_allclose(weights[name][:, 0].sum(axis=-1), 1, atol=1e-5)
    real = TARGET != 0
    np.testing.assert_allclose(attention.sum(axis=-1)[real], 1, atol=1e-5)
    if model.config.adaptive_steps:
        assert np.abs(attention - weights["cross"][-1].mean(axis=1))[real].max() > 1e-3
    else:
        np.testing.assert_allclose(attention[0], weights["cross"][-1, 0].mean(axis=0), atol=1e-6)


def test_position_offset_is_shared_by_both_sides():
    copies = np.repeat(SOURCE[:1], 60, axis=0)
    targets = np.repeat(TARGET[:1], 60, axis=0)
    inputs = {"source": copies, "target": targets}
    for config in (PLAIN, TransformerConfig(**SIZES, num_layers=1)):
        plain = build_model(config)
        model = build_model(config.replace(max_position_offset=2))
        model.set_weights(plain.get_weights())
        np.testing.assert_array_equal(model(inputs), plain(inputs))
        trained = np.asarray(model(inputs, training=True))[:, -1]
        assert len(np.unique(trained.round(4), axis=0)) == 3  # nine, were both sides drawn apart
        shifted = build_model(config.replace(first_position=2))
        shifted.set_weights(plain.get_weights())
        expected = np.asarray(shifted(inputs))[0, -1]
        assert np.abs(trained - expected).max(axis=1).min() < 1e-5


@pytest.mark.slow
def test_signature_attention_reports_the_steps_of_each_token():
    vocabulary = tiny_run.make_vocabulary()
    model = make_model(PLAIN.replace(vocabulary_size=vocabulary.size))
    search = SearchConfig(max_source_length=8, max_extra_length=4)
    translator = Translator(model, vocabulary, vocabulary, search)
    text = {"source": tf.constant(["abc", "f"]), "target": tf.constant(["cb", "fed"])}
    answer = {name: np.asarray(value) for name, value in
              translator.functions.function("attention")(**text).items()}  # fmt: skip
    for side in ("source", "target"):
        is_real = answer[f"{side}_pieces"] != b""
        steps, remainders = (answer[f"{side}_{name}"] for name in ("steps", "remainders"))
        assert steps.shape == is_real.shape == remainders.shape
        np.testing.assert_array_equal(steps > 0, is_real)
        np.testing.assert_array_equal(remainders > 0, is_real)
        assert steps.max() <= PLAIN.num_steps


# Sizes


def test_presets_have_the_parameters_of_their_two_layers():
    config = ModelConfig.preset("universal-base", vocabulary_size=4)
    assert type(config) is UniversalConfig
    with keras.StatelessScope(initialize_variables=False):
        count = UniversalTransformer(config).count_params()
    d, f = 1024, 4096
    attention, feed_forward, norm = 4 * d * d, 2 * d * f + f + d, 2 * d
    layers = 3 * attention + 2 * feed_forward + 5 * norm
    assert count == layers + 2 * (d + 1) + 4 * d  # two halting units and four embeddings
    assert round(layers / 1e6, 1) == 29.4


def test_flops_project_the_memory_once():
    lengths = np.array([5.0]), np.array([7.0])
    d = SIZES["model_dim"]
    for steps in (1, 4):
        transformer = build_model(TransformerConfig(**SIZES, num_layers=steps))
        projections = 2 * 2 * d * d * lengths[0] * (steps - 1)
        config = PLAIN.replace(num_steps=steps, adaptive_steps=False)
        found = make_model(config).count_flops(*lengths)
        assert found == transformer.count_flops(*lengths) - projections


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(norm_epsilon=0.0), "norm_epsilon must be above 0 in a Universal Transformer, got 0"),
        (
            dict(model_dim=9, num_heads=3, positions="learned"),
            "model_dim must be even for the sinusoidal step signals, got 9",
        ),
        (dict(num_heads=3), "model_dim 8 is not divisible by num_heads 3; choose num_heads that"),
    ],
    ids=str,
)
def test_impossible_combinations_are_rejected(changes, message):
    with pytest.raises(InputError, match=message):
        PLAIN.replace(**changes)
