"""docs/explanation/paper.md: its objects exist, and formulas equal float64 NumPy; the notebook.

A formula is a function that returns what our code gives and what NumPy gives; attention and
feed-forward have the sizes of the paper's base model. The page's column of tests has their names.
"""

import json
import pathlib
import re
import runpy
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import InverseSquareRoot, SmoothedCrossEntropy
from keras_transformer.config import SearchConfig, TrainingConfig, TransformerConfig
from keras_transformer.layers import (
    LSTM,
    CrossAttention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    PositionalEncoding,
    RecurrentDecoder,
    SelfAttention,
    TokenEmbedding,
    UniversalEncoder,
    WindowedSelfAttention,
)
from keras_transformer.layers.embedding import sinusoids
from keras_transformer.layers.masks import causal_mask
from keras_transformer.layers.recurrent import LSTMState
from keras_transformer.layers.universal import advance, start
from keras_transformer.models.transformer import layer_options
from keras_transformer.search.scoring import coverage_penalty, length_penalty
from keras_transformer.tasks.parsing import ParsingTask

ROOT = pathlib.Path(__file__).resolve().parents[2]
D, H, K, F, N, T = 512, 8, 64, 2048, 6, 20  # of the base model; T tokens
RANDOM = np.random.default_rng(1)
HEADS = dict(num_heads=H, key_dim=K, value_dim=K, dtype="float64")


def normal(*shape):
    return RANDOM.normal(size=shape)


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def heads(query, keys, values, output, hidden=False, add_scores=0):
    """Concat(head_1, ..., head_h) W^O, head by head; queries [T, D], keys and values [S, D]."""
    parts = [slice(head * K, (head + 1) * K) for head in range(H)]
    attended = []
    for part in parts:
        scores = query[:, part] @ keys[:, part].T / np.sqrt(K) + add_scores
        attended.append(softmax(np.where(hidden, -np.inf, scores)) @ values[:, part])
    return np.concatenate(attended, axis=-1) @ output


def cross_attention():
    layer, x, memory = CrossAttention(**HEADS), normal(T, D), normal(2 * T, D)
    here = layer(x[None], memory[None])[0]
    query, key_value, output = layer.get_weights()
    keys, values = np.split(memory @ key_value, 2, axis=1)
    return here, heads(x @ query, keys, values, output)


def masked_self_attention():
    layer, x = SelfAttention(**HEADS), normal(T, D)
    here = layer(x[None], use_causal_mask=True)[0]
    projection, output = layer.get_weights()
    query, keys, values = np.split(x @ projection, 3, axis=1)
    return here, heads(query, keys, values, output, hidden=np.triu(np.ones((T, T)), 1) > 0)


def mask_of_the_future():
    return causal_mask(T), np.tril(np.ones((T, T)))


def feed_forward():
    layer, x = FeedForward(F, dtype="float64"), normal(T, D)
    layer.build((None, T, D))
    layer.set_weights([0.03 * normal(*each.shape) for each in layer.weights])  # biases too
    here = layer(x[None])[0]
    inner, inner_bias, outer, outer_bias = layer.get_weights()
    return here, np.maximum(0, x @ inner + inner_bias) @ outer + outer_bias


def encoder_layer():
    layer, x = EncoderLayer(feed_forward_dim=F, **HEADS), normal(T, D)
    here = layer(x[None])[0]
    projection, output = layer.self_attention.get_weights()
    x = norm(x + heads(*np.split(x @ projection, 3, axis=1), output))
    inner, _, outer, _ = layer.feed_forward.get_weights()  # biases are 0 at first
    return here, norm(x + np.maximum(0, x @ inner) @ outer)


def decoder_layer():
    layer, x, memory = DecoderLayer(feed_forward_dim=F, **HEADS), normal(T, D), normal(2 * T, D)
    here = layer(x[None], memory[None])[0]
    projection, output = layer.self_attention.get_weights()
    hidden = np.triu(np.ones((T, T)), 1) > 0
    x = norm(x + heads(*np.split(x @ projection, 3, axis=1), output, hidden))
    query, key_value, output = layer.cross_attention.get_weights()
    x = norm(x + heads(x @ query, *np.split(memory @ key_value, 2, axis=1), output))
    inner, _, outer, _ = layer.feed_forward.get_weights()
    return here, norm(x + np.maximum(0, x @ inner) @ outer)


def restricted_attention():
    layer, x = WindowedSelfAttention(window=5, **HEADS), normal(T, D)
    here = layer(x[None])[0]
    projection, output = layer.get_weights()
    distances = np.abs(np.arange(T)[:, None] - np.arange(T))
    return here, heads(*np.split(x @ projection, 3, axis=1), output, hidden=distances > 2)


def shared_embedding():
    layer, ids = TokenEmbedding(1_000, D, dtype="float64"), RANDOM.integers(1_000, size=T)
    here = [layer(ids[None])[0]]
    here += [layer(here[0][None], reverse=True)[0, :, :100]]
    (table,) = layer.get_weights()
    embedded = table[ids] * np.sqrt(D)
    return np.concatenate(here, axis=1), np.concatenate([embedded, embedded @ table[:100].T], 1)


