"""Hypotheses that go straight on and never branch: what greedy search and sampling share.

Shapes: B sentences, W hypotheses a sentence, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search import scoring
from keras_transformer.search.hypotheses import Finished, Hypotheses, best_of, make_hypotheses
from keras_transformer.search.loop import repeat
from keras_transformer.search.scoring import IMPOSSIBLE
from keras_transformer.search.task import Memory, Request, Task, extend, read, widen
from keras_transformer.search.wishes import adjust, restrict

# From logits [B, W, V], the same with what is forbidden at -inf, time and request to the next ids
# and their log-probabilities, [B, W].
Choose = Callable[[Tensor, Tensor, Tensor, Request], tuple[Tensor, Tensor]]


class _Lines(NamedTuple):
    log_probs: Tensor  # float32 [B, W]
    scores: Tensor  # float32 [B, W], of those that are complete
    lengths: Tensor  # int32 [B, W]: END included; 0 while the translation is open
    memory: Memory


def search_straight(task: Task, request: Request, memory: Memory, choose: Choose) -> Hypotheses:
    """Returns the W translations of each sentence whose symbols `choose` takes, best first."""
    zeros = tf.zeros_like(memory.ids)
    no_scores = tf.fill(tf.shape(zeros), IMPOSSIBLE)
    finished = repeat(
        lambda time, request, lines, capacity: _advance(
            time, request, lines, capacity, task, choose
        ),
        request,
        _Lines(tf.zeros_like(no_scores), no_scores, zeros, memory),
        is_open=lambda lines: tf.reduce_any(lines.lengths == 0, axis=1),
        result_of=lambda lines: Finished(
            lines.scores, lines.log_probs, lines.memory.symbols, lines.lengths
        ),
        widen=lambda lines, *sizes: lines._replace(memory=widen(lines.memory, *sizes)),
        most=task.length,
        capacities=task.capacities,
    )
    return make_hypotheses(best_of([finished], task.num_hypotheses), task)


def _advance(
    time: Tensor,
    request: Request,
    lines: _Lines,
    capacity: int | None,
    task: Task,
    choose: Choose,
) -> _Lines:
    """Appends a symbol to every open translation; finished ones stay as they are."""
    logits, memory = read(task, request, lines.memory, time, capacity)
    logits = adjust(logits, memory.symbols, request.wishes)
    allowed, _ = restrict(
        logits, memory.symbols, time, request.wishes, request.max_lengths, task.end_id
    )
    ids, gains = choose(logits, allowed, time, request)
    is_open = lines.lengths == 0
    has_ended = is_open & (ids == task.end_id)
    log_probs = lines.log_probs + tf.where(is_open, gains, 0.0)
    coverage = memory.model.get("coverage")
    scores = scoring.final_scores(log_probs, time + 1, coverage, request)
    return _Lines(
        log_probs=log_probs,
        scores=tf.where(has_ended, scores, lines.scores),
        lengths=tf.where(has_ended, time + 1, lines.lengths),
        memory=extend(task, memory, ids, None, time),
    )
