"""What a run has cost: model FLOPs, and the share of the machine's arithmetic that they used.

A model counts the matrix products of its forward pass; the backward pass multiplies twice as much.
Not counted: padding, embedding lookups, biases, norms, softmax, loss and optimizer (Kaplan et al.
2020, section 2.1, count so).
"""

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_transformer.models import Seq2SeqModel
from keras_transformer.training.metric_logging import Row

_FORWARD_AND_BACKWARD = 3  # forward passes
_SIZES = (512, 1024, 2048, 4096, 8192)  # of the matrices whose product is timed
_PRODUCTS = 8  # in a row, so that the call of them counts for little

Lengths = npt.NDArray[Any]  # tokens of each sentence of a corpus, EOS included


def training_flops(
    model: Seq2SeqModel, source_lengths: Lengths, target_lengths: Lengths, target_tokens: float
) -> float:
    """Returns the floating-point operations of training on so many target tokens.

    Args:
        model: counts those of one sentence pair.
        source_lengths: of the corpus.
        target_lengths: of the corpus.
        target_tokens: trained on, of pairs like those of the corpus.
    """
    source, target = (np.asarray(each, np.float64) for each in (source_lengths, target_lengths))
    forward = np.sum(model.count_flops(source, target)) / np.sum(target)  # a target token
    return float(_FORWARD_AND_BACKWARD * forward * target_tokens)


def measured_peak(dtype: str, seconds: float = 0.3) -> float:
    """Returns the FLOP/s of the best matrix product on this device, which bounds any model's.

    Square matrices of growing size are tried, about `seconds` long each and until a larger one
    takes more than that.

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


def summary_lines(
    model: Seq2SeqModel, lengths: tuple[Lengths, Lengths], last: Row, peak: float
) -> list[str]:
    """Returns what to print at the end of a run.

    Args:
        model: the one that was trained.
        lengths: of the source and target sentences of the corpus.
        last: the last row of metrics.jsonl, which counts over the whole run.
        peak: FLOP/s of all devices together, from `measured_peak`.
    """
    tokens, seconds = last["target_tokens"], last["seconds"]
    flops = training_flops(model, *lengths, tokens)
    rate = flops / seconds
    hours, minutes = int(seconds) // 3600, int(seconds) // 60 % 60
    return [
        f"Trained {last['step']:,} steps on {tokens:,.0f} target tokens "
        f"in {hours}:{minutes:02}:{int(seconds) % 60:02}, {tokens / seconds:,.0f} tokens/s "
        "(validation and checkpoints left out).",
        f"Model FLOPs: {flops:.3g}, or {rate:.3g} a second, {rate / peak:.0%} of the {peak:.3g} "
        "of a matrix product on this machine.",
    ]
