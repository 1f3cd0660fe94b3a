"""The form and size of a Universal Transformer."""

import dataclasses
from typing import Literal

from keras_transformer.config.model import register_config
from keras_transformer.config.transformer import TransformerLayersConfig
from keras_transformer.errors import InputError


@register_config
@dataclasses.dataclass(frozen=True, kw_only=True)
class UniversalConfig(TransformerLayersConfig):
    """Hyperparameters of `UniversalTransformer` (Dehghani et al. 2019).

    Attributes:
        num_steps: how often the one layer of the encoder, and that of the decoder, is applied; with
            adaptive computation time the most that a token may take.
        adaptive_steps: whether each token halts by itself, by adaptive computation time
            (Graves 2016); otherwise all take `num_steps`.
        halting_output: "sum" adds up the states of a token's steps by its halting probabilities,
            whose sum is 1 (Graves 2016, eq. 13; tensor2tensor's "accumulated"); "blend"
            interpolates step by step, with weights whose sum is less (the listing of Dehghani et
            al. 2019; tensor2tensor's "basic").
        halted_tokens: "copy" keeps the state of a token that has halted, as the paper's text says;
            "run_on" goes on updating the state that other tokens see, as tensor2tensor does.
        halting_epsilon: a token halts once its halting probabilities sum to more than 1 less this.
        halting_bias: what the bias of the halting units starts from; lower ones halt later.
        ponder_weight: weight in the loss of the ponder cost, the tokens' steps plus remainders.
        step_signals: what tells the layer its step: "sinusoidal" is the paper's, "learned" a table
            (tensor2tensor).
        transition: what follows attention: "feed_forward", or "separable_convolution": widths 3
            and 5 with `activation` between them (tensor2tensor's "sepconv").
    """

    architecture = "universal"
    # The sizes of tensor2tensor.
    PRESETS = {  # noqa: RUF012 (a ClassVar of the base)
        "universal-tiny": dict(
            num_steps=8, model_dim=128, feed_forward_dim=512, num_heads=4, dropout=0.1
        ),
        "universal-small": dict(
            num_steps=6, model_dim=512, feed_forward_dim=2048, num_heads=8, dropout=0.1
        ),
        "universal-base": dict(
            num_steps=6, model_dim=1024, feed_forward_dim=4096, num_heads=16, dropout=0.3
        ),
    }

    num_steps: int = 6
    adaptive_steps: bool = True
    halting_output: Literal["sum", "blend"] = "sum"
    halted_tokens: Literal["copy", "run_on"] = "copy"
    halting_epsilon: float = 0.01
    halting_bias: float = 1.0
    ponder_weight: float = 0.01
    step_signals: Literal["sinusoidal", "learned"] = "sinusoidal"
    transition: Literal["feed_forward", "separable_convolution"] = "feed_forward"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(1, "num_steps")
        self._check_at_least(0, "ponder_weight")
        if self.model_dim % 2 and self.step_signals == "sinusoidal":
            raise InputError(
                f"model_dim must be even for sinusoidal step_signals, got {self.model_dim}"
            )
        if self.norm_epsilon == 0:  # what halting gives padding is zero, which is not normalized
            raise InputError("norm_epsilon must be above 0 in a Universal Transformer, got 0")
        if not 0 < self.halting_epsilon < 1:
            raise InputError(f"halting_epsilon must be between 0 and 1, got {self.halting_epsilon}")
