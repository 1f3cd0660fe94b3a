"""What a run has cost: model FLOPs, and the share of the machine's arithmetic that they used.

Shapes: N layers, D model dimension, F feed-forward dimension, H heads, K and U widths of a head's
keys and values, V target vocabulary.

Training a weight matrix of P entries costs 6 P floating point operations a token that it
multiplies: a multiplication and an addition in the forward pass, and twice as many in the backward
pass. The tokens are those of the source for

    N (H (2K + U) D + H U D + 2 F D)    self-attention and feed-forward of the encoder
    N H (K + U) D                       keys and values of the cross-attention, of the memory

and those of the target for

    N (H (2K + U) D + H U D + 2 F D)    self-attention and feed-forward of the decoder
    N (H K D + H U D)                   query and output of the cross-attention
    V D                                 the projection to logits

Attention costs 6 N H (K + U) for each pair of a query and a key, which for K = U is 12 N H K:
scores and weighted sums, forward and backward. A mean query has as many keys as the sentence that
a mean token stands in has tokens. The causal mask saves nothing: what it hides is computed too.

Not counted: padding, embedding lookups, biases, norms, softmax, loss and optimizer. Kaplan et al.
2020, section 2.1, count so, with one stack and one N for all tokens.
"""

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_transformer.config import ModelConfig
from keras_transformer.training.metric_logging import Row

_TRAINING = 6  # operations an entry and a token; see above
_SIZES = (512, 1024, 2048, 4096, 8192)  # of the matrices whose product is timed
_PRODUCTS = 8  # in a row, so that the call of them counts for little


class CorpusShape(NamedTuple):
    """What the cost depends on in the text.

    Attributes:
        source_per_target: source tokens a target token.
        source_length: tokens of the sentence that a mean source token stands in.
        target_length: the same of the target.
    """

    source_per_target: float
    source_length: float
    target_length: float

    @classmethod
    def of(
        cls, source_lengths: npt.NDArray[np.int64], target_lengths: npt.NDArray[np.int64]
    ) -> "CorpusShape":
        """Measures a corpus by the lengths of its sentences, end tokens included, in tokens."""
        source, target = (np.asarray(x, np.float64) for x in (source_lengths, target_lengths))
        return cls(
            source.sum() / target.sum(),
            (source**2).sum() / source.sum(),
            (target**2).sum() / target.sum(),
        )


def training_flops(config: ModelConfig, shape: CorpusShape, target_tokens: float) -> float:
    """Returns the floating point operations of training on so many target tokens.

    See the head of this file for the formula. A query of the cross-attention is taken to meet as
    many keys as a source token does.
    """
    model_dim, layers, heads = config.model_dim, config.num_layers, config.num_heads
    keys = heads * (config.key_dim or model_dim // heads)
    values = heads * (config.value_dim or model_dim // heads)
    own = (2 * keys + 2 * values + 2 * config.feed_forward_dim) * model_dim
    across = (keys + values) * model_dim  # the cross-attention's on either side
    logits = config.target_size * model_dim

    source_tokens = target_tokens * shape.source_per_target
    weights = source_tokens * layers * (own + across)
    weights += target_tokens * (layers * (own + across) + logits)
    pairs = source_tokens * shape.source_length
    pairs += target_tokens * (shape.target_length + shape.source_length)
    return _TRAINING * (weights + layers * (keys + values) * pairs)


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


def summary_lines(config: ModelConfig, shape: CorpusShape, last: Row, peak: float) -> list[str]:
    """Returns what to print at the end of a run.

    Args:
        config: of the model.
        shape: of the corpus.
        last: the last row of metrics.jsonl, which counts over the whole run.
        peak: FLOP/s of all devices together, from `measured_peak`.
    """
    tokens, seconds = last["target_tokens"], last["seconds"]
    flops = training_flops(config, shape, tokens)
    rate = flops / seconds
    hours, minutes = int(seconds) // 3600, int(seconds) // 60 % 60
    return [
        f"Trained {last['step']:,} steps on {tokens:,.0f} target tokens "
        f"in {hours}:{minutes:02}:{int(seconds) % 60:02}, {tokens / seconds:,.0f} tokens/s "
        "(validation and checkpoints left out).",
        f"Model FLOPs: {flops:.3g}, or {rate:.3g} a second, {rate / peak:.0%} of the {peak:.3g} "
        "of a matrix product on this machine.",
    ]