def sines_and_cosines():
    return sinusoids(np.arange(T), D, dtype="float64"), encodings(np.arange(T))


def added_positions():
    learned, x = PositionalEncoding(D, kind="learned", dtype="float64"), normal(2, T, D)
    here = [PositionalEncoding(D, dtype="float64")(x), learned(x)]
    (table,) = learned.get_weights()
    return np.array(here), np.array([x + encodings(np.arange(T)), x + table[:T]])


def encodings(positions):
    angles = positions[:, None] / 10_000 ** (2 * np.arange(D // 2) / D)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(-1, D)


def signals_of_position_and_step():
    options = dict(num_steps=2, adaptive_steps=False, feed_forward_dim=F)
    encoder, x = UniversalEncoder(**options, **HEADS), normal(1, T, D)
    here, expected = encoder(x), x
    for step in (1, 2):
        expected = encoder.layer(expected + encodings(np.arange(T)) + encodings(np.array([step])))
    return here, expected


def learning_rate():
    steps = np.array([1, 100, 4_000, 4_001, 100_000])
    here = [float(InverseSquareRoot(D, 4_000)(step - 1)) for step in steps]
    return np.array(here), D**-0.5 * np.minimum(steps**-0.5, steps * 4_000**-1.5)


def label_smoothing():
    logits, labels = normal(T, 1_000), RANDOM.integers(1, 1_000, size=T)
    here = SmoothedCrossEntropy(0.1)(labels[None], logits[None])
    wanted = 0.9 * np.eye(1_000)[labels] + 0.1 / 1_000
    return here, -np.sum(wanted * np.log(softmax(logits)), axis=-1).mean()


def hyperparameters():
    """The settings of sections 3 and 5, Table 3 (base and big), 6.1 and 6.3."""
    here = []
    for name in ("base", "big"):
        model = TransformerConfig.preset(name, vocabulary_size=37_000)
        training = TrainingConfig.preset(name)
        here += [model.num_layers, model.model_dim, model.feed_forward_dim, model.num_heads]
        here += [layer_options(model)[width] for width in ("key_dim", "value_dim")]
        here += [model.dropout, training.train_steps, training.average_last]
        here += [training.warmup_steps, training.label_smoothing, training.batch_tokens]
    search, parsing = SearchConfig(), ParsingTask.default_search
    here += [search.beam_size, search.length_penalty, search.max_extra_length]
    here += [parsing["beam_size"], parsing["length_penalty"], parsing["max_extra_length"]]
    base = [6, 512, 2048, 8, 64, 64, 0.1, 100_000, 5, 4_000, 0.1, 25_000]
    big = [6, 1024, 4096, 16, 64, 64, 0.3, 300_000, 20, 4_000, 0.1, 25_000]
    return np.array(here), np.array([*base, *big, 4, 0.6, 50, 21, 0.3, 300])


def length_normalization():
    lengths = np.arange(1, 60)
    here = length_penalty(tf.constant(lengths), tf.constant(0.6))
    return here, (5 + lengths) ** 0.6 / (5 + 1) ** 0.6


def coverage():
    attention = softmax(normal(4, T, 30)).sum(axis=1)  # of T target tokens, on 30 of the source
    here = coverage_penalty(tf.constant(attention[None], tf.float32), tf.constant([0.2]))[0]
    return here, 0.2 * np.log(np.minimum(attention, 1)).sum(axis=-1)


def relative_positions():
    layer, x = SelfAttention(max_relative_distance=16, **HEADS), normal(T, D)
    here = layer(x[None])[0]
    weights = {each.name: np.array(each) for each in layer.weights}
    keys_a, values_a = weights["relative_keys"], weights["relative_values"]
    kernels = [each for each in layer.get_weights() if len(each) == D]  # of projection and output
    query, keys, values = (each.reshape(T, H, K) for each in np.split(x @ kernels[0], 3, axis=1))
    row = np.clip(np.arange(T)[None] - np.arange(T)[:, None], -16, 16) + 16
    scores = np.einsum("ihk,ijhk->hij", query, keys[None] + keys_a[row][:, :, None]) / np.sqrt(K)
    mixed = np.einsum("hij,ijhk->ihk", softmax(scores), values[None] + values_a[row][:, :, None])
    return here, mixed.reshape(T, D) @ kernels[1]


def long_short_term_memory():
    layer, x = LSTM(K, dtype="float64"), normal(T, D)
    here = layer(x[None])[0]
    recurrent, kernel, bias = layer.get_weights()
    hidden, cell, expected = np.zeros(K), np.zeros(K), []
    for token in x:
        gates = np.split(token @ kernel + bias + hidden @ recurrent, 4)
        let_in, keep, let_out = (1 / (1 + np.exp(-gates[index])) for index in (0, 1, 3))
        cell = keep * cell + let_in * np.tanh(gates[2])
        hidden = let_out * np.tanh(cell)
        expected.append(hidden)
    return here, np.array(expected)


def additive_attention():
    here, hidden, context, weights = _recurrent(intra_decoder=False)
    output, bias = weights["output"]
    return here, np.concatenate([hidden, context], axis=1) @ output + bias


def intra_decoder_attention():
    here, hidden, context, weights = _recurrent(intra_decoder=True)
    scores = hidden @ weights["intra_query"][0] @ hidden.T
    earlier = np.where(np.tri(T, k=-1) > 0, scores, -np.inf)[1:]  # none before the first token
    past = np.concatenate([np.zeros((1, T)), softmax(earlier)]) @ hidden
    output, bias = weights["output"]
    return here, np.concatenate([hidden, context, past], axis=1) @ output + bias


def _recurrent(**options):
    """Returns a decoder's output, its LSTM's, v^T tanh(W1 H + W2 h + b) H, and its weights."""
    decoder = RecurrentDecoder(num_layers=1, units=K, dtype="float64", **options)
    decoder.build((None, None, D))
    x, memory, zeros = normal(T, D), normal(2 * T, 2 * K), np.zeros((1, K))
    projected = decoder.project_memory(memory[None], np.ones((1, 2 * T), bool))
    output = decoder(x[None], projected, (LSTMState(zeros, zeros),))[0]
    weights = {}
    for each in decoder.weights:
        weights.setdefault(each.path.split("/")[-2], []).append(np.array(each))
    hidden = np.array(decoder.layers[0](x[None])[0])
    (keys,), (query, bias), (vector,) = (weights[name] for name in ("memory", "query", "vector"))
    scores = np.tanh((hidden @ query + bias)[:, None] + memory @ keys) @ vector
    return output, hidden, softmax(scores[..., 0]) @ memory, weights


def halting():
    """Steps, remainders and weights of T tokens, by the loop of Graves 2016, 2.1."""
    probabilities = RANDOM.uniform(size=(N, T)).astype("float32")
    state, here = start(np.ones(T, bool)), []
    for step in range(N):
        weight, state = advance(state, probabilities[step], 0.01, step == N - 1)
        here.append(weight)
    expected = np.zeros((N + 2, T))
    for token in range(T):
        total = 0.0
        for step in range(N):
            if total + probabilities[step, token] > 1 - 0.01 or step == N - 1:
                expected[[step, N, N + 1], token] = 1 - total, step + 1, 1 - total
                break
            expected[step, token] = probabilities[step, token]
            total += probabilities[step, token]
    return np.array([*here, state.steps, state.remainders]), expected


FORMULAS = {
    cross_attention: 1e-12,
    masked_self_attention: 1e-12,
    mask_of_the_future: 0,
    feed_forward: 1e-12,
    encoder_layer: 1e-12,
    shared_embedding: 1e-12,
    sines_and_cosines: 1e-12,
    learning_rate: 1e-9,
    label_smoothing: 1e-5,  # losses and scores have float32, whatever the layers have
    length_normalization: 1e-5,
    coverage: 1e-5,
    hyperparameters: 0,
    long_short_term_memory: 1e-12,
    added_positions: 1e-12,
    restricted_attention: 1e-12,
    decoder_layer: 1e-12,
    relative_positions: 1e-12,
    additive_attention: 1e-12,
    intra_decoder_attention: 1e-12,
    signals_of_position_and_step: 1e-5,  # float32, whatever the layers have
    halting: 1e-6,
}


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.__name__)
def test_formula_equals_numpy(formula):
    here, expected = (keras.ops.convert_to_numpy(each) for each in formula())
    assert here.shape == np.shape(expected)
    np.testing.assert_allclose(here, expected, rtol=0, atol=FORMULAS[formula])


@pytest.fixture(scope="module")
def pages():
    return types.SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "pages.py")))


def test_rows_name_objects_and_tests_that_exist(pages):
    text = pages.PAPER.read_text("utf-8")
    assert pages.update_links(text)[1] == []
    rows = re.findall(r"^\| (?!Paper|---).*", text, re.M)
    assert len(rows) >= 60
    for row in rows:
        files = [file for _, _, file in pages.LINK.findall(row)]
        assert any(file.startswith("keras_transformer") for file in files), row
        assert any(file.startswith("tests") for file in files), row
    named = {name for name, _, file in pages.LINK.findall(text) if "test_paper" in file}
    assert {formula.__name__ for formula in FORMULAS} <= named


def test_notebook_is_that_of_the_example(pages):
    shown = pages.EXAMPLE.with_suffix(".ipynb").read_text("utf-8")
    assert shown == pages.make_notebook(pages.EXAMPLE.read_text("utf-8")), "run scripts/pages.py"
    cells = [cell for cell in json.loads(shown)["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 12
    for cell in cells:
        compile("".join(cell["source"]), "cell", "exec")
