"""The recurrent model: its arithmetic in every form, and decoding step by step."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.config import RecurrentConfig
from keras_transformer.errors import InputError
from keras_transformer.layers.recurrent import NOTHING, discount_past, scan
from keras_transformer.models import RecurrentModel

RANDOM = np.random.default_rng(5)
SMALL = dict(vocabulary_size=13, model_dim=4, hidden_dim=6, dropout=0.0)
CONFIGS = {
    "additive": RecurrentConfig(**SMALL, attention_dim=5),
    "dot": RecurrentConfig(
        **SMALL,
        num_layers=2,
        attention_type="dot",
        target_vocabulary_size=11,
        share_embeddings="none",
        output_bias=True,
        bridge_activation="tanh",
    ),
    "intra_temporal": RecurrentConfig(**SMALL, intra_temporal_attention=True),
    "intra_decoder": RecurrentConfig(**SMALL, num_layers=2, intra_decoder_attention=True),
    "fed": RecurrentConfig(**SMALL, input_feeding=True),
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


@pytest.fixture(scope="module", params=CONFIGS)
def model(request) -> RecurrentModel:
    return make_model(CONFIGS[request.param])


def logits_of(model, source, target, **options):
    return np.asarray(model({"source": source, "target": target}, **options))


# The formulas written out for one sentence in float64


def f64(variable):
    return np.asarray(variable.value, np.float64)


def affine(dense, x):
    return x @ f64(dense.kernel) + (f64(dense.bias) if dense.use_bias else 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def lstm_step(layer, x, hidden, cell, fed=0.0):
    z = affine(layer.projection, x) + hidden @ f64(layer.recurrent_kernel) + fed
    i, f, g, o = np.split(z, 4)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def read_source(model, source):
    """Returns H [S, 2 U] and the decoder's first states."""
    encoder = model.encoder
    x = f64(model.source_embedding.table)[source] * 2.0  # sqrt(D)
    activation = np.tanh if model.config.bridge_activation == "tanh" else lambda y: np.maximum(y, 0)
    states = []
    for layer in range(model.config.num_layers):
        outputs, last = [], []
        for lstm in (encoder.forwards[layer], encoder.backwards[layer]):
            hidden = cell = np.zeros(encoder.units)
            rows = []
            for row in x[::-1] if lstm.backwards else x:
                hidden, cell = lstm_step(lstm, row, hidden, cell)
                rows.append(hidden)
            outputs.append(np.array(rows[::-1] if lstm.backwards else rows))
            last.append((hidden, cell))
        x = np.concatenate(outputs, axis=1)
        bridges = encoder.hidden_bridges[layer], encoder.cell_bridges[layer]
        joined = [np.concatenate(part) for part in zip(*last, strict=True)]
        states.append([activation(affine(b, j)) for b, j in zip(bridges, joined, strict=True)])
    return x, states


def expected_of(model, source, target):
    """Returns logits [T, V] and attention [T, S] of one sentence without padding."""
    config, decoder = model.config, model.decoder
    memory, states = read_source(model, source)
    attention = decoder.attention
    keys = affine(attention.memory_projection, memory)
    past, context = np.zeros(len(source)), np.zeros(memory.shape[1])
    hiddens, logits, weights = [], [], []
    for time, token in enumerate(target):
        x = f64(model.target_embedding.table)[token] * 2.0
        for layer, lstm in enumerate(decoder.layers):
            fed = affine(decoder.feeding, context) if config.input_feeding and layer == 0 else 0.0
            states[layer] = lstm_step(lstm, x, *states[layer], fed)
            x = states[layer][0]
        if config.attention_type == "dot":
            scores = keys @ x
        else:
            hidden = np.tanh(keys + affine(attention.query_projection, x))
            scores = affine(attention.vector, hidden)[:, 0]
        exponentials = np.exp(scores)
        if config.intra_temporal_attention:
            share = exponentials if time == 0 else exponentials / past
            past += exponentials
            exponentials = share
        weights.append(exponentials / exponentials.sum())
        context = weights[-1] @ memory
        parts = [x, context]
        if config.intra_decoder_attention:
            earlier = np.array(hiddens)
            query = affine(decoder.intra_query, x)
            parts.append(softmax(earlier @ query) @ earlier if time else np.zeros_like(x))
        hiddens.append(x)
        output = affine(decoder.output_projection, np.concatenate(parts))
        if model.projection is None:
            logits.append(output @ f64(model.target_embedding.table).T)
        else:
            logits.append(affine(model.projection, output))
    bias = 0 if model.output_bias is None else f64(model.output_bias)
    return np.array(logits) + bias, np.array(weights)


def test_model_equals_the_formulas_in_float64(model):
    logits = logits_of(model, SOURCE, TARGET)
    attention = np.asarray(model.attention(INPUTS))
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        source, target = source[source != 0], target[target != 0]
        expected, weights = expected_of(model, source, target)
        np.testing.assert_allclose(logits[row, : len(target)], expected, rtol=1e-5, atol=1e-5)
        found = attention[row, : len(target), : len(source)]
        np.testing.assert_allclose(found, weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(attention[1, :, 2:], 0)


# Attention


def test_intra_temporal_attention_does_not_overflow():
    scores = tf.constant([[[200.0, -200.0, 0.0], [200.0, -200.0, 1.0], [-200.0, 200.0, 0.0]]])
    with tf.GradientTape() as tape:
        tape.watch(scores)
        found, _ = scan(discount_past, scores, ops.full_like(scores[:, 0], NOTHING))
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
    assert make_model(CONFIGS["dot"]).attentions(INPUTS).keys() == {"cross"}


# The whole model


def test_empty_source_gives_finite_logits(model):
    assert np.isfinite(logits_of(model, np.zeros_like(SOURCE), TARGET)).all()


def test_steps_of_fixed_capacity_equal_the_full_pass(model):
    full, capacity = model(INPUTS), 7
    state = model.encode(SOURCE, num_hypotheses=2, capacity=capacity, coverage=True)
    for time in range(TARGET.shape[1]):
        own = np.where(np.arange(capacity) <= time, np.arange(2)[:, None], -1)
        ancestors = np.broadcast_to(own.astype("int32"), (3, 2, capacity))
        state = state._replace(time=np.int32(time), ancestors=ancestors)
        logits, state = model.step(np.repeat(TARGET[:, time : time + 1], 2, axis=1), state)
        np.testing.assert_allclose(logits[:, 1], full[:, time], rtol=1e-5, atol=1e-5)
    expected = np.sum(model.attention(INPUTS), axis=1) + (SOURCE == 0)
    np.testing.assert_allclose(state.coverage[:, 0], expected, rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(attention_type="luong"), "attention_type must be one of additive, dot, got 'luong'"),
        (dict(hidden_dim=0), "hidden_dim must be at least 1, got 0"),
        (dict(attention_dim=0), "attention_dim must be at least 1, got 0"),
        (
            dict(attention_dim=4, attention_type="dot"),
            "attention_dim 4 cannot be combined with attention_type 'dot'",
        ),
        (dict(bridge_activation="gelu"), "bridge_activation must be one of relu, tanh"),
        (dict(num_heads=2), "RecurrentConfig has no field num_heads"),
    ],
)
def test_invalid_options_are_rejected(values, message):
    with pytest.raises(InputError, match=message) as caught:
        RecurrentConfig.from_dict(dict(vocabulary_size=9) | values)
    assert "\n" not in str(caught.value)
