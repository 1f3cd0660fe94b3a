"""Minimum Bayes risk: of many translations of a sentence the one that is most like all of them.

Candidates are samples of the model (Eikema and Aziz 2020) or an n-best list (Kumar and Byrne 2004).
Each is compared with every other one as if that were the reference: a translation that many others
resemble wins over one that is probable and alone.

Shapes: U different texts among the candidates, F n-grams that occur in them, N n-gram orders.
"""

import collections
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from keras_transformer.decoding import NO_SCORE
from keras_transformer.results import DetailedTranslation, Translation
from keras_transformer.tasks import Task

AnyTranslation = TypeVar("AnyTranslation", Translation, DetailedTranslation)
# Returns the utility [U, U] of each text (row) if another one (column) is right.
Utility = Callable[[Sequence[str]], np.ndarray]

_CHRF_ORDER = 6  # characters of the longest n-gram
_CHRF_BETA = 2  # how much recall counts more than precision


def choose(
    candidates: Sequence[AnyTranslation],
    utility: Utility,
    count: int = 1,
    *,
    is_n_best: bool = False,
) -> list[AnyTranslation]:
    """Returns the translations of highest mean utility over all candidates, best first.

    Candidates of the same text are one translation that counts as often as it occurs. Samples count
    alike: the model has drawn probable ones more often. Those of an n-best list count by the
    exponential of their score. Of equally good translations the first candidate wins. A sentence
    for which the search found nothing keeps its one candidate, of score `NO_SCORE`.

    Args:
        candidates: of one sentence, at least one.
        utility: compares their texts.
        count: translations to return; fewer if there are not so many different ones.
        is_n_best: whether candidates count by the exponential of their score.

    Returns:
        Candidates with their mean utility as score.
    """
    first: dict[str, AnyTranslation] = {}
    weight_of: dict[str, float] = collections.defaultdict(float)
    highest = max(candidate.score for candidate in candidates)
    if highest <= NO_SCORE:
        return list(candidates[:1])
    for candidate in candidates:
        first.setdefault(candidate.text, candidate)
        weight_of[candidate.text] += math.exp(candidate.score - highest) if is_n_best else 1.0
    weights = np.array(list(weight_of.values()))  # [U]
    # Rounded, so that the order of a sum does not decide a tie.
    means = np.round(utility(list(first)) @ weights / weights.sum(), 9)  # [U]
    best = np.argsort(-means, kind="stable")[:count]
    chosen = list(first.values())
    return [chosen[index]._replace(score=float(means[index])) for index in best]


def utility_of(name: str, task: Task, source: str) -> Utility:
    """Returns the utility that an option names, of translations as users see them.

    Args:
        name: "chrf", or "metric" for the metric of the task.
        task: completes the outputs of the model.
        source: the sentence.
    """

    def by_metric(texts: Sequence[str]) -> np.ndarray:
        metric = task.metric

        def compare(output: str, reference: str) -> float:
            value = task.evaluate([output], [reference], [source])[metric.name]
            return metric.rank(metric.worst if value is None else float(value))

        return np.array([[compare(output, reference) for reference in texts] for output in texts])

    compare_all = chrf if name == "chrf" else by_metric
    return lambda texts: compare_all(task.postprocess(texts, [source] * len(texts)))


def chrf(texts: Sequence[str]) -> np.ndarray:
    """Returns chrF (Popović 2015), as sacreBLEU computes it, of all pairs of texts.

    The n-grams of each text are counted once for all pairs: 64 captions take a fifth of the time of
    a call of sacreBLEU for each pair.

    Args:
        texts: U of them.

    Returns:
        float64 [U, U] in 0..100: row the translation, column the reference.
    """
    ids: dict[str, int] = {}
    rows = []
    for text in texts:
        letters = "".join(text.split())
        rows.append(
            [
                ids.setdefault(letters[start : start + order], len(ids))
                for order in range(1, _CHRF_ORDER + 1)
                for start in range(len(letters) - order + 1)
            ]
        )
    counts = np.stack([np.bincount(np.array(row, int), minlength=len(ids)) for row in rows])
    counts = counts.astype(np.float32)  # [U, F]; products of such numbers are exact
    lengths = np.array([len(ngram) for ngram in ids])
    is_order = (lengths[:, None] == np.arange(1, _CHRF_ORDER + 1)).astype(np.float32)  # [F, N]
    matches = np.stack([np.minimum(counts, row) @ is_order for row in counts])  # [U, U, N]
    totals = counts.astype(np.float64) @ is_order  # [U, N]
    # Orders that one of the texts is too short for do not count.
    is_counted = (totals[:, None] > 0) & (totals > 0)  # [U, U, N]
    num_orders = np.maximum(is_counted.sum(-1), 1)
    shares = [
        np.where(is_counted, matches / np.maximum(of, 1), 0).sum(-1) / num_orders
        for of in (totals[:, None], totals[None])
    ]
    precision, recall = shares  # [U, U]
    divisor = _CHRF_BETA**2 * precision + recall
    score = (1 + _CHRF_BETA**2) * precision * recall / np.where(divisor > 0, divisor, 1)
    return 100 * score
