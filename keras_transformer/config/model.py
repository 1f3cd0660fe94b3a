"""Configurations of models, and what all configurations share: type and range checks, and JSON.

A registry finds the configuration of an architecture by name. Neither Keras nor TensorFlow is
imported here: command lines make their flags of these classes.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from typing_extensions import Self

from keras_transformer.errors import InputError, NotRegisteredError, check_choice

# The tokens that every vocabulary reserves.

PAD_ID = 0
UNK_ID = 1
BOS_ID = 2
EOS_ID = 3
NUM_RESERVED = 4  # their number; the ids of other tokens follow
WORD_START = "\u2581"  # SentencePiece writes it instead of a space


def option(default: Any, help: str) -> Any:
    """Returns a dataclass field with a help text, which its command-line flag shows.

    Args:
        default: of the field, or `dataclasses.MISSING` for one that must be given.
        help: what the value means, in sentences.
    """
    return dataclasses.field(default=default, metadata={"help": help})


class JsonConfig:
    """JSON round trip and validation shared by the frozen dataclasses of this folder."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as the plain Python values that JSON has."""
        values = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    def to_json(self) -> str:
        """Returns the fields as indented JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Builds the configuration; an unknown field raises `InputError`."""
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise InputError(
                f"{cls.__name__} has no field {', '.join(unknown)}; it has {', '.join(known)}"
            )
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Builds the configuration from the text that `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, checked like any other."""
        return type(self).from_dict(self.to_dict() | changes)

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, list) and get_origin(field.type) is tuple:  # read from JSON
                value = tuple(value)
                object.__setattr__(self, field.name, value)
            if (expected := _expected(field.type, value)) is not None:
                raise InputError(f"{field.name} must be {expected}, got {value!r}")

    def _check_at_least(self, minimum: float, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise InputError(f"{name} must be at least {minimum}, got {value}")


_NAMES = {
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "a string",
}


def _expected(kind: Any, value: Any) -> str | None:
    """Returns in words what a value of a type is, None where `value` is one.

    A bool is no number, and a whole number is also a float.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        mismatches = [_expected(option, value) for option in arguments if option is not NoneType]
        fits = None in mismatches or (value is None and NoneType in arguments)
        return None if fits else " or ".join(filter(None, mismatches))
    if origin is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in arguments)
        return None if fits else f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        fits = type(value) is tuple and all(_expected(arguments[0], each) is None for each in value)
        return None if fits else f"a sequence, each entry {_expected(arguments[0], object())}"
    if kind is float:
        fits = type(value) is int or (isinstance(value, float) and math.isfinite(value))
    else:
        fits = isinstance(value, origin or kind) and (kind is bool or type(value) is not bool)
    return None if fits else _NAMES.get(kind, f"of type {kind}")


Preset = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(JsonConfig):
    """Abstract base: hyperparameters of any sequence-to-sequence model.

    A subclass that names its `architecture` is registered under that name, so that `preset` and
    `from_dict` of this class find it. It adds fields, and presets if it likes.

    Raises:
        InputError: another class has the name, or one of the presets.
    """

    architecture: ClassVar[str]
    PRESETS: ClassVar[Mapping[str, Preset]] = {}

    vocabulary_size: int = option(MISSING, "Tokens of the source vocabulary, V.")
    target_vocabulary_size: int | None = option(
        None, "Tokens of the target vocabulary. Default: the same vocabulary."
    )
    model_dim: int = option(512, "Width of embeddings and hidden states, d_model.")
    dropout: float = option(
        0.1, "Dropout rate of the output of each sub-layer, before the residual sum (5.4)."
    )
    embedding_dropout: float | None = option(
        None, "Dropout rate of the input of encoder and decoder. Default: dropout, as in the paper."
    )
    share_embeddings: Literal["all", "target", "none"] = option(
        "all",
        '"all" shares one matrix between source embedding, target embedding and output '
        'projection (3.4), "target" between the last two, "none" shares nothing.',
    )
    scale_embeddings: bool = option(
        True, "Multiply embeddings by the square root of model_dim (3.4)."
    )
    output_bias: bool = option(False, "Give the output projection a bias.")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "architecture" not in vars(cls):
            return  # an abstract base
        for other in _ARCHITECTURES.values():
            if (other.__module__, other.__qualname__) == (cls.__module__, cls.__qualname__):
                continue  # this class, from an earlier import of its module
            if other.architecture == cls.architecture:
                raise InputError(
                    f"architecture {cls.architecture!r} of {cls.__qualname__} is that of "
                    f"{other.__qualname__}; choose another name"
                )
            if taken := sorted(_own_presets(other).keys() & _own_presets(cls).keys()):
                raise InputError(
                    f"preset {taken[0]!r} of {cls.__qualname__} is one of {other.__qualname__}; "
                    "rename it"
                )
        _ARCHITECTURES[cls.architecture] = cls

    def __post_init__(self) -> None:
        if not hasattr(self, "architecture"):
            raise InputError(
                f"{type(self).__name__} has no architecture; make the configuration of one of "
                f"{', '.join(architectures())}, or use ModelConfig.preset"
            )
        self._check_types()
        self._check_at_least(1, "model_dim")
        # PAD, UNK, BOS and EOS are among the tokens.
        self._check_at_least(EOS_ID + 1, "vocabulary_size", "target_vocabulary_size")
        self._check_rates("dropout", "embedding_dropout")
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

    @property
    def values_per_pair(self) -> int:
        """The values that a head of cross-attention computes for a target and a source token."""
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
        if name is None:
            raise InputError(f"no architecture; give one of {', '.join(_ARCHITECTURES)}")
        if name != own and name not in _ARCHITECTURES:
            raise NotRegisteredError(
                f"architecture must be one of {', '.join(_ARCHITECTURES)}, got {name!r}; "
                "import the module that registers it first (commands: --user_module)"
            )
        found: Any = cls if name == own else _ARCHITECTURES[name]
        if not issubclass(found, cls):
            raise InputError(
                f"{cls.__name__} is of architecture {cls.architecture!r}, got values of {name!r}"
            )
        config: Any = super(ModelConfig, found).from_dict(fields)
        return config

    @classmethod
    def presets(cls) -> dict[str, Preset]:
        """Returns the named settings: of this architecture, or here of all, by name."""
        return {
            name: preset
            for config in architectures().values()
            if issubclass(config, cls)
            for name, preset in _own_presets(config).items()
        }

    @classmethod
    def preset_name(cls, name: str) -> str:
        """Returns the whole name of a preset: `RecurrentConfig` has "rnn-tiny" for "tiny".

        Raises:
            InputError: there is no such preset.
        """
        known = cls.presets()
        ends = [each for each in known if each.rpartition("-")[2] == name]
        whole = name if name in known or not ends else ends[0]
        check_choice("preset", whole, tuple(known))
        return whole

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Returns a named configuration, such as "tiny", or the paper's "base" and "big".

        Args:
            name: one of `presets()`, or the end of one: "tiny" will do for "rnn-tiny".
            **changes: fields to set otherwise; `vocabulary_size` is always needed.

        Example:
            >>> ModelConfig.preset("base", vocabulary_size=37000).model_dim
            512
        """
        known = cls.presets()
        name = cls.preset_name(name)
        found = next(each for each in _ARCHITECTURES.values() if name in _own_presets(each))
        return cls.from_dict({"architecture": found.architecture} | {**known[name]} | changes)

    def _check_rates(self, *names: str) -> None:
        for name in names:
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise InputError(f"{name} must be at least 0 and below 1, got {rate}")


_ARCHITECTURES: dict[str, type[ModelConfig]] = {}


def architectures() -> dict[str, type[ModelConfig]]:
    """Returns the configuration class of each registered architecture by its name."""
    return dict(_ARCHITECTURES)


def _own_presets(config: type[ModelConfig]) -> Mapping[str, Preset]:
    """Returns the presets of a class without those that it inherits."""
    return vars(config).get("PRESETS", {})


# The form and size of a Transformer, and what other models of its layers share with it.


Positions = Literal["sinusoidal", "concatenated", "halves", "learned", "relative", "rotary"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerLayersConfig(ModelConfig):
    """Abstract base: hyperparameters of models whose layers are a Transformer's."""

    feed_forward_dim: int = option(2048, "Inner width of the feed-forward layers, d_ff.")
    num_heads: int = option(8, "Attention heads, h.")
    key_dim: int | None = option(
        None, "Width of the queries and keys of a head, d_k. Default: model_dim / num_heads."
    )
    value_dim: int | None = option(
        None, "Width of the values of a head, d_v. Default: model_dim / num_heads."
    )
    activation: Literal["relu", "swish", "gelu", "gelu_tanh", "gelu_sigmoid"] = option(
        "relu",
        'Activation of the feed-forward layers: "relu" as in the paper, "swish", "gelu" (exact), '
        '"gelu_tanh" or "gelu_sigmoid" (approximations).',
    )
    attention_dropout: float = option(0.0, "Dropout rate of the attention weights; 0 in the paper.")
    feed_forward_dropout: float = option(
        0.0, "Dropout rate after the activation of the feed-forward layers; 0 in the paper."
    )
    norm_position: Literal["post", "pre"] = option(
        "post",
        '"post" as in the paper, or "pre": before each sub-layer, and once more at the end of '
        "each stack.",
    )
    norm_form: Literal["variance", "sigma"] = option(
        "variance",
        '"variance" is (x - mean) / sqrt(variance + epsilon), "sigma" is (x - mean) / (sigma + '
        "epsilon).",
    )
    norm_epsilon: float = option(1e-6, "Epsilon of layer normalization.")
    positions: Positions = option(
        "sinusoidal",
        '"sinusoidal" interleaves sine and cosine (3.5); "concatenated" puts all sines before '
        'all cosines (tensor2tensor, OpenNMT, fairseq, Marian); "halves" does so with the '
        'frequencies of 3.5 (Hugging Face); "learned" is Table 3, row E; "relative" (Shaw et al. '
        '2018) and "rotary" (Su et al. 2021) give distances to self-attention instead.',
    )
    max_relative_distance: int = option(16, "Largest distance that relative positions tell apart.")
    first_position: int = option(0, "Number of the first position.")
    max_positions: int = option(1024, "Rows of the table of learned positions.")
    max_position_offset: int = option(
        0,
        "In training, count positions from a random number up to this, so that the model sees "
        "positions beyond its sentences.",
    )
    attention_bias: bool = option(
        False, "Give the projections of attention a bias; the paper has none."
    )

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
                f"max_position_offset cannot be combined with {self.positions} positions, which "
                "are distances; remove it"
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(TransformerLayersConfig):
    """Hyperparameters of `Transformer` (Vaswani et al. 2017, section 3 and Table 3)."""

    architecture = "transformer"
    # "tiny" is the encoder and decoder that Wu et al. 2021 trained on Multi30k. "tiny-fast" has a
    # shallow decoder (Kasai et al. 2021): one layer a step instead of four.
    PRESETS = {  # noqa: RUF012 (a ClassVar of the base)
        "tiny": dict(num_layers=4, model_dim=128, feed_forward_dim=256, num_heads=4, dropout=0.3),
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
    }

    num_layers: int = option(6, "Layers of the encoder, and of the decoder, N.")
    decoder_layers: int | None = option(None, "Layers of the decoder; num_layers if not given.")
    embedding_norm: bool = option(
        False, "Normalize the input of encoder and decoder, embedding plus position."
    )
    share_positions: bool = option(
        True,
        "Let encoder and decoder share the table of learned positions; otherwise each has its own, "
        "as in fairseq.",
    )
    source_eos: bool = option(True, "Let the encoder read the EOS that ends each source.")
    encoder_attention_window: int | None = option(
        None, "Tokens that a source token attends to, itself in the middle; odd. Default: all."
    )
    decoder_attention_window: int | None = option(
        None,
        "Odd r: a target token attends to itself and the (r - 1) / 2 tokens before it. Default: "
        "all.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(
            1, "num_layers", "decoder_layers", "encoder_attention_window",
            "decoder_attention_window",
        )  # fmt: skip
        if not self.share_positions and self.positions != "learned":
            raise InputError(
                f"share_positions False needs positions learned, got {self.positions}; remove it"
            )
        for side in ("encoder", "decoder"):
            window = getattr(self, f"{side}_attention_window")
            if window is not None and window % 2 == 0:
                raise InputError(
                    f"{side}_attention_window must be odd, the token itself and as many on both "
                    f"sides, got {window}; give {window + 1}"
                )


# The form and size of a Universal Transformer.


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniversalConfig(TransformerLayersConfig):
    """Hyperparameters of `UniversalTransformer` (Dehghani et al. 2019)."""

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

    num_steps: int = option(
        6, "Times that the shared layer is applied; with adaptive steps, the most a token may take."
    )
    adaptive_steps: bool = option(
        True,
        "Let each token halt by itself (adaptive computation time, Graves 2016); otherwise all "
        "take num_steps.",
    )
    halting_output: Literal["sum", "blend"] = option(
        "sum",
        '"sum" weights the states of a token by its halting probabilities, which sum to 1 '
        '(Graves 2016, eq. 13; "accumulated" in tensor2tensor); "blend" interpolates step by '
        'step, with weights that sum to less (listing of Dehghani et al. 2019; "basic" in '
        "tensor2tensor).",
    )
    halting_epsilon: float = option(
        0.01, "A token halts once its halting probabilities sum to more than 1 - epsilon."
    )
    halting_bias: float = option(1.0, "Initial bias of the halting units; lower values halt later.")
    ponder_weight: float = option(
        0.01, "Weight of the ponder cost in the loss: steps plus remainder of each token."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(1, "num_steps")
        self._check_at_least(0, "ponder_weight")
        if self.model_dim % 2:
            raise InputError(
                f"model_dim must be even for the sinusoidal step signals, got {self.model_dim}"
            )
        if self.norm_epsilon == 0:  # what halting gives padding is zero, which is not normalized
            raise InputError("norm_epsilon must be above 0 in a Universal Transformer, got 0")
        if not 0 < self.halting_epsilon < 1:
            raise InputError(f"halting_epsilon must be between 0 and 1, got {self.halting_epsilon}")


# The form and size of a recurrent model.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """Hyperparameters of `RecurrentModel`: a bidirectional LSTM encoder, an LSTM with attention."""

    architecture = "recurrent"
    PRESETS = {  # noqa: RUF012 (a ClassVar of the base)
        "rnn-tiny": dict(num_layers=1, model_dim=128, hidden_dim=256, dropout=0.3),
        "rnn-base": dict(num_layers=2, model_dim=512, hidden_dim=512, dropout=0.2),
    }

    num_layers: int = option(1, "Layers of the encoder, and of the decoder.")
    hidden_dim: int = option(
        512, "Units of an LSTM, U; a layer of the encoder has two, one for each direction."
    )
    attention_type: Literal["additive", "dot"] = option(
        "additive",
        '"additive" scores v^T tanh(W1 H + W2 h + b) (Bahdanau et al. 2015), "dot" scores h^T W1 '
        'H (Luong et al. 2015, "general").',
    )
    attention_dim: int | None = option(
        None, "Width of W1 H and W2 h in additive attention. Default: hidden_dim."
    )
    intra_temporal_attention: bool = option(
        False,
        "Give less attention to source tokens that were attended to before (Paulus et al. 2018, "
        "2.1).",
    )
    intra_decoder_attention: bool = option(
        False, "Let the decoder attend to its earlier states (Paulus et al. 2018, 2.2)."
    )
    input_feeding: bool = option(
        False, "Feed the last context to the decoder beside each token (Luong et al. 2015, 3.3)."
    )
    bridge_activation: Literal["relu", "tanh"] = option(
        "relu",
        'Activation between the last states of the encoder and the first of the decoder: "relu" '
        '(See et al. 2017), or "tanh".',
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(1, "num_layers", "hidden_dim", "attention_dim")
        if self.attention_dim is not None and self.attention_type == "dot":
            raise InputError(
                f"attention_dim {self.attention_dim} cannot be combined with attention_type "
                "'dot', which uses hidden_dim; remove it"
            )

    @property
    def values_per_pair(self) -> int:
        """Of additive attention the width of its tanh, which is of each pair."""
        return (self.attention_dim or self.hidden_dim) if self.attention_type == "additive" else 1
