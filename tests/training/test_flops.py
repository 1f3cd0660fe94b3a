"""The operations of training, against TensorFlow's profiler and the products of the graph."""

import functools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compat.v1 import profiler

from keras_transformer.config import (
    RecurrentConfig,
    TrainingConfig,
    TransformerConfig,
    UniversalConfig,
    architectures,
)
from keras_transformer.models import Seq2SeqModel, Transformer, build_model
from keras_transformer.training.flops import TrainingFlops, flops_summary, measured_peak

SMALL = {"model_dim": 16, "feed_forward_dim": 24, "num_heads": 2, "vocabulary_size": 50}
LSTM = {"model_dim": 16, "hidden_dim": 12, "vocabulary_size": 50}
CONFIGS = {
    "transformer": TransformerConfig(**SMALL, num_layers=2),
    "widths": TransformerConfig(
        **SMALL, num_layers=1, key_dim=3, value_dim=7, share_embeddings="none",
        target_vocabulary_size=70,
    ),
    "pre-norm": TransformerConfig(
        **SMALL, num_layers=3, decoder_layers=1, norm_position="pre", positions="learned"
    ),
    "universal": UniversalConfig(**SMALL, num_steps=3),
    "fixed steps": UniversalConfig(**SMALL, num_steps=2, adaptive_steps=False, key_dim=3),
    "recurrent": RecurrentConfig(**LSTM),
    "two layers": RecurrentConfig(**LSTM, num_layers=2, attention_type="dot"),
    "all attention": RecurrentConfig(
        **LSTM, attention_dim=10, intra_temporal_attention=True, intra_decoder_attention=True
    ),
    "input feeding": RecurrentConfig(**LSTM, num_layers=2, input_feeding=True),
}  # fmt: skip


@pytest.fixture(params=CONFIGS)
def model(request, monkeypatch) -> Seq2SeqModel:
    """A model of each kind, without loops, whose bodies stand in a graph once."""
    monkeypatch.setattr(keras.layers, "RNN", functools.partial(keras.layers.RNN, unroll=True))
    return build_model(CONFIGS[request.param])


def test_every_architecture_is_among_them():
    package = {each for each in architectures().values() if "keras_transformer" in each.__module__}
    assert set(map(type, CONFIGS.values())) == package  # other tests register their own


def graph_of(function, *shapes) -> tf.Graph:
    ids = [tf.TensorSpec(shape, tf.int32) for shape in shapes]
    return tf.function(function, autograph=False).get_concrete_function(*ids).graph


def profiled(graph: tf.Graph) -> int:
    """Gives what the profiler counts in the matrix products of a graph."""
    builder = profiler.ProfileOptionBuilder
    options = builder(builder.float_operation()).with_empty_output().build()
    options |= {"account_type_regexes": ["MatMul", "BatchMatMul.*"]}
    with graph.as_default():
        return profiler.profile(graph, cmd="op", options=options).total_float_ops


def multiplied(graph: tf.Graph) -> int:
    """Adds up two operations for each entry and summand of all matrix products of a graph."""
    total = 0
    for operation in graph.get_operations():
        if operation.type not in ("MatMul", "BatchMatMul", "BatchMatMulV2"):
            assert operation.type not in ("Einsum", "XlaDotV2", "PartitionedCall"), "count it too"
            continue
        first = operation.inputs[0].shape
        transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
        total += 2 * math.prod(operation.outputs[0].shape) * first[-2 if transposed else -1]
    return total


def counted(model, source, target) -> dict[str, int]:
    metric = TrainingFlops(model)
    metric.update_state(source, target)
    return {name: int(value) for name, value in metric.result().items()}


def test_the_operations_of_a_forward_pass_are_those_of_the_profiler(model):
    forward = lambda source, target: model({"source": source, "target": target})  # noqa: E731
    graph = graph_of(forward, (3, 11), (3, 7))
    assert profiled(graph) == multiplied(graph) == 3 * model.count_flops(11, 7)


