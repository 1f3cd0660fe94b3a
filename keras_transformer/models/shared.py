"""What several architectures share.

Shapes: B batch, S source length, T target length, W hypotheses a sentence, H heads.
"""

from typing import Any

from keras import ops

from keras_transformer.config import PAD_ID, TransformerLayersConfig
from keras_transformer.decoding import Tensor
from keras_transformer.layers.positions import PositionalEncoding, RandomOffset


def layer_options(config: TransformerLayersConfig) -> dict[str, Any]:
    """Returns what a model's configuration says of each of its layers, for `TransformerLayer`."""
    head_dim = config.model_dim // config.num_heads
    return {
        "num_heads": config.num_heads,
        "key_dim": config.key_dim or head_dim,
        "value_dim": config.value_dim or head_dim,
        "feed_forward_dim": config.feed_forward_dim,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "feed_forward_dropout": config.feed_forward_dropout,
        "activation": config.activation,
        "attention_bias": config.attention_bias,
        "positions": config.attention_positions,
        "max_relative_distance": config.max_relative_distance,
        "norm_position": config.norm_position,
        "norm_form": config.norm_form,
        "norm_epsilon": config.norm_epsilon,
    }


def layer_flops(
    config: TransformerLayersConfig,
    source_length: Any,
    target_length: Any,
    windows: tuple[int | None, int | None] = (None, None),
) -> tuple[Any, Any, Any]:
    """Returns the operations of one encoder layer, of one decoder layer, and of its memory.

    With H heads, keys K and values U wide, a source token is multiplied by the weights of
    self-attention and feed-forward, H (2K + 2U) D + 2 F D; a target token by as many and by those
    of the query and the output of cross-attention, H (K + U) D; a source token, once, by those of
    the memory's keys and values, H (K + U) D. Each pair of a query and a key in its window adds
    H (K + U), for scores and weighted sums, and as much again for relative positions.

    Args:
        config: of the model.
        source_length, target_length: as in `Seq2SeqModel.count_flops`.
        windows: of self-attention in encoder and decoder.
    """
    head_dim = config.model_dim // config.num_heads
    widths = (config.key_dim or head_dim) + (config.value_dim or head_dim)
    widths *= config.num_heads  # H (K + U)
    own = 2 * (widths + config.feed_forward_dim) * config.model_dim
    across = widths * config.model_dim
    of_pair = widths * (2 if config.positions == "relative" else 1)
    of_source, of_target = source_length, target_length  # keys that a query sees
    if windows[0] is not None:
        of_source = _least(source_length, windows[0])
    if windows[1] is not None:
        of_target = _least(target_length, windows[1] // 2 + 1)
    encoder = source_length * (own + of_source * of_pair)
    decoder = target_length * (own + across + of_target * of_pair + source_length * widths)
    return 2 * encoder, 2 * decoder, 2 * source_length * across


def _least(length: Any, most: int) -> Any:
    # A product of integer tensors overflows.
    return min(length, most) if isinstance(length, (int, float)) else ops.minimum(length, most)


def make_positions(config: TransformerLayersConfig, dtype: Any) -> PositionalEncoding | None:
    """Returns what encodes positions; None where self-attention gets them."""
    if config.attention_positions is not None:
        return None
    return PositionalEncoding(
        config.model_dim,
        config.positions,
        config.first_position,
        config.max_positions,
        name="positions",
        dtype=dtype,
    )


def make_position_offset(config: TransformerLayersConfig) -> RandomOffset | None:
    """Returns the layer that draws where positions begin; None where they begin at the first."""
    if not config.max_position_offset:
        return None
    return RandomOffset(config.max_position_offset, name="position_offset")


def draw_offset(layer: RandomOffset | None, source: Tensor, training: bool | None) -> Any:
    """Returns by how much positions are shifted: int32 [B, 1] while training, or 0."""
    return layer(source, training=training) if layer is not None and training else 0


def start_coverage(source: Tensor, num_hypotheses: int) -> Tensor:
    """Returns `DecodingState.coverage` [B, W, S] before the first step."""
    padding = ops.cast(ops.equal(source, PAD_ID), "float32")[:, None]
    batch, _, length = ops.shape(padding)
    return ops.broadcast_to(padding, (batch, num_hypotheses, length))


def add_coverage(coverage: Tensor | None, attention: Tensor) -> Tensor | None:
    """Returns `DecodingState.coverage` after a step, which the mean of the heads is added to.

    Args:
        coverage: [B, W, S] before the step; None where search does not need it.
        attention: of the step's tokens, [B, H, W, S].
    """
    if coverage is None:
        return None
    return coverage + ops.mean(ops.cast(attention, "float32"), axis=1)


def select_head(attention: Tensor, head: int | None) -> Tensor:
    """Returns one head's attention, float32 [B, T, S], of [B, H, T, S]; None is their mean."""
    attention = ops.cast(attention, "float32")
    return ops.mean(attention, axis=1) if head is None else attention[:, head]
