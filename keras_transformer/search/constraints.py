"""What sentences may wish for beyond the best translation: all rules of `rules` and `phrases`.

Shapes: B sentences, W hypotheses a sentence, V vocabulary, P phrases a sentence, M tokens of the
longest one.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.logits_processors import (
    forbid_repeated_ngrams,
    force_prefix,
    penalize_repetition,
)
from keras_transformer.search.phrase_constraints import (
    Progress,
    forbid_phrases,
    phrase_progress,
    require_phrases,
)


class Constraints(NamedTuple):
    """Rules that translations must follow, an entry for each sentence.

    What is None is not in the graph at all. Each rule has a neutral value as well, for sentences
    of a batch that do not use it. Where constraints contradict each other, the maximum length comes
    first, then the prefix; a sentence to which the others leave no translation gets none.

    Attributes:
        min_lengths: int32 [B], tokens before EOS; 0 is neutral.
        prefix: int32 [B, any], tokens that the translation starts with, then PAD.
        repetition_penalty: float32 [B], see `rules.penalize_repetition`; 1 is neutral.
        no_repeat_ngram: int32 [B], see `rules.forbid_repeated_ngrams`; 0 is neutral.
        banned_phrases: int32 [B, P, M], each phrase followed by PAD; nothing but PAD is neutral.
        required_phrases: the same. They are in every translation whose maximum length allows it.
    """

    min_lengths: Tensor | None = None
    prefix: Tensor | None = None
    repetition_penalty: Tensor | None = None
    no_repeat_ngram: Tensor | None = None
    banned_phrases: Tensor | None = None
    required_phrases: Tensor | None = None

    def given(self) -> dict[str, Tensor]:
        """Returns the constraints that are in the graph, by name."""
        return {
            name: tf.convert_to_tensor(value)
            for name, value in self._asdict().items()
            if value is not None
        }


def adjust(logits: Tensor, tokens: Tensor, constraints: dict[str, Tensor]) -> Tensor:
    """Returns logits float32 [B, W, V] of the distribution that tokens are taken from."""
    if "repetition_penalty" in constraints:
        logits = penalize_repetition(logits, tokens, constraints["repetition_penalty"])
    return logits


def restrict(
    logits: Tensor,
    tokens: Tensor,
    time: Tensor,
    constraints: dict[str, Tensor],
    max_lengths: Tensor,
    eos_id: int,
) -> tuple[Tensor, Progress | None]:
    """Forbids, by -inf, what a hypothesis may not go on with, but for an EOS too early or too late.

    Args:
        logits: float32 [B, W, V].
        tokens: int32 [B, W, L], what each hypothesis has so far.
        time: int32 [], how many these are.
        constraints: see `Constraints.given`.
        max_lengths: int32 [B], tokens that a translation may have before EOS.
        eos_id: the token that completes a translation.

    Returns:
        Logits, and how far hypotheses are with the phrases that they must have, if any.
    """
    allowed, progress = logits, None
    if "no_repeat_ngram" in constraints:
        allowed = forbid_repeated_ngrams(allowed, tokens, time, constraints["no_repeat_ngram"])
    if "banned_phrases" in constraints:
        allowed = forbid_phrases(allowed, tokens, time, constraints["banned_phrases"])
    if "required_phrases" in constraints:
        progress = phrase_progress(tokens, time, constraints["required_phrases"])
        allowed = require_phrases(allowed, progress, time, max_lengths, eos_id)
    if "prefix" in constraints:
        # What was given is not for other rules to judge.
        allowed = force_prefix(logits, time, constraints["prefix"], allowed)
    return allowed, progress
