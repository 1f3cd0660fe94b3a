"""The form and size of a recurrent model."""

import dataclasses
from typing import Literal

from keras_transformer.config.model import ModelConfig, register_config
from keras_transformer.errors import InputError


@register_config
@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """Hyperparameters of `RecurrentModel`: a bidirectional LSTM encoder, an LSTM with attention.

    Attributes:
        num_layers: layers of the encoder and of the decoder, N.
        hidden_dim: units of an LSTM, U; a layer of the encoder has two, one for each direction.
        attention_type: "additive" scores v^T tanh(W1 H + W2 h + b) (Bahdanau et al. 2015), or "dot"
            products h^T W1 H (Luong et al. 2015, "general").
        attention_dim: width of W1 H and W2 h in additive attention; None means hidden_dim.
        intra_temporal_attention: whether source tokens that were attended to before get less
            attention (Paulus et al. 2018, 2.1).
        intra_decoder_attention: whether the decoder attends to its own earlier states (Paulus et
            al. 2018, 2.2).
        input_feeding: whether the decoder reads the last context beside each token (Luong et al.
            2015, 3.3).
        bridge_activation: activation of the layers that map the encoder's last states to the
            decoder's first: "relu" (See et al. 2017), or "tanh".
    """

    architecture = "recurrent"
    PRESETS = {  # noqa: RUF012 (a ClassVar of the base)
        "rnn-tiny": dict(num_layers=1, model_dim=128, hidden_dim=256, dropout=0.3),
        "rnn-base": dict(num_layers=2, model_dim=512, hidden_dim=512, dropout=0.2),
    }

    num_layers: int = 1
    hidden_dim: int = 512
    attention_type: Literal["additive", "dot"] = "additive"
    attention_dim: int | None = None
    intra_temporal_attention: bool = False
    intra_decoder_attention: bool = False
    input_feeding: bool = False
    bridge_activation: Literal["relu", "tanh"] = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(1, "num_layers", "hidden_dim", "attention_dim")
        if self.attention_dim is not None and self.attention_type == "dot":
            raise InputError(
                f"attention_dim is that of additive attention, got {self.attention_dim} for dot "
                "products, whose width is hidden_dim; leave it out"
            )

    @property
    def values_per_pair(self) -> int:
        """Of additive attention the width of its tanh, which is of each pair."""
        return (self.attention_dim or self.hidden_dim) if self.attention_type == "additive" else 1
