"""Searches written out in plain Python: one sentence at a time, to the last step, in float64.

They share no code with the package, and run to the last step unless `early_stop` says otherwise. A
`Request` holds the options of one sentence; `arguments` makes the arguments of the package's
searches from a batch of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.search import (
    Constraint,
    Hypotheses,
    MinLength,
    NoRepeatNgram,
    OpenHypotheses,
    Prefix,
    RepetitionPenalty,
    beam_search,
    forbid_ids,
)

Tokens = tuple[int, ...]
NEVER = (PAD_ID, BOS_ID)


class Request(NamedTuple):
    """The options of one sentence; all but the limit are neutral by default."""

    limit: int
    alpha: float = 0.6
    beta: float = 0.0
    min_length: int = 0
    prefix: Tokens = ()
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    banned: Tokens = ()
    allows: Callable[[Tokens, int], bool] = lambda tokens, token: True  # a constraint of a test's
    form: str = "gnmt"  # of the length penalty, which `arguments` leaves to the test


class Banned(Constraint):
    """Forbids tokens [B, any], behind which PAD is neutral."""

    def __init__(self, ids: tf.Tensor) -> None:
        self.inputs = tf.cast(ids, tf.int32)

    def is_active(self, hypotheses: OpenHypotheses) -> tf.Tensor:
        return tf.reduce_any(hypotheses.inputs != PAD_ID)

    def forbid(self, logits: tf.Tensor, hypotheses: OpenHypotheses) -> tf.Tensor:
        return forbid_ids(logits, hypotheses.inputs[:, None])


# Their constraints, and how many of their dimensions differ from sentence to sentence.
CONSTRAINTS = {
    "min_length": (MinLength, 0),
    "prefix": (Prefix, 1),
    "repetition_penalty": (RepetitionPenalty, 0),
    "no_repeat_ngram": (NoRepeatNgram, 0),
    "banned": (Banned, 1),
}


class Translation(NamedTuple):
    """A complete translation; `tokens` ends with EOS."""

    score: float
    log_prob: float
    tokens: Tokens


def columns(requests: Sequence[Request], *, everything: bool = False) -> dict[str, Any]:
    """Returns what differs from sentence to sentence as tensors [B, ...], by name.

    Without `everything`, constraints that are neutral for all sentences are omitted.
    """
    tensors = dict(
        max_lengths=tf.constant([each.limit for each in requests], tf.int32),
        length_penalty=tf.constant([each.alpha for each in requests], tf.float32),
        coverage_penalty=tf.constant([each.beta for each in requests], tf.float32),
    )
    for name, (_, rank) in CONSTRAINTS.items():
        values = [getattr(each, name) for each in requests]
        if everything or set(values) != {Request._field_defaults[name]}:
            dtype = tf.float32 if name == "repetition_penalty" else tf.int32
            ragged = tf.ragged.constant(values, dtype, ragged_rank=rank)
            tensors[name] = ragged.to_tensor(PAD_ID) if rank else ragged
    return tensors


def with_constraints(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments of the package's searches from what `columns` gives."""
    constraints: list[Constraint] = [
        make(tensors[name]) for name, (make, _) in CONSTRAINTS.items() if name in tensors
    ]
    others = {name: tensor for name, tensor in tensors.items() if name not in CONSTRAINTS}
    return dict(others, constraints=constraints)


def arguments(requests: Sequence[Request], *, everything: bool = False) -> dict[str, Any]:
    """Returns the arguments that all searches share, for a batch."""
    return with_constraints(columns(requests, everything=everything))


def beam_searched(
    model: Any,
    requests: Sequence[Request],
    beam_size: int,
    *,
    rows: Sequence[int] | None = None,
    everything: bool = False,
    **options: Any,
) -> Hypotheses:
    """Returns what the package's beam search finds for sentences `rows` of a `TableModel`."""
    rows = list(range(len(requests))) if rows is None else rows
    options |= arguments(requests, everything=everything)
    return beam_search(model.step, model.state(rows, beam_size), beam_size=beam_size, **options)


