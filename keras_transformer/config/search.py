"""Search options (Vaswani et al. 2017, section 6.1)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from keras_transformer.config.options import JsonConfig, option
from keras_transformer.errors import InputError

MOST_PHRASES = 256  # of a sentence, so that no request can exhaust the memory

SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "seed")

# Fixed when a model is exported; requests may set the other options for each sentence.
FIXED_OPTIONS = (
    "method", "length_penalty_form", "forbid_unknown", "beam_size", "early_stop",
    "num_translations", "max_source_length",
)  # fmt: skip

# Tokens of a sentence or a translation: far beyond use, and their sums fit into 32 bits.
_MAX_TOKENS = 100_000
_MINIMUM_DIVISOR = 1e-6  # keeps logits finite in float32
# The largest that Koehn and Knowles 2017 (3.6) measured; BLEU falls beyond a few dozen hypotheses,
# and time and memory grow with the square.
_MAX_BEAM_SIZE = 1_000


def unused_options(method: str) -> tuple[str, ...]:
    """Returns the options that a search method does not read."""
    return ("early_stop",) if method == "sampling" else SAMPLING_OPTIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig(JsonConfig):
    """Options of beam search and sampling (Vaswani et al. 2017, section 6.1)."""

    method: Literal["beam", "sampling"] = option(
        "beam", "Beam search, or sampling from the distribution of the model."
    )
    beam_size: int = option(
        4, "Hypotheses per sentence; 1 is greedy search, at most 1,000. Sampling ignores it."
    )
    early_stop: Literal["exact", "first"] = option(
        "exact",
        'When a sentence is done. "exact": when no open hypothesis can win any more. "first": '
        "when beam_size hypotheses have finished, as in fairseq and CTranslate2; faster, and may "
        "miss longer translations.",
    )
    length_penalty: float = option(
        0.6,
        "alpha of ((5 + length) / 6) ** alpha, which divides log-probabilities (Wu et al. 2016, "
        "eq. 14); the length counts EOS.",
    )
    length_penalty_form: Literal["gnmt", "power"] = option(
        "gnmt",
        '"gnmt" is the formula above, "power" is length ** alpha, as in Marian, fairseq and '
        "Hugging Face, where alpha 1 ranks by the mean log-probability.",
    )
    coverage_penalty: float = option(
        0.0,
        "beta of the coverage penalty (Wu et al. 2016, eq. 14) for source tokens without "
        "attention; 0 turns it off.",
    )
    num_translations: int = option(
        1, "Translations returned per sentence, best first; at most beam_size in beam search."
    )
    temperature: float = option(1.0, "Divides the logits before sampling.")
    top_k: int = option(0, "Sample from the k most probable tokens; 0 means all.")
    top_p: float = option(
        1.0, "Sample from the fewest tokens whose probabilities sum to at least this; 1 means all."
    )
    seed: int = option(
        0,
        "Seed for sampling, at least 0. A sentence gets the same samples in any batch, up to "
        "rounding (about one in a thousand differs).",
    )
    forbid_unknown: bool = option(False, "Never generate the unknown token, as in Marian.")
    max_extra_length: int = option(
        50, "A translation has at most this many tokens more than its source."
    )
    max_length: int = option(
        0, "A translation has at most this many tokens; 0 means no such limit."
    )
    min_length: int = option(
        1,
        "A translation has at least this many tokens before EOS, one of which is not a mere "
        "space; 0 allows empty ones. Blank sentences always have the empty translation.",
    )
    max_source_length: int = option(
        512,
        "Tokens of a sentence that are read; the rest is cut off. Bounds the memory of a batch.",
    )
    repetition_penalty: float = option(
        1.0,
        "Divides positive logits, and multiplies negative ones, of tokens that the translation "
        "already contains (Keskar et al. 2019, 4.1); 1 turns it off.",
    )
    no_repeat_ngram: int = option(
        0, "No sequence of this many tokens occurs twice in a translation; 0 turns it off."
    )
    banned_phrases: tuple[str, ...] = option(
        (),
        "Phrases that translations never contain, as the vocabulary tokenizes them; other tokens "
        "may spell the same text. At most 256.",
    )

    def __post_init__(self) -> None:
        self._check_types()
        self._check_at_least(1, "beam_size", "num_translations", "max_source_length")
        self._check_at_least(0, "length_penalty", "coverage_penalty")
        self._check_at_least(0, "max_extra_length", "max_length", "min_length")
        self._check_at_least(0, "top_k", "no_repeat_ngram", "seed")
        for name in ("max_source_length", "max_extra_length", "max_length", "min_length"):
            if getattr(self, name) > _MAX_TOKENS:
                raise InputError(f"{name} must be at most {_MAX_TOKENS}, got {getattr(self, name)}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and abs(value) >= 1 << 31:
                raise InputError(f"{field.name} must fit into 32 bits, got {value}")
        for name in ("temperature", "repetition_penalty", "top_p"):
            if not getattr(self, name) >= _MINIMUM_DIVISOR:
                raise InputError(
                    f"{name} must be at least {_MINIMUM_DIVISOR}, got {getattr(self, name)}"
                )
        if self.top_p > 1:
            raise InputError(f"top_p is a probability, at most 1, got {self.top_p}")
        if 0 < self.max_length < self.min_length:
            raise InputError(
                f"min_length {self.min_length} is larger than max_length {self.max_length}"
            )
        self._check_beam()
        unused = unused_options(self.method)
        for field in dataclasses.fields(self):
            if field.name in unused and getattr(self, field.name) != field.default:
                raise InputError(
                    f"{field.name} cannot be combined with method {self.method}; remove it, or "
                    "change the method"
                )
        if not all(phrase.strip() for phrase in self.banned_phrases):
            raise InputError(f"banned_phrases must not be blank, got {self.banned_phrases!r}")
        if len(self.banned_phrases) > MOST_PHRASES:
            raise InputError(
                f"banned_phrases takes at most {MOST_PHRASES} phrases, got "
                f"{len(self.banned_phrases)}"
            )

    def _check_beam(self) -> None:
        if self.beam_size > _MAX_BEAM_SIZE:
            raise InputError(
                f"beam_size must be at most {_MAX_BEAM_SIZE}, got {self.beam_size}; translations "
                "do not get better beyond a few dozen"
            )
        if self.method == "beam" and self.num_translations > self.beam_size:
            raise InputError(
                f"num_translations {self.num_translations} is larger than beam_size "
                f"{self.beam_size}; raise beam_size or ask for fewer"
            )


def check_options(options: Mapping[str, Any]) -> None:
    """Raises `InputError` for values of options that no model accepts.

    Only the run or export knows its method and the other options, so missing ones are assumed to
    fit.
    """
    fitting: dict[str, Any] = {}
    if not options.keys().isdisjoint(SAMPLING_OPTIONS):
        fitting["method"] = "sampling"
    elif options.get("method") != "sampling" and isinstance(options.get("num_translations"), int):
        fitting["beam_size"] = max(1, options["num_translations"])
    SearchConfig(**fitting | dict(options))
