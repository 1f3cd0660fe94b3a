"""How translations are searched for."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from keras_transformer.config.base import JsonConfig
from keras_transformer.errors import InputError

# The most phrases of a sentence, so that no request can exhaust the memory.
MOST_PHRASES = {"banned_phrases": 256, "required_phrases": 16}

SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "seed")

# What all sentences of an exported model have in common; they may differ in the other options.
FIXED_OPTIONS = (
    "method", "length_penalty_form", "forbid_unknown", "beam_size", "beam_groups", "early_stop",
    "num_translations", "shortlist", "max_source_length",
)  # fmt: skip

NO_USE = {  # options by the method that does not read them
    "beam": SAMPLING_OPTIONS,
    "sampling": ("beam_groups", "diversity_penalty", "early_stop"),
}
_DIVERSITY_PENALTY = 0.5
# Tokens of a sentence or a translation: far beyond use, and numbers of 32 bits hold their sums.
_MAX_TOKENS = 100_000
_LEAST = 1e-6  # of numbers that divide: in float32 logits stay finite
# The largest beam that Koehn and Knowles 2017, 3.6, measured: BLEU falls from a few dozen on, and
# time and memory grow with the square.
_MAX_BEAM_SIZE = 1_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig(JsonConfig):
    """How translations are searched for (Vaswani et al. 2017, section 6.1).

    Attributes:
        method: beam search, or sampling of each token from the model's distribution.
        beam_size: hypotheses kept for each sentence; 1 is greedy search, 1,000 the largest.
            Sampling ignores it.
        early_stop: when beam search is done with a sentence. "exact": when nothing better can
            come. "first": when as many hypotheses have finished as the beam holds, as in fairseq
            and CTranslate2: fewer steps, and longer translations may be missed.
        length_penalty: alpha of ((5 + length) / 6) ** alpha (Wu et al. 2016, eq. 14), by which
            log-probabilities are divided; the length counts EOS.
        length_penalty_form: "gnmt" is that quotient, "power" is length ** alpha, as in Marian,
            fairseq and Hugging Face, where an alpha of 1 is the mean of the log-probabilities.
        coverage_penalty: beta of the coverage penalty (Wu et al. 2016, eq. 14), by which
            translations that leave source tokens unattended lose; 0 is off.
        beam_groups: groups that the beam is divided into, each searching for itself and avoiding
            what those before it chose (Vijayakumar et al. 2018); 1 is an ordinary beam. Two of
            them may still come to the same translation.
        diversity_penalty: what a token loses for each time that an earlier group chose it at
            the same step, in units of log-probability.
        num_translations: translations returned for each sentence, best first; at most
            `beam_size` of a beam.
        temperature: what logits are divided by before a token is sampled.
        top_k: only the k most probable tokens are sampled from; 0 means all.
        top_p: only the fewest tokens whose probabilities add up to this are sampled from; 1 means
            all.
        seed: seed of the sampling, at least 0; the same seed gives a sentence the same samples in
            any batch (but for a shortlist, which batches share, and rounding, which may flip one
            in a thousand), and others to other sentences.
        forbid_unknown: whether the unknown token is never generated, as in Marian.
        max_extra_length: a translation has at most the source's length plus this many tokens.
        max_length: a translation has at most this many tokens, whatever the source; 0 sets no
            such limit.
        min_length: a translation has at least this many tokens before EOS, the last no mere space;
            0 allows the empty one. Blank sentences have the empty translation in any case.
        shortlist: number of candidates for each source token, its most probable target tokens in
            the training text; a batch is limited to its candidates, the most frequent tokens and
            those of `prefix` and `required_phrases`. 0 is the whole vocabulary.
        max_source_length: tokens of a sentence that are read; what is beyond them is cut off. It
            bounds the memory that a batch can take.
        repetition_penalty: divides the positive logits, and multiplies the negative ones, of tokens
            that the translation already contains (Keskar et al. 2019, 4.1); 1 is off.
        no_repeat_ngram: no sequence of so many tokens occurs twice in a translation; 0 is off.
        banned_phrases: never in a translation as the vocabulary cuts them into tokens; other
            tokens may spell the same text. 256 at most.
        required_phrases: in every translation, in any order (Post and Vilar 2018). 16 at most.
    """

    method: Literal["beam", "sampling"] = "beam"
    beam_size: int = 4
    early_stop: Literal["exact", "first"] = "exact"
    length_penalty: float = 0.6
    length_penalty_form: Literal["gnmt", "power"] = "gnmt"
    coverage_penalty: float = 0.0
    beam_groups: int = 1
    diversity_penalty: float = _DIVERSITY_PENALTY
    num_translations: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    forbid_unknown: bool = False
    max_extra_length: int = 50
    max_length: int = 0
    min_length: int = 1
    shortlist: int = 0
    max_source_length: int = 512
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    banned_phrases: tuple[str, ...] = ()
    required_phrases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_types()
        self._check_at_least(1, "beam_size", "num_translations", "max_source_length", "beam_groups")
        self._check_at_least(0, "length_penalty", "coverage_penalty", "diversity_penalty")
        self._check_at_least(0, "max_extra_length", "max_length", "min_length")
        self._check_at_least(0, "top_k", "no_repeat_ngram", "seed", "shortlist")
        for name in ("max_source_length", "max_extra_length", "max_length", "min_length"):
            if getattr(self, name) > _MAX_TOKENS:
                raise InputError(f"{name} must be at most {_MAX_TOKENS}, got {getattr(self, name)}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and abs(value) >= 1 << 31:
                raise InputError(f"{field.name} must be a number of 32 bits, got {value}")
        for name in ("temperature", "repetition_penalty", "top_p"):
            if not getattr(self, name) >= _LEAST:
                raise InputError(f"{name} must be at least {_LEAST}, got {getattr(self, name)}")
        if self.top_p > 1:
            raise InputError(f"top_p is a probability, at most 1, got {self.top_p}")
        if 0 < self.max_length < self.min_length:
            raise InputError(
                f"min_length {self.min_length} is larger than max_length {self.max_length}"
            )
        self._check_beam()
        for field in dataclasses.fields(self):
            if field.name in NO_USE[self.method] and getattr(self, field.name) != field.default:
                raise InputError(
                    f"{field.name} has no use with method {self.method}; leave it out, or give "
                    "the other method"
                )
        self._check_phrases()

    def _check_phrases(self) -> None:
        for name, most in MOST_PHRASES.items():
            phrases = getattr(self, name)
            if not all(phrase.strip() for phrase in phrases):
                raise InputError(f"{name} must be phrases, none of them blank, got {phrases!r}")
            if len(phrases) > most:
                raise InputError(f"{name} may be {most}, got {len(phrases)}")
        for required in self.required_phrases:
            words = f" {' '.join(required.split())} "
            for banned in self.banned_phrases:
                if f" {' '.join(banned.split())} " in words:
                    raise InputError(
                        f"required_phrases has {required!r}, in which {banned!r} of banned_phrases "
                        "occurs; leave one of them out"
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
        if self.beam_size % self.beam_groups:
            raise InputError(
                f"beam_groups {self.beam_groups} does not divide beam_size {self.beam_size}; "
                f"a beam_size of {self.beam_groups * 2} gives each group two hypotheses"
            )
        if self.beam_groups == 1 and self.diversity_penalty not in (0.0, _DIVERSITY_PENALTY):
            raise InputError(
                "diversity_penalty has no use without groups; give beam_groups, or leave it out"
            )


def check_options(options: Mapping[str, Any]) -> None:
    """Raises `InputError` for values of options that no model accepts.

    Only the model knows its method and the options that are not given.
    """
    fitting: dict[str, Any] = {}
    if not options.keys().isdisjoint(SAMPLING_OPTIONS):
        fitting = {"method": "sampling"}
    elif "diversity_penalty" in options:
        fitting = {"beam_groups": 2}
    SearchConfig(**fitting | dict(options))