def next_log_probs(model: Any, sentence: int, tokens: Tokens, request: Request) -> dict[int, float]:
    """Returns the log-probabilities of the tokens that may come next."""
    logits = model.logits(sentence, tokens)
    for token in set(tokens):
        logits[token] *= request.repetition_penalty ** (-1 if logits[token] > 0 else 1)
    log_probs = logits - logits.max() - np.log(np.sum(np.exp(logits - logits.max())))
    time = len(tokens)
    allowed = set(range(len(logits))) - set(NEVER)
    if time >= request.limit:
        allowed = {EOS_ID}
    elif time < len(request.prefix):
        allowed = {request.prefix[time]}
    else:
        if time < request.min_length:
            allowed.discard(EOS_ID)
        allowed = {
            token
            for token in allowed
            if request.allows(tokens, token) and not is_barred((*tokens, token), request)
        }
    return {token: float(log_probs[token]) for token in sorted(allowed)}


def is_barred(tokens: Tokens, request: Request) -> bool:
    """Tells whether the last of the tokens completes something that may not be there."""
    size = request.no_repeat_ngram
    repeats = 0 < size <= len(tokens) and occurs(tokens[-size:], tokens[:-1])
    return repeats or tokens[-1] in request.banned


def occurs(phrase: Tokens, tokens: Tokens) -> bool:
    starts = range(len(tokens) - len(phrase) + 1)
    return any(tokens[start : start + len(phrase)] == phrase for start in starts)


def complete(
    model: Any, sentence: int, tokens: Tokens, log_prob: float, request: Request
) -> Translation:
    """Returns a translation with its score (Wu et al. 2016, eq. 14)."""
    score = log_prob / length_penalty(len(tokens), request)
    if request.beta:
        coverage = np.minimum(model.coverage(sentence, tokens), 1.0)
        score += request.beta * float(np.sum(np.log(coverage)))
    return Translation(score, log_prob, tokens)


def length_penalty(length: int, request: Request) -> float:
    return (length if request.form == "power" else (5 + length) / 6) ** request.alpha


def every_translation(model: Any, sentence: int, request: Request) -> list[Translation]:
    """Returns all translations that the constraints leave, best first."""
    found, open_ = [], [((), 0.0)]
    while open_:
        tokens, so_far = open_.pop()
        for token, gain in next_log_probs(model, sentence, tokens, request).items():
            longer, log_prob = (*tokens, token), so_far + gain
            if token == EOS_ID:
                found.append(complete(model, sentence, longer, log_prob, request))
            else:
                open_.append((longer, log_prob))
    return sorted(found, reverse=True)


def narrow_beam(
    model: Any, sentence: int, request: Request, beam_size: int, *, early_stop: str = "exact"
) -> list[Translation]:
    """Returns the translations that beam search finds, best first."""
    return stopping_beam(model, sentence, request, beam_size, early_stop)[0]


def stopping_beam(
    model: Any, sentence: int, request: Request, beam_size: int, early_stop: str
) -> tuple[list[Translation], int]:
    """Returns the translations that beam search finds, best first, and its number of steps.

    With the early stop "first" it ends when `beam_size` hypotheses have finished, and with "narrow"
    each of these leaves one place less in the beam. "current" also
    waits until no open hypothesis of n tokens would be better, as one of n tokens, than the worst
    of the best `beam_size` finished ones.
    """
    found: list[Translation] = []
    beam: list[tuple[Tokens, float]] = [((), 0.0)]
    steps = 0
    while beam and steps <= request.limit:
        steps += 1
        candidates = [
            ((*tokens, token), so_far + gain)
            for tokens, so_far in beam
            for token, gain in next_log_probs(model, sentence, tokens, request).items()
        ]
        candidates = sorted(candidates, key=lambda each: -each[1])[: 2 * beam_size]
        if early_stop == "narrow":
            candidates = candidates[: beam_size - len(found)]
        found += [
            complete(model, sentence, tokens, log_prob, request)
            for tokens, log_prob in candidates[:beam_size]
            if tokens[-1] == EOS_ID
        ]
        beam = [each for each in candidates if each[0][-1] != EOS_ID][:beam_size]
        found = sorted(found, reverse=True)
        if len(found) < beam_size:
            continue
        worst = found[beam_size - 1].score
        if early_stop in ("first", "narrow") or (
            early_stop == "current"
            and all(
                log_prob / length_penalty(len(tokens), request) <= worst
                for tokens, log_prob in beam
            )
        ):
            break
    return found, steps


