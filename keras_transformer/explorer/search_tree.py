"""The hypotheses that a search went through, as a tree of tokens.

Shapes: W hypotheses, V vocabulary, L longest result.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.search import Constraint, Hypotheses, OpenHypotheses
from keras_transformer.text import Vocabulary

_NUM_CANDIDATES = 5  # of each hypothesis that are shown, if search did not choose more of them

Prefix = tuple[int, ...]


class Step(NamedTuple):
    """The open hypotheses of one step."""

    prefixes: list[Prefix]  # their tokens, W at most
    log_probs: np.ndarray  # float32 [W, V], of the next token; -inf where forbidden


class SearchRecorder(Constraint):
    """Forbids nothing, and keeps what an eager search for one sentence asks it about.

    Attributes:
        steps: those so far.
    """

    inputs = ()
    takes_precedence = True  # asked last, it sees what the others forbid

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def restrict(self, allowed: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        rows = hypotheses.tokens[0, :, : hypotheses.time].numpy().tolist()
        # Rows without a hypothesis, all but one at first, hold nothing but PAD.
        places = {
            tuple(row): place
            for place, row in reversed([*enumerate(rows)])
            if not {PAD_ID, EOS_ID} & {*row}
        }
        prefixes = sorted(places, key=places.__getitem__)
        log_probs = tf.nn.log_softmax(hypotheses.logits[0])
        log_probs = tf.where(allowed[0] > -np.inf, log_probs, -np.inf).numpy()
        log_probs[:, [PAD_ID, BOS_ID]] = -np.inf
        self.steps.append(Step(prefixes, log_probs[[places[prefix] for prefix in prefixes]]))
        return allowed


class Node(NamedTuple):
    """A token that was considered after those before it."""

    parent: int  # its index in the tree; -1 for the root, which has no token
    token: str
    log_prob: float  # of the token after its parent
    outcome: str  # "kept" in the beam, "finished" (EOS of a translation), or "dropped"


class FoundTranslation(NamedTuple):
    """One of the translations, best first."""

    text: str
    score: float
    node: int  # of its EOS


class SearchTree(NamedTuple):
    """The nodes, each after its parent and the better of two siblings first."""

    nodes: list[Node]
    translations: list[FoundTranslation]


def make_tree(steps: Sequence[Step], found: Hypotheses, target: Vocabulary) -> SearchTree:
    """Returns the tree of a search for one sentence.

    Args:
        steps: by `SearchRecorder`.
        found: its result.
        target: the vocabulary.
    """
    lengths = found.lengths[0].numpy()
    ids = [tuple(row[:length]) for row, length in zip(found.ids[0].numpy(), lengths, strict=True)]
    finished = {tuple(map(int, row)): place for place, row in enumerate(ids) if row}
    nodes = [Node(-1, "", 0.0, "kept")]
    index: dict[Prefix, int] = {(): 0}
    for step, next_step in zip(steps, [*steps[1:], None], strict=True):
        kept = set(next_step.prefixes) if next_step else set()
        for prefix, log_probs in zip(step.prefixes, step.log_probs, strict=True):
            for token in _candidates(prefix, log_probs, kept | finished.keys()):
                child = (*prefix, token)
                outcome = "kept" if child in kept else "dropped"
                outcome = "finished" if child in finished else outcome
                index[child] = len(nodes)
                (piece,) = target.pieces([token])
                nodes.append(Node(index[prefix], piece, float(log_probs[token]), outcome))
    texts = target.decode([[*row] for row in finished])
    scores = found.scores[0].numpy()
    return SearchTree(
        nodes,
        [
            FoundTranslation(text, float(scores[place]), index[row])
            for text, (row, place) in zip(texts, finished.items(), strict=True)
        ],
    )


def _candidates(prefix: Prefix, log_probs: np.ndarray, chosen: set[Any]) -> list[int]:
    """Returns the next tokens to show, the most probable first."""
    best = np.argsort(-log_probs, kind="stable")
    own = {row[-1] for row in chosen if row[:-1] == prefix}
    return [
        int(token)
        for place, token in enumerate(best)
        if token in own or (place < _NUM_CANDIDATES and log_probs[token] > -np.inf)
    ]
