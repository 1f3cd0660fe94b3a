"""The form and size of a Transformer."""

import dataclasses
from typing import Literal

from keras_transformer.config.model import ModelConfig, register_config
from keras_transformer.errors import InputError


@register_config
@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """Hyperparameters of `Transformer` (Vaswani et al. 2017, section 3 and Table 3).

    Attributes:
        num_layers: layers of the encoder and of the decoder, N.
        feed_forward_dim: inner width of the feed-forward layers, d_ff.
        num_heads: attention heads, h.
        key_dim: width of a head's queries and keys, d_k; None means model_dim / num_heads.
        value_dim: width of a head's values, d_v; None means model_dim / num_heads.
        attention_dropout: rate on the attention weights; none in the paper's text.
        feed_forward_dropout: rate inside the feed-forward layer, after its ReLU; none in the
            paper's text.
        norm_position: "post" as in the paper, or "pre" (norm before each sub-layer, one more
            norm at the end of each stack).
        norm_form: "variance" is (x - mean)/sqrt(variance + epsilon), "sigma" is
            (x - mean)/(sigma + epsilon).
        norm_epsilon: the epsilon of layer normalization, in either form.
        positions: "sinusoidal" interleaves sine and cosine as in 3.5, "concatenated" puts all
            sines before all cosines (tensor2tensor, OpenNMT, fairseq), "learned" is Table 3 row E.
        first_position: the position number of the first token.
        max_positions: rows of the table of learned positions; the other kinds need no limit.
        attention_bias: whether the projections of attention have a bias (the paper's have none).
    """

    architecture = "transformer"
    # "tiny" is the encoder and decoder that Wu et al. 2021 trained on Multi30k.
    PRESETS = {  # noqa: RUF012 (a ClassVar of the base)
        "tiny": dict(num_layers=4, model_dim=128, feed_forward_dim=256, num_heads=4, dropout=0.3),
        "base": dict(num_layers=6, model_dim=512, feed_forward_dim=2048, num_heads=8, dropout=0.1),
        "big": dict(num_layers=6, model_dim=1024, feed_forward_dim=4096, num_heads=16, dropout=0.3),
    }

    num_layers: int = 6
    feed_forward_dim: int = 2048
    num_heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    norm_position: Literal["post", "pre"] = "post"
    norm_form: Literal["variance", "sigma"] = "variance"
    norm_epsilon: float = 1e-6
    positions: Literal["sinusoidal", "concatenated", "learned"] = "sinusoidal"
    first_position: int = 0
    max_positions: int = 1024
    attention_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(
            1, "num_layers", "feed_forward_dim", "num_heads", "key_dim", "value_dim",
            "max_positions",
        )  # fmt: skip
        self._check_at_least(0, "first_position", "norm_epsilon")
        self._check_rates("attention_dropout", "feed_forward_dropout")
        if self.model_dim % self.num_heads and (self.key_dim is None or self.value_dim is None):
            raise InputError(
                f"model_dim {self.model_dim} is not divisible by num_heads {self.num_heads}; "
                "choose num_heads that divides it, or set key_dim and value_dim"
            )
        if self.model_dim % 2 and self.positions != "learned":
            raise InputError(
                f"model_dim must be even for {self.positions} positions, got {self.model_dim}"
            )
