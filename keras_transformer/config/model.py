"""The form and size of a model."""

import dataclasses
from typing import Any, Literal

from typing_extensions import Self

from keras_transformer.config.base import JsonConfig
from keras_transformer.errors import InputError, check_choice


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(JsonConfig):
    """Hyperparameters of `Transformer` (Vaswani et al. 2017, section 3 and Table 3).

    Attributes:
        vocabulary_size: tokens of the source vocabulary, V.
        target_vocabulary_size: tokens of the target vocabulary; None where it is the same one.
        num_layers: layers of the encoder and of the decoder, N.
        model_dim: width of every sub-layer's output, d_model.
        feed_forward_dim: inner width of the feed-forward layers, d_ff.
        num_heads: attention heads, h.
        key_dim: width of a head's queries and keys, d_k; None means model_dim / num_heads.
        value_dim: width of a head's values, d_v; None means model_dim / num_heads.
        dropout: rate on each sub-layer's output, before the residual sum (5.4).
        embedding_dropout: rate on the sum of embedding and position; None means `dropout`, as in
            the paper.
        attention_dropout: rate on the attention weights; none in the paper's text.
        feed_forward_dropout: rate inside the feed-forward layer, after its ReLU; none in the
            paper's text.
        share_embeddings: "all" shares one matrix between source embedding, target embedding and
            pre-softmax projection (3.4), "target" between the last two, "none" nothing.
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
        output_bias: whether the pre-softmax projection has a bias.
    """

    vocabulary_size: int
    target_vocabulary_size: int | None = None
    num_layers: int = 6
    model_dim: int = 512
    feed_forward_dim: int = 2048
    num_heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    dropout: float = 0.1
    embedding_dropout: float | None = None
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    share_embeddings: Literal["all", "target", "none"] = "all"
    norm_position: Literal["post", "pre"] = "post"
    norm_form: Literal["variance", "sigma"] = "variance"
    norm_epsilon: float = 1e-6
    positions: Literal["sinusoidal", "concatenated", "learned"] = "sinusoidal"
    first_position: int = 0
    max_positions: int = 1024
    attention_bias: bool = False
    output_bias: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        self._check_at_least(
            1, "vocabulary_size", "target_vocabulary_size", "num_layers", "model_dim",
            "feed_forward_dim", "num_heads", "key_dim", "value_dim", "max_positions",
        )  # fmt: skip
        self._check_at_least(0, "first_position", "norm_epsilon")
        for name in ("dropout", "embedding_dropout", "attention_dropout", "feed_forward_dropout"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise InputError(f"{name} must be at least 0 and below 1, got {rate}")
        if self.model_dim % self.num_heads and (self.key_dim is None or self.value_dim is None):
            raise InputError(
                f"model_dim {self.model_dim} is not divisible by num_heads {self.num_heads}; "
                "choose num_heads that divides it, or set key_dim and value_dim"
            )
        if self.model_dim % 2 and self.positions != "learned":
            raise InputError(
                f"model_dim must be even for {self.positions} positions, got {self.model_dim}"
            )
        if self.share_embeddings == "all" and self.target_vocabulary_size is not None:
            raise InputError(
                "share_embeddings 'all' needs one vocabulary for both sides, but "
                f"target_vocabulary_size {self.target_vocabulary_size} is given; "
                "set share_embeddings to 'target' or 'none', or share the vocabulary"
            )

    @property
    def target_size(self) -> int:
        """Tokens of the target vocabulary."""
        return self.target_vocabulary_size or self.vocabulary_size

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Returns a named configuration: "tiny", or the paper's "base" and "big" (Table 3).

        Args:
            name: one of `PRESETS`.
            **changes: fields to set otherwise; `vocabulary_size` is always needed.

        Example:
            >>> ModelConfig.preset("base", vocabulary_size=37000).model_dim
            512
        """
        check_choice("preset", name, tuple(PRESETS))
        return cls.from_dict(PRESETS[name] | changes)


# "tiny" is the encoder and decoder that Wu et al. 2021 trained on Multi30k.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": dict(num_layers=4, model_dim=128, feed_forward_dim=256, num_heads=4, dropout=0.3),
    "base": dict(num_layers=6, model_dim=512, feed_forward_dim=2048, num_heads=8, dropout=0.1),
    "big": dict(num_layers=6, model_dim=1024, feed_forward_dim=4096, num_heads=16, dropout=0.3),
}