def greedy(model: Any, sentence: int, request: Request) -> Translation | None:
    """Returns the translation of the most probable tokens; None where none is left."""
    tokens: Tokens = ()
    log_prob = 0.0
    while tokens[-1:] != (EOS_ID,):
        gains = next_log_probs(model, sentence, tokens, request)
        if not gains:
            return None
        token = max(gains, key=lambda token: gains[token])
        tokens, log_prob = (*tokens, token), log_prob + gains[token]
    return complete(model, sentence, tokens, log_prob, request)


def sampled(
    model: Any,
    sentence: int,
    request: Request,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> dict[Tokens, float]:
    """Returns the probability with which sampling gives each translation."""
    found: dict[Tokens, float] = {}
    open_: list[tuple[Tokens, float]] = [((), 1.0)]
    while open_:
        tokens, so_far = open_.pop()
        if tokens[-1:] == (EOS_ID,):
            found[tokens] = so_far
            continue
        gains = next_log_probs(model, sentence, tokens, request)
        best = sorted(gains, key=lambda token: -gains[token])[: top_k or None]
        weights = {token: math.exp(gains[token] / temperature) for token in best}
        bound, reached, kept = top_p * sum(weights.values()), 0.0, {}
        for token, weight in weights.items():
            if reached < bound:
                kept[token] = weight
            reached += weight
        total = sum(kept.values())
        open_ += [((*tokens, token), so_far * kept[token] / total) for token in kept]
    return found


def tokens_of(found: Hypotheses, row: int, place: int) -> Tokens:
    """Returns a translation that a search of the package found, with EOS."""
    return tuple(found.ids[row, place, : int(found.lengths[row, place])].numpy().tolist())


def assert_found(expected: Sequence[Translation], found: Hypotheses, row: int) -> None:
    """Fails unless a search of the package found the best of what is expected, and no more."""
    count = found.scores.shape[1]
    assert [tokens_of(found, row, place) for place in range(count)] == [
        *(each.tokens for each in expected[:count]),
        *([()] * (count - len(expected))),
    ]
    for place, translation in enumerate(expected[:count]):
        np.testing.assert_allclose(found.scores[row, place], translation.score, rtol=2e-5)
        np.testing.assert_allclose(found.log_probs[row, place], translation.log_prob, rtol=2e-5)
    missing = slice(len(expected), None)
    np.testing.assert_array_equal(found.scores[row, missing], np.float32(-1e9))
    np.testing.assert_array_equal(found.log_probs[row, missing], np.float32(-1e9))
    is_used = np.arange(found.ids.shape[2]) < found.lengths[row].numpy()[:, None]
    np.testing.assert_array_equal(found.ids[row].numpy()[~is_used], PAD_ID)


def assert_same(
    left: Hypotheses, right: Hypotheses, row: int = 0, other: int = 0, rtol: float = 1e-6
) -> None:
    """Fails unless two searches found the same translations of their rows.

    TensorFlow rounds the last few numbers of a tensor differently on a CPU (they do not fill a
    vector register), so scores may differ in the last bit between batches of different size.
    """
    np.testing.assert_array_equal(left.lengths[row], right.lengths[other])
    np.testing.assert_allclose(left.scores[row], right.scores[other], rtol=rtol)
    np.testing.assert_allclose(left.log_probs[row], right.log_probs[other], rtol=rtol)
    for place in range(left.ids.shape[1]):
        assert tokens_of(left, row, place) == tokens_of(right, other, place)
