"""What sentences may wish for beyond the best translation: all rules of `rules` and `phrases`.

Shapes: B sentences, W hypotheses a sentence, V vocabulary, P phrases a sentence, M symbols of the
longest one.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.phrases import (
    Progress,
    forbid_phrases,
    phrase_progress,
    require_phrases,
)
from keras_transformer.search.rules import (
    forbid_repeated_ngrams,
    force_prefix,
    penalize_repetition,
)


class Wishes(NamedTuple):
    """Rules that translations must follow, an entry for each sentence.

    What is None is not in the graph at all. Each rule has a neutral value as well, for sentences
    of a batch that do not want it. Where wishes contradict each other, the maximum length wins over
    all, and then the prefix; a sentence to which the others leave no translation gets none.

    Attributes:
        min_lengths: int32 [B], symbols before END; 0 is neutral.
        prefix: int32 [B, any], symbols that the translation starts with, then PAD.
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
        """Returns the wishes that are in the graph, by name."""
        return {
            name: tf.convert_to_tensor(value)
            for name, value in self._asdict().items()
            if value is not None
        }


def adjust(logits: Tensor, symbols: Tensor, wishes: dict[str, Tensor]) -> Tensor:
    """Returns logits float32 [B, W, V] of the distribution that symbols are taken from."""
    if "repetition_penalty" in wishes:
        logits = penalize_repetition(logits, symbols, wishes["repetition_penalty"])
    return logits


def restrict(
    logits: Tensor,
    symbols: Tensor,
    time: Tensor,
    wishes: dict[str, Tensor],
    max_lengths: Tensor,
    end_id: int,
) -> tuple[Tensor, Progress | None]:
    """Forbids, by -inf, what a hypothesis may not go on with, but for an END too early or too late.

    Args:
        logits: float32 [B, W, V].
        symbols: int32 [B, W, L], what each hypothesis has so far.
        time: int32 [], how many these are.
        wishes: see `Wishes.given`.
        max_lengths: int32 [B], symbols that a translation may have before END.
        end_id: the symbol that completes a translation.

    Returns:
        Logits, and how far hypotheses are with the phrases that they must have, if any.
    """
    allowed, progress = logits, None
    if "no_repeat_ngram" in wishes:
        allowed = forbid_repeated_ngrams(allowed, symbols, time, wishes["no_repeat_ngram"])
    if "banned_phrases" in wishes:
        allowed = forbid_phrases(allowed, symbols, time, wishes["banned_phrases"])
    if "required_phrases" in wishes:
        progress = phrase_progress(symbols, time, wishes["required_phrases"])
        allowed = require_phrases(allowed, progress, time, max_lengths, end_id)
    if "prefix" in wishes:
        # What was given is not for other rules to judge.
        allowed = force_prefix(logits, time, wishes["prefix"], allowed)
    return allowed, progress
