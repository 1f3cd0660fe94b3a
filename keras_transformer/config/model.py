"""What the configurations of all architectures share, and the registry that finds them by name.

Neither Keras nor TensorFlow is imported here: command lines make their flags of these classes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

from typing_extensions import Self

from keras_transformer.config.base import JsonConfig
from keras_transformer.config.special_tokens import EOS_ID
from keras_transformer.errors import InputError, check_choice

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
