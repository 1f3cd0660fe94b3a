"""What the configurations of all architectures share, and the registry that finds them by name.

Neither Keras nor TensorFlow is imported here: command lines make their flags of these classes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

from typing_extensions import Self

from keras_transformer.config.base import JsonConfig
from keras_transformer.errors import InputError, check_choice

# The tokens that every vocabulary reserves.

PAD_ID = 0
UNK_ID = 1
BOS_ID = 2
EOS_ID = 3


Preset = Mapping[str, Any]


class UnknownArchitectureError(InputError):
    """A configuration of an architecture that nothing has registered."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(JsonConfig):
    """Abstract base: hyperparameters of any sequence-to-sequence model.

    A subclass names its architecture, adds fields, and is registered with `register_config`. Here
    `preset` and `from_dict` find the class that is meant.

    Attributes:
        vocabulary_size: tokens of the source vocabulary, V.
        target_vocabulary_size: tokens of the target vocabulary; None where it is the same one.
        model_dim: width of embeddings and hidden states, d_model.
        dropout: rate on each sub-layer's output, before the residual sum (5.4).
        embedding_dropout: rate on what enters encoder and decoder; None means `dropout`, as in
            the paper.
        share_embeddings: "all" shares one matrix between source embedding, target embedding and
            pre-softmax projection (3.4), "target" between the last two, "none" nothing.
        scale_embeddings: whether embeddings are multiplied by the square root of model_dim (3.4).
        output_bias: whether the pre-softmax projection has a bias.
    """

    architecture: ClassVar[str]
    PRESETS: ClassVar[Mapping[str, Preset]] = {}

    vocabulary_size: int
    target_vocabulary_size: int | None = None
    model_dim: int = 512
    dropout: float = 0.1
    embedding_dropout: float | None = None
    share_embeddings: Literal["all", "target", "none"] = "all"
    scale_embeddings: bool = True
    output_bias: bool = False

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
        found: Any = cls if name == own else _find(name)
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


Config = TypeVar("Config", bound=type[ModelConfig])
_ARCHITECTURES: dict[str, type[ModelConfig]] = {}


def register_config(config: Config) -> Config:
    """Registers a configuration class under its `architecture`; serves as a decorator.

    Raises:
        InputError: another class has the name, or one of its presets.
    """
    others = {name: each for name, each in _ARCHITECTURES.items() if not _is_same(each, config)}
    if config.architecture in others:
        raise InputError(
            f"architecture {config.architecture!r} of {config.__qualname__} is that of "
            f"{others[config.architecture].__qualname__} already; choose another name"
        )
    presets = {name for each in others.values() for name in _own_presets(each)}
    if taken := sorted(presets & _own_presets(config).keys()):
        raise InputError(f"preset {taken[0]!r} of {config.__qualname__} exists already; rename it")
    _ARCHITECTURES[config.architecture] = config
    return config


def architectures() -> dict[str, type[ModelConfig]]:
    """Returns the configuration class of each registered architecture by its name."""
    return dict(_ARCHITECTURES)


def _find(name: Any) -> type[ModelConfig]:
    if name not in _ARCHITECTURES:
        raise UnknownArchitectureError(
            f"architecture must be one of {', '.join(_ARCHITECTURES)}, got {name!r}; "
            "import the module that registers it first (commands: --user_module)"
        )
    return _ARCHITECTURES[name]


def _own_presets(config: type[ModelConfig]) -> Mapping[str, Preset]:
    """Returns the presets of a class without those that it inherits."""
    return vars(config).get("PRESETS", {})


def _is_same(one: type, other: type) -> bool:
    """Whether a class is the other, possibly from an earlier import of its module."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


# The form and size of a Transformer, and what other models of its layers share with it.


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


# The form and size of a Universal Transformer.


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


# The form and size of a recurrent model.


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
