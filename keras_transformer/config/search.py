"""Search options (Vaswani et al. 2017, 6.1): of a whole search, and of single sentences.

A flag, or an argument of `Translator.load`, changes the `SearchConfig`. A keyword of the method
`Translator.translate`, one of `REQUEST_OPTIONS`, is a column of the request, as is a flag beside
--saved_model: sentences.py checks it, and inference/options.py bounds it in the graph, where a
negative number stands for the configuration's.
search/model_search.py makes a search of both: an option that limits tokens is a constraint in
`make_constraints`; any other is an argument in `search_model`, and in `_TYPES` of search/loop.py.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from keras_transformer.config.options import JsonConfig, option
from keras_transformer.errors import InputError

# Tokens of a sentence or a translation: far beyond use, and their sums fit into 32 bits.
MAX_TOKENS = 100_000
_MAX_INT = (1 << 31) - 1  # of 32 bits
_MINIMUM_DIVISOR = 1e-6  # keeps logits finite in float32
# The largest that Koehn and Knowles 2017 (3.6) measured; BLEU falls beyond a few dozen hypotheses,
# and time and memory grow with the square.
_MAX_BEAM_SIZE = 1_000


class RequestOption(NamedTuple):
    """A search option that each sentence of a request may set.

    Attributes:
        type: float, int, or str for the prefix.
        off: the value that turns the option off, None if no value does. A graph has no operations
            for an option that is off, unless sentences may set it.
    """

    type: type
    off: float | None = None


REQUEST_OPTIONS = {
    "length_penalty": RequestOption(float),
    "coverage_penalty": RequestOption(float, off=0),
    "temperature": RequestOption(float),
    "top_k": RequestOption(int),
    "top_p": RequestOption(float),
    "seed": RequestOption(int),
    "max_extra_length": RequestOption(int),
    "max_length": RequestOption(int),
    "min_length": RequestOption(int, off=0),
    "repetition_penalty": RequestOption(float, off=1),
    "no_repeat_ngram": RequestOption(int, off=0),
    "prefix": RequestOption(str),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig(JsonConfig):
    """Options of beam search and sampling (Vaswani et al. 2017, section 6.1)."""

    method: Literal["beam", "sampling"] = option(
        "beam", "Beam search, or sampling from the distribution of the model."
    )
    beam_size: int = option(
        4,
        "Hypotheses per sentence; 1 is greedy search. Sampling ignores it.",
        minimum=1,
        maximum=_MAX_BEAM_SIZE,
    )
    early_stop: Literal["exact", "current", "first", "narrow"] = option(
        "exact",
        'When a sentence is done. "exact": when no open hypothesis can win any more. "current": '
        "when beam_size hypotheses have finished and no open one would win at its present length, "
        'as in transformers. "first": when beam_size hypotheses have finished, as in fairseq and '
        'CTranslate2. "narrow": so too, but each of them takes a place in the beam, as in Marian. '
        "With a length penalty the last three are mostly faster; they may miss longer ones.",
        needs={"method": ("beam",)},
    )
    length_penalty: float = option(
        0.6,
        "alpha of ((5 + length) / 6) ** alpha, which divides log-probabilities (Wu et al. 2016, "
        "eq. 14); the length counts EOS.",
        minimum=0,
    )
    length_penalty_form: Literal["gnmt", "power"] = option(
        "gnmt",
        '"gnmt" is the formula above, "power" is length ** alpha, as in Marian, fairseq and '
        "Hugging Face, whose length penalty of 1, the mean log-probability, is alpha 1 here.",
    )
    coverage_penalty: float = option(
        0.0,
        "beta of the coverage penalty (Wu et al. 2016, eq. 14), which counts source tokens "
        "without attention; 0 turns it off.",
        minimum=0,
    )
    num_translations: int = option(
        1,
        "Translations per sentence, best first; at most beam_size in beam search.",
        minimum=1,
        maximum=_MAX_INT,
    )
    temperature: float = option(
        1.0,
        "Divides the logits before sampling.",
        minimum=_MINIMUM_DIVISOR,
        needs={"method": ("sampling",)},
    )
    top_k: int = option(
        0,
        "Sample from the k most probable tokens; 0: from all.",
        minimum=0,
        maximum=_MAX_INT,
        needs={"method": ("sampling",)},
    )
    top_p: float = option(
        1.0,
        "Sample from the fewest tokens whose probabilities sum to at least this; 1: from all.",
        minimum=_MINIMUM_DIVISOR,
        maximum=1,
        needs={"method": ("sampling",)},
    )
    seed: int = option(
        0,
        "Seed of sampling. A sentence gets the same samples in any batch, up to rounding.",
        minimum=0,
        maximum=_MAX_INT,
        needs={"method": ("sampling",)},
    )
    forbid_unknown: bool = option(False, "Never generate the unknown token, as in Marian.")
    replace_unknowns: bool = option(
        True,
        "Where a translation has the unknown token, copy an unknown word of the source: the k-th "
        "one for the k-th token.",
    )
    max_extra_length: int = option(
        50,
        "A translation has at most this many tokens more than its source, or ends at its prefix.",
        minimum=0,
        maximum=MAX_TOKENS,
    )
    max_length: int = option(
        0,
        "A translation has at most this many tokens; 0: no such limit.",
        minimum=0,
        maximum=MAX_TOKENS,
    )
    min_length: int = option(
        1,
        "A translation has at least this many tokens before EOS, one of which is not a mere "
        "space; 0 allows empty ones. Blank sentences always have the empty translation.",
        minimum=0,
        maximum=MAX_TOKENS,
    )
    max_source_length: int = option(
        512,
        "Tokens of a source that are read; longer sources are truncated. Bounds the memory of "
        "a batch.",
        minimum=1,
        maximum=MAX_TOKENS,
    )
    repetition_penalty: float = option(
        1.0,
        "Divides positive logits, and multiplies negative ones, of tokens that the translation "
        "already contains (Keskar et al. 2019, 4.1); 1 turns it off.",
        minimum=_MINIMUM_DIVISOR,
    )
    no_repeat_ngram: int = option(
        0,
        "No sequence of this many tokens occurs twice in a translation; 0 turns it off.",
        minimum=0,
        maximum=_MAX_INT,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.max_length < self.min_length:
            raise InputError(
                f"min_length {self.min_length} is larger than max_length {self.max_length}"
            )
        if self.method == "beam" and self.num_translations > self.beam_size:
            raise InputError(
                f"num_translations {self.num_translations} is larger than beam_size "
                f"{self.beam_size}; raise beam_size or ask for fewer"
            )

    @classmethod
    def unused_by(cls, method: str) -> list[str]:
        """Returns the options that a search method does not read."""
        unused = cls.unused_fields({"method": method})
        return [name for name, other in unused.items() if other == "method"]


def check_options(options: Mapping[str, Any]) -> None:
    """Raises `InputError` for values of options that no model accepts.

    Only the run or export knows its method and the other options, so missing ones are assumed to
    fit.
    """
    fitting: dict[str, Any] = {}
    if not options.keys().isdisjoint(SearchConfig.unused_by("beam")):
        fitting["method"] = "sampling"
    elif options.get("method") != "sampling" and isinstance(options.get("num_translations"), int):
        fitting["beam_size"] = max(1, options["num_translations"])
    SearchConfig(**fitting | dict(options))
