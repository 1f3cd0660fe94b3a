"""The operations of training, counted against the matrix products of the model's own graph."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import TransformerConfig
from keras_transformer.models import Transformer
from keras_transformer.training.flops import measured_peak, summary_lines, training_flops

SMALL = {"num_layers": 2, "model_dim": 16, "feed_forward_dim": 24, "num_heads": 2}


def operations_of_graph(model: Transformer, source_shape, target_shape) -> int:
    """Adds up two operations an entry and a sum in all matrix products of a training step."""

    @tf.function
    def step(source, target):
        with tf.GradientTape() as tape:
            logits = model({"source": source, "target": target}, training=True)
            loss = tf.reduce_sum(tf.nn.log_softmax(logits)[..., 5])
        return tape.gradient(loss, model.trainable_weights)

    ids = [tf.TensorSpec(shape, tf.int32) for shape in (source_shape, target_shape)]
    total = 0
    for operation in step.get_concrete_function(*ids).graph.get_operations():
        if operation.type not in ("MatMul", "BatchMatMul", "BatchMatMulV2"):
            assert operation.type not in ("Einsum", "XlaDotV2", "PartitionedCall"), "count it too"
            continue
        first = operation.inputs[0].shape
        transposed = operation.type == "MatMul" and operation.get_attr("transpose_a")
        transposed = transposed or (operation.type != "MatMul" and operation.get_attr("adj_x"))
        total += 2 * math.prod(operation.outputs[0].shape) * first[-2 if transposed else -1]
    return total


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"key_dim": 3, "value_dim": 7, "share_embeddings": "none", "target_vocabulary_size": 70},
        {"norm_position": "pre", "positions": "learned", "num_layers": 1},
    ],
    ids=str,
)
def test_the_formula_gives_what_the_graph_of_a_training_step_multiplies(changes):
    model = Transformer(TransformerConfig(**{**SMALL, "vocabulary_size": 50, **changes}))
    rows, source_length, target_length = 3, 11, 7
    counted = operations_of_graph(model, (rows, source_length), (rows, target_length))
    lengths = np.full(rows, source_length), np.full(rows, target_length)
    flops = training_flops(model, *lengths, rows * target_length)
    assert flops == pytest.approx(counted, rel=1e-9)


def test_sentences_of_many_lengths_cost_the_sum_of_what_each_costs_alone():
    model = Transformer(TransformerConfig(**SMALL, vocabulary_size=50))
    lengths = np.array([3, 9, 20, 4], np.uint8)  # whose squares need more than 8 bits
    alone = [training_flops(model, n, n, n[0]) for n in lengths[:, None]]
    together = training_flops(model, lengths, lengths, lengths.sum())
    assert together == pytest.approx(np.sum(alone), rel=1e-9)


def test_the_base_model_costs_six_operations_a_weight_and_token_where_sentences_are_short():
    """The encoder's weights see source tokens only: N of 6 N is the mean of both sides' weights."""
    with keras.StatelessScope():  # no memory for the weights
        model = Transformer(TransformerConfig.preset("base", vocabulary_size=37000))
    flops = training_flops(model, np.ones(1), np.ones(1), target_tokens=1000)
    weights = 6 * (4 * 512**2 + 2 * 512 * 2048) + 6 * (8 * 512**2 + 2 * 512 * 2048) + 37000 * 512
    assert flops == pytest.approx(6 * weights * 1000, rel=0.001)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_peak_of_this_machine_is_what_a_processor_can_have(dtype):
    assert 1e8 < measured_peak(dtype, seconds=0.05) < 1e16


def test_the_summary_tells_steps_tokens_time_and_utilisation_of_the_whole_run():
    model = Transformer(TransformerConfig(**SMALL, vocabulary_size=50))
    lengths = np.array([12, 9]), np.array([10, 8])
    last = {"step": 20000, "seconds": 7384.2, "target_tokens": 45_000_000}
    flops = training_flops(model, *lengths, 45_000_000)
    first, second = summary_lines(model, lengths, last, peak=flops / 7384.2 * 4)
    assert first.startswith("Trained 20,000 steps on 45,000,000 target tokens in 2:03:04, ")
    assert "6,094 tokens/s" in first
    assert f"Model FLOPs: {flops:.3g}, " in second
    assert "25% of the" in second
