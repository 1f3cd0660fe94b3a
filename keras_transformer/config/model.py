"""Configurations of models.

A registry finds the configuration of an architecture by name. Neither Keras nor TensorFlow is
imported here: command lines make their flags of these classes.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, ClassVar, Literal, TypeVar

from typing_extensions import Self

from keras_transformer.config.options import JsonConfig, option
from keras_transformer.config.registry import add_class, find_class
from keras_transformer.errors import InputError, check_choice

# The tokens that every vocabulary reserves.

PAD_ID = 0
UNK_ID = 1
BOS_ID = 2
EOS_ID = 3
NUM_RESERVED = 4  # their number; the ids of other tokens follow
WORD_START = "\u2581"  # SentencePiece writes it instead of a space
# A code at the beginning of a text, such as ">>deu<<", selects the language that OPUS-MT models for
# several languages translate into. A pattern of Python and of TensorFlow.
LANGUAGE_CODE = r"[ \t\n\f\r]*(>>[^<> \t\n\f\r]+<<)[ \t\n\f\r]*"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(JsonConfig):
    """Abstract base: hyperparameters of any sequence-to-sequence model.

    A subclass has the name of its `architecture`, adds fields, and presets if it likes. The
    decorator `register_architecture` of its model makes it known, so that `from_dict` of this class
    finds it.
    """

    architecture: ClassVar[str]
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    vocabulary_size: int = option(
        MISSING, "Tokens of the source vocabulary, V.", minimum=NUM_RESERVED
    )
    target_vocabulary_size: int | None = option(
        None, "Tokens of the target vocabulary. Default: the same vocabulary.", minimum=NUM_RESERVED
    )
    model_dim: int = option(512, "Width of embeddings and hidden states, d_model.", minimum=1)
    dropout: float = option(
        0.1,
        "Dropout rate of both inputs, and of the output of each sub-layer (5.4).",
        minimum=0,
        below=1,
    )
    share_embeddings: Literal["all", "target", "none"] = option(
        "all",
        '"all" shares one matrix among source embedding, target embedding and output '
        'projection (3.4), "target" shares it between the last two, "none" shares nothing.',
    )
    scale_embeddings: bool = option(True, "Multiply embeddings by sqrt(model_dim) (3.4).")
    output_bias: bool = option(False, "Give the output projection a bias.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share_embeddings == "all" and self.target_vocabulary_size is not None:
            raise InputError(
                "share_embeddings 'all' needs one vocabulary for both sides, got "
                f"target_vocabulary_size {self.target_vocabulary_size}"
            )

    @property
    def target_size(self) -> int:
        """Tokens of the target vocabulary."""
        return self.target_vocabulary_size or self.vocabulary_size

    @property
    def values_per_pair(self) -> int:
        """Values that a head of cross-attention computes for a target and a source token."""
        return 1

    def to_dict(self) -> dict[str, Any]:
        """Returns the name of the architecture and the fields as plain Python values."""
        return {"architecture": self.architecture} | super().to_dict()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Builds the configuration; `ModelConfig.from_dict` that of the architecture named.

        Raises:
            InputError: the architecture is not registered or not this one; a field is unknown.
        """
        fields, own = dict(values), getattr(cls, "architecture", None)
        name = fields.pop("architecture", own)
        config_class: Any = cls
        if name is None or name != own:
            config_class = find_class(_ARCHITECTURES, name, "architecture")
        if not issubclass(config_class, cls):
            raise InputError(
                f"{cls.__name__} is of architecture {cls.architecture!r}, got values of {name!r}"
            )
        config: Any = super(ModelConfig, config_class).from_dict(fields)
        return config

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Returns a named configuration, such as "tiny", or the paper's "base" and "big".

        Args:
            name: one of `PRESETS`.
            **changes: fields with other values; `vocabulary_size` is required.

        Example:
            >>> TransformerConfig.preset("base", vocabulary_size=37000).model_dim
            512
        """
        check_choice("preset", name, tuple(cls.PRESETS))
        return cls.from_dict({**cls.PRESETS[name], **changes})


_ARCHITECTURES: dict[str, type[ModelConfig]] = {}
Config = TypeVar("Config", bound=type[ModelConfig])


def add_architecture(config: Config) -> Config:
    """Makes a configuration known by the name of its architecture.

    `register_architecture` calls it. Here it decorates those of the package, which are known
    before Keras and the models are imported.

    Raises:
        InputError: another class has the name.
    """
    name = config.architecture
    add_class(_ARCHITECTURES, name, config, f"architecture {name!r}")
    return config


def architectures() -> dict[str, type[ModelConfig]]:
    """Returns the configuration class of each registered architecture by its name."""
    return dict(_ARCHITECTURES)


Positions = Literal["sinusoidal", "concatenated", "halves", "learned", "relative"]
_ABSOLUTE = ("sinusoidal", "concatenated", "halves", "learned")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerLayersConfig(ModelConfig):
    """Abstract base: hyperparameters of models whose layers are a Transformer's."""

    feed_forward_dim: int = option(2048, "Inner width of the feed-forward layers, d_ff.", minimum=1)
    num_heads: int = option(8, "Attention heads, h.", minimum=1)
    key_dim: int | None = option(
        None, "Width of a head's queries and keys, d_k. Default: model_dim / num_heads.", minimum=1
    )
    value_dim: int | None = option(
        None, "Width of a head's values, d_v. Default: model_dim / num_heads.", minimum=1
    )
    activation: Literal["relu", "swish", "gelu", "gelu_tanh", "gelu_sigmoid"] = option(
        "relu",
        'Activation of the feed-forward layers: "relu" as in the paper, "swish", "gelu" (exact), '
        '"gelu_tanh" or "gelu_sigmoid" (approximations).',
    )
    attention_dropout: float = option(
        0.0, "Dropout rate of the attention weights; 0 in the paper.", minimum=0, below=1
    )
    feed_forward_dropout: float = option(
        0.0,
        "Dropout rate after the activation of feed-forward; 0 in the paper.",
        minimum=0,
        below=1,
    )
    norm_position: Literal["post", "pre"] = option(
        "post", 'Norms after each sub-layer, "post", as in the paper, or before each, "pre".'
    )
    norm_epsilon: float = option(1e-6, "Epsilon of layer normalization.", minimum=0)
    positions: Positions = option(
        "sinusoidal",
        '"sinusoidal" interleaves sine and cosine (3.5); "concatenated" puts all sines '
        'before all cosines (tensor2tensor, OpenNMT, fairseq, Marian); "halves" does so with '
        'the frequencies of 3.5 (Hugging Face); "learned" is a table (Table 3, row E); '
        '"relative" gives self-attention distances instead (Shaw et al. 2018).',
    )
    max_relative_distance: int = option(
        16,
        "Largest distance that relative positions tell apart.",
        minimum=1,
        needs={"positions": ("relative",)},
    )
    first_position: int = option(
        0, "Number of the first position.", minimum=0, needs={"positions": _ABSOLUTE}
    )
    max_positions: int = option(
        1024,
        "Rows of the table of learned positions.",
        minimum=1,
        needs={"positions": ("learned",)},
    )
    attention_bias: bool = option(False, "Give the projections of attention a bias.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_dim % self.num_heads and (self.key_dim is None or self.value_dim is None):
            raise InputError(
                f"model_dim {self.model_dim} is not divisible by num_heads {self.num_heads}"
            )
        if self.model_dim % 2 and self.positions in ("sinusoidal", "concatenated", "halves"):
            raise InputError(
                f"model_dim must be even for {self.positions} positions, got {self.model_dim}"
            )
        if self.positions == "learned" and self.first_position >= self.max_positions:
            raise InputError(
                f"first_position must be below max_positions {self.max_positions}, got "
                f"{self.first_position}"
            )


@add_architecture
@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(TransformerLayersConfig):
    """Hyperparameters of `Transformer` (Vaswani et al. 2017, section 3 and Table 3)."""

    architecture = "transformer"
    # "tiny" is the encoder and decoder that Wu et al. 2021 trained on Multi30k, "small" is
    # fairseq's for IWSLT. "tiny-fast" has a shallow decoder (Kasai et al. 2021): one layer a step
    # instead of four.
    PRESETS = {  # noqa: RUF012 (a ClassVar of the base)
        "tiny": dict(num_layers=4, model_dim=128, feed_forward_dim=256, num_heads=4, dropout=0.3),
        "small": dict(num_layers=6, model_dim=512, feed_forward_dim=1024, num_heads=4, dropout=0.3),
        "base": dict(num_layers=6, model_dim=512, feed_forward_dim=2048, num_heads=8, dropout=0.1),
        "big": dict(num_layers=6, model_dim=1024, feed_forward_dim=4096, num_heads=16, dropout=0.3),
        "tiny-fast": dict(
            num_layers=6,
            decoder_layers=1,
            model_dim=128,
            feed_forward_dim=256,
            num_heads=4,
            dropout=0.3,
            norm_position="pre",
        ),
        # Students of other models (Kim et al. 2019), which translate quickly on a CPU.
        "student": dict(
            num_layers=6,
            decoder_layers=2,
            model_dim=256,
            feed_forward_dim=1536,
            num_heads=8,
            dropout=0.1,
            decoder_mixer="ssru",
        ),
        "tiny-student": dict(
            num_layers=4,
            decoder_layers=2,
            model_dim=128,
            feed_forward_dim=256,
            num_heads=4,
            dropout=0.1,
            decoder_mixer="ssru",
        ),
    }

    num_layers: int = option(6, "Layers of the encoder, and of the decoder, N.", minimum=1)
    decoder_layers: int | None = option(
        None, "Layers of the decoder. Default: num_layers.", minimum=1
    )
    embedding_norm: bool = option(False, "Normalize embeddings plus positions.")
    source_eos: bool = option(True, "Let the encoder read the EOS that ends each source.")
    encoder_attention_window: int | None = option(
        None,
        "Odd: tokens that a source token attends to, around itself. Default: all.",
        minimum=1,
        is_odd=True,
    )
    decoder_mixer: Literal["attention", "ssru"] = option(
        "attention",
        'How a target token reads those before it: by self-"attention", or "ssru", by a recurrent '
        "unit (Kim et al. 2019), which translates faster.",
    )
    decoder_attention_window: int | None = option(
        None,
        "Odd r: a target token attends to itself and (r - 1) / 2 before it. Default: all.",
        minimum=1,
        is_odd=True,
        needs={"decoder_mixer": ("attention",)},
    )


@add_architecture
@dataclasses.dataclass(frozen=True, kw_only=True)
class UniversalConfig(TransformerLayersConfig):
    """Hyperparameters of `UniversalTransformer` (Dehghani et al. 2019)."""

    architecture = "universal"
    # The sizes of tensor2tensor.
    PRESETS = {  # noqa: RUF012 (a ClassVar of the base)
        "tiny": dict(num_steps=8, model_dim=128, feed_forward_dim=512, num_heads=4, dropout=0.1),
        "small": dict(num_steps=6, model_dim=512, feed_forward_dim=2048, num_heads=8, dropout=0.1),
        "base": dict(num_steps=6, model_dim=1024, feed_forward_dim=4096, num_heads=16, dropout=0.3),
    }

    num_steps: int = option(
        6, "Applications of the shared layer; with adaptive_steps, at most.", minimum=1
    )
    adaptive_steps: bool = option(
        True, "Let each token halt by itself (adaptive computation time, Graves 2016)."
    )
    halting_epsilon: float = option(
        0.01,
        "A token halts once its probabilities sum to over 1 - epsilon.",
        above=0,
        below=1,
        needs={"adaptive_steps": (True,)},
    )
    halting_bias: float = option(
        1.0,
        "Initial bias of the halting units; lower values halt later.",
        needs={"adaptive_steps": (True,)},
    )
    ponder_weight: float = option(
        0.01,
        "Weight of the ponder cost in the loss: steps plus remainder of each token.",
        minimum=0,
        needs={"adaptive_steps": (True,)},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_dim % 2:
            raise InputError(
                f"model_dim must be even for the sinusoidal step signals, got {self.model_dim}"
            )
        if self.norm_epsilon == 0:  # what halting gives padding is zero, which is not normalized
            raise InputError("norm_epsilon must be above 0 in a Universal Transformer, got 0")


@add_architecture
@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """Hyperparameters of `RecurrentModel`: a bidirectional LSTM encoder, an LSTM with attention."""

    architecture = "recurrent"
    PRESETS = {  # noqa: RUF012 (a ClassVar of the base)
        "tiny": dict(num_layers=1, model_dim=128, hidden_dim=256, dropout=0.3),
        "base": dict(num_layers=2, model_dim=512, hidden_dim=512, dropout=0.2),
    }

    num_layers: int = option(1, "Layers of the encoder, and of the decoder.", minimum=1)
    hidden_dim: int = option(
        512, "Units of an LSTM, U; a layer of the encoder has two LSTMs.", minimum=1
    )
    attention_dim: int | None = option(
        None,
        "Inner width of additive attention (Bahdanau et al. 2015). Default: hidden_dim.",
        minimum=1,
    )
    intra_decoder_attention: bool = option(
        False, "Let the decoder attend to its earlier states (Paulus et al. 2018, 2.2)."
    )

    @property
    def values_per_pair(self) -> int:
        """The width of additive attention's tanh, which is computed for each pair."""
        return self.attention_dim or self.hidden_dim