@pytest.mark.slow
def test_a_training_step_takes_three_times_as_many(model):
    """The profiler takes the wrong axis of a product whose first matrix is transposed.

    A loop sends a gradient to the state before its first step too; without one, none goes to the
    constant state that an LSTM of the encoder, of each layer and direction, begins with, and to the
    context, twice as wide, that input feeding begins with.
    """

    def step(source, target):
        with tf.GradientTape() as tape:
            logits = model({"source": source, "target": target}, training=True)
            loss = tf.reduce_sum(tf.nn.log_softmax(logits)[..., 5])
        return tape.gradient(loss, model.trainable_weights)

    expected = multiplied(graph_of(step, (3, 11), (3, 7)))
    if isinstance(model.config, RecurrentConfig):
        begun = 2 * model.config.num_layers + 2 * model.config.input_feeding
        expected += 3 * begun * 2 * 4 * model.config.hidden_dim**2
    found = counted(model, np.ones((3, 11), np.int32), np.ones((3, 7), np.int32))
    assert found == {"flops": expected, "padded_flops": expected}


def test_sentences_cost_what_each_costs_alone_and_their_padding_apart(model):
    source, target = np.zeros((4, 12), np.int32), np.zeros((4, 9), np.int32)
    lengths = [(3, 9), (12, 1), (7, 7), (0, 0)]  # the last row is padding
    for row, (source_length, target_length) in enumerate(lengths):
        source[row, :source_length] = target[row, :target_length] = 5
    assert counted(model, source, target) == {
        "flops": sum(3 * model.count_flops(*pair) for pair in lengths),
        "padded_flops": 4 * 3 * model.count_flops(12, 9),
    }


def test_a_window_leaves_the_pairs_of_its_band():
    full, windows = (
        build_model(TransformerConfig(**SMALL, num_layers=2, **changes))
        for changes in ({}, dict(encoder_attention_window=5, decoder_attention_window=9))
    )
    lengths = np.array([11.0, 4]), np.array([7.0, 3])
    fewer = np.subtract(*(model.count_flops(*lengths) for model in (full, windows)))
    # 11 (11 - 5) of the source's pairs are not seen, and 7 (7 - 5) of the target's; 4 > 3 > 1.
    of_pair = 2 * 2 * SMALL["model_dim"] * 2
    np.testing.assert_allclose(fewer, [of_pair * (11 * 6 + 7 * 2), 0])
    # Products of integers that no int32 holds.
    base = TransformerConfig(vocabulary_size=9, encoder_attention_window=65)
    exact = build_model(base).count_flops(400.0, 400.0)
    assert build_model(base).count_flops(400, 400) == exact > 2**34


def test_operations_add_up_without_rounding():
    class Large:
        def count_flops(self, source_length, target_length):
            return 2**49 + source_length + 0 * target_length

    metric, ids = TrainingFlops(Large()), np.ones((1, 1), np.int32)
    for _ in range(3):
        metric.update_state(ids, ids)
    assert int(metric.result()["flops"]) == 9 * (2**49 + 1)


def test_the_base_model_costs_six_operations_a_weight_and_token_where_sentences_are_short():
    """The encoder's weights see source tokens only: N of 6 N is the mean of both sides' weights."""
    with keras.StatelessScope():  # no memory for the weights
        model = Transformer(TransformerConfig.preset("base", vocabulary_size=37000))
    flops = 3 * model.count_flops(1, 1) * 1000
    weights = 6 * (4 * 512**2 + 2 * 512 * 2048) + 6 * (8 * 512**2 + 2 * 512 * 2048) + 37000 * 512
    assert flops == pytest.approx(6 * weights * 1000, rel=0.001)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_peak_of_this_machine_is_what_a_processor_can_have(dtype):
    assert 1e8 < measured_peak(dtype, seconds=0.05) < 1e16


def test_the_summary_tells_steps_tokens_time_operations_and_utilisation_of_the_whole_run():
    last = {"step": 20000, "seconds": 7384.2, "target_tokens": 45_000_000}
    last |= {"flops": 10**15, "padded_flops": 12 * 10**14}
    peak, training = 10**15 / 7384.2 * 4, TrainingConfig(sustained_tflops=9.5)
    first, second = flops_summary(last, peak, training)
    assert first.startswith("Trained 20,000 steps on 45,000,000 target tokens in 2:03:04, ")
    assert "6,094 tokens/s" in first
    assert second.startswith("Model FLOPs: 1e+15, 1.2e+15 with padding, in float32; 1.35e+11 a sec")
    assert "25% of the" in second
    assert (
        "more than, while the machine is busy, the 1e+11 of"
        in flops_summary(last, 1e11, training)[1]
    )
    *_, third = flops_summary(last | {"sustained_flops": 3.3e18}, peak, training)
    assert third == "By the devices' time, at 9.5 TFLOP/s sustained: 3.3e+18."
