"""What a run has cost: model FLOPs, and the share of the machine's arithmetic that they used.

A model counts the matrix products of its forward pass; the backward pass multiplies twice as much.
Not counted: embedding lookups, biases, norms, softmax, loss and optimizer (Kaplan et al. 2020,
section 2.1, count so).
"""

import time

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.config import PAD_ID, TrainingConfig
from keras_transformer.decoding import Tensor
from keras_transformer.models import Seq2SeqModel
from keras_transformer.training.metrics import Row

_FORWARD_AND_BACKWARD = 3  # forward passes
_SIZES = (512, 1024, 2048, 4096, 8192)  # of the matrices whose product is timed
_PRODUCTS = 8  # in a row, so that the call of them counts for little


class TrainingFlops(keras.metrics.Metric):
    """Adds up the floating-point operations of training on the batches seen.

    "flops" are those of the sentence pairs by their own lengths, "padded_flops" those of the
    matrices with all their padding, which the device computes.

    Args:
        model: counts those of one pair; calls `update_state` where this is its `flops_metric`.
    """

    def __init__(self, model: Seq2SeqModel) -> None:
        super().__init__(name="training_flops")
        self._count = model.count_flops
        self.real, self.padded = (
            self.add_variable((), "zeros", "float64", name=name)  # exact up to 2**53
            for name in ("real", "padded")
        )

    def update_state(self, source: Tensor, labels: Tensor) -> None:
        """Counts a batch of ids, source [B, S] and labels [B, T]."""
        sides = [ops.convert_to_tensor(ids) for ids in (source, labels)]
        lengths = [ops.sum(ops.cast(ids != PAD_ID, "float64"), axis=1) for ids in sides]  # [B]
        widths = [ops.cast(ops.shape(ids)[1], "float64") for ids in sides]
        rows = ops.cast(ops.shape(sides[0])[0], "float64")
        self.real.assign_add(_FORWARD_AND_BACKWARD * ops.sum(self._count(*lengths)))
        self.padded.assign_add(_FORWARD_AND_BACKWARD * rows * self._count(*widths))

    def result(self) -> dict[str, Tensor]:
        totals = {"flops": self.real, "padded_flops": self.padded}
        # A value of its own: a variable would change later.
        return {name: ops.cast(total, "float64") for name, total in totals.items()}


def measured_peak(dtype: str, seconds: float = 0.3) -> float:
    """Returns the FLOP/s of the best matrix product on this device, which bounds any model's.

    Square matrices of growing size are timed, for about `seconds` in all, until one of the next
    size would take longer than that by itself.

    Args:
        dtype: what the model computes in, such as `keras.DTypePolicy(precision).compute_dtype`.
        seconds: as above.
    """
    best = 0.0
    for size in _SIZES:
        matrix = tf.random.normal((size, size), stddev=size**-0.5, dtype=tf.float32)
        fastest = _fastest(tf.cast(matrix, dtype), seconds / len(_SIZES))
        best = max(best, _PRODUCTS * 2 * size**3 / fastest)
        if fastest * 8 > seconds:
            break
    return best


def _fastest(matrix: tf.Tensor, seconds: float) -> float:
    """Returns the least time that a row of products took, within so many seconds or one try."""

    @tf.function
    def products() -> tf.Tensor:
        x = matrix
        for _ in range(_PRODUCTS):
            x = tf.matmul(x, matrix)
        return x[0, 0]

    products().numpy()  # builds the graph; numpy() waits for the device
    fastest, end = float("inf"), time.perf_counter() + seconds
    while fastest == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        products().numpy()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def flops_summary(last: Row, peak: float, training: TrainingConfig) -> list[str]:
    """Returns what to print at the end of a run.

    Args:
        last: the last row of metrics.jsonl, which counts over the whole run.
        peak: FLOP/s of all devices together, from `measured_peak`.
        training: says in which precision the model computes, and the devices' sustained rate.
    """
    tokens, seconds, flops = last["target_tokens"], last["seconds"], last["flops"]
    rate = flops / seconds
    share = f"{rate / peak:.0%} of" if rate <= peak else "more than, while the machine is busy,"
    hours, minutes = int(seconds) // 3600, int(seconds) // 60 % 60
    lines = [
        f"Trained {last['step']:,} steps on {tokens:,.0f} target tokens "
        f"in {hours}:{minutes:02}:{int(seconds) % 60:02}, {tokens / seconds:,.0f} tokens/s "
        "(validation and checkpoints left out).",
        f"Model FLOPs: {flops:.3g}, {last['padded_flops']:.3g} with padding, in "
        f"{training.precision}; {rate:.3g} a second, {share} the {peak:.3g} of a matrix product on "
        "this machine.",
    ]
    if "sustained_flops" in last:
        lines.append(
            f"By the devices' time, at {training.sustained_tflops:g} TFLOP/s sustained: "
            f"{last['sustained_flops']:.3g}."
        )
    return lines
