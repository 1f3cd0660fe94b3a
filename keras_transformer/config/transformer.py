"""The form and size of a Transformer, and what other models of its layers share with it."""

import dataclasses
from typing import Literal

from keras_transformer.config.model import ModelConfig, register_config
from keras_transformer.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerLayersConfig(ModelConfig):
    """Abstract base: hyperparameters of models whose layers are a Transformer's.

    Attributes:
        feed_forward_dim: inner width of the feed-forward layers, d_ff.
        num_heads: attention heads, h.
        key_dim: width of a head's queries and keys, d_k; None means model_dim / num_heads.
        value_dim: width of a head's values, d_v; None means model_dim / num_heads.
        activation: what stands between the two products of a feed-forward layer: "relu" as in
            the paper, "swish", "gelu", or its approximations "gelu_tanh" and "gelu_sigmoid".
        attention_dropout: rate on the attention weights; none in the paper's text.
        feed_forward_dropout: rate inside the feed-forward layer, after its activation; none in
            the paper's text.
        norm_position: "post" as in the paper, or "pre" (norm before each sub-layer, one more
            norm at the end of each stack).
        norm_form: "variance" is (x - mean)/sqrt(variance + epsilon), "sigma" is
            (x - mean)/(sigma + epsilon).
        norm_epsilon: the epsilon of layer normalization, in either form.
        positions: "sinusoidal" interleaves sine and cosine as in 3.5, "concatenated" puts all
            sines before all cosines (tensor2tensor, OpenNMT, fairseq, Marian), "halves" is as in
            3.5, but all sines before all cosines (Hugging Face), "learned" is Table 3 row E.
            "relative" (Shaw et al. 2018) and "rotary" (Su et al. 2021) leave embeddings without
            positions and tell self-attention the distances.
        max_relative_distance: largest distance that "relative" tells from smaller ones.
        first_position: the position number of the first token.
        max_positions: rows of the table of learned positions; the other kinds need no limit.
        max_position_offset: while training, the positions of each sentence pair are counted from a
            random number up to this, so that the model meets positions beyond its sentences.
        attention_bias: whether the projections of attention have a bias (the paper's have none).
    """

    feed_forward_dim: int = 2048
    num_heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    activation: Literal["relu", "swish", "gelu", "gelu_tanh", "gelu_sigmoid"] = "relu"
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    norm_position: Literal["post", "pre"] = "post"
    norm_form: Literal["variance", "sigma"] = "variance"
    norm_epsilon: float = 1e-6
    positions: Literal["sinusoidal", "concatenated", "halves", "learned", "relative", "rotary"] = (
        "sinusoidal"
    )
    max_relative_distance: int = 16
    first_position: int = 0
    max_positions: int = 1024
    max_position_offset: int = 0
    attention_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(
            1, "feed_forward_dim", "num_heads", "key_dim", "value_dim",
            "max_positions", "max_relative_distance",
        )  # fmt: skip
        self._check_at_least(0, "first_position", "max_position_offset", "norm_epsilon")
        self._check_rates("attention_dropout", "feed_forward_dropout")
        if self.model_dim % self.num_heads and (self.key_dim is None or self.value_dim is None):
            raise InputError(
                f"model_dim {self.model_dim} is not divisible by num_heads {self.num_heads}; "
                "choose num_heads that divides it, or set key_dim and value_dim"
            )
        if self.model_dim % 2 and self.positions in ("sinusoidal", "concatenated", "halves"):
            raise InputError(
                f"model_dim must be even for {self.positions} positions, got {self.model_dim}"
            )
        if self.max_position_offset and self.attention_positions is not None:
            raise InputError(
                f"max_position_offset has no meaning for {self.positions} positions, which are "
                "distances; leave it out"
            )
        furthest = self.first_position + self.max_position_offset
        if self.positions == "learned" and furthest >= self.max_positions:
            raise InputError(
                f"learned positions end at max_positions {self.max_positions}, and sentences begin "
                f"as far as {furthest} (first_position and max_position_offset); raise "
                "max_positions, or lower those"
            )
        key_dim = self.key_dim or self.model_dim // self.num_heads
        if key_dim % 2 and self.positions == "rotary":
            raise InputError(f"key_dim must be even for rotary positions, got {key_dim}")

    @property
    def attention_positions(self) -> Literal["relative", "rotary"] | None:
        """The positions that self-attention gets; None where embeddings have them."""
        return self.positions if self.positions in ("relative", "rotary") else None


@register_config
@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(TransformerLayersConfig):
    """Hyperparameters of `Transformer` (Vaswani et al. 2017, section 3 and Table 3).

    Attributes:
        num_layers: layers of the encoder and of the decoder, N.
        decoder_layers: layers of the decoder; None means num_layers.
        embedding_norm: whether what enters encoder and decoder, embedding plus position, is
            normalized.
        source_eos: whether the encoder reads the EOS that ends each source.
        encoder_attention_window: tokens that a source token attends to, itself in the middle; odd;
            None means all.
        decoder_attention_window: r, odd: a target token attends to itself and the (r - 1) / 2
            target tokens before it; None means all.
    """

    architecture = "transformer"
    # "tiny" is the encoder and decoder that Wu et al. 2021 trained on Multi30k.
    PRESETS = {  # noqa: RUF012 (a ClassVar of the base)
        "tiny": dict(num_layers=4, model_dim=128, feed_forward_dim=256, num_heads=4, dropout=0.3),
        "base": dict(num_layers=6, model_dim=512, feed_forward_dim=2048, num_heads=8, dropout=0.1),
        "big": dict(num_layers=6, model_dim=1024, feed_forward_dim=4096, num_heads=16, dropout=0.3),
    }

    num_layers: int = 6
    decoder_layers: int | None = None
    embedding_norm: bool = False
    source_eos: bool = True
    encoder_attention_window: int | None = None
    decoder_attention_window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(
            1, "num_layers", "decoder_layers", "encoder_attention_window",
            "decoder_attention_window",
        )  # fmt: skip
        for side in ("encoder", "decoder"):
            window = getattr(self, f"{side}_attention_window")
            if window is not None and window % 2 == 0:
                raise InputError(
                    f"{side}_attention_window must be odd, the token itself and as many on both "
                    f"sides, got {window}; give {window + 1}"
                )
