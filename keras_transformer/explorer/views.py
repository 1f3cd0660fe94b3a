"""What a model does with a sentence: its translation, all of its attention, and its search.

Shapes: L layers, H heads, Q tokens that attend, K tokens that are attended to; W hypotheses,
V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, SearchConfig
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.inference import ModelFunctions
from keras_transformer.search import Constraint, Hypotheses, OpenHypotheses
from keras_transformer.search.scoring import is_possible
from keras_transformer.tasks import Task
from keras_transformer.text import Vocabulary

KINDS = ("encoder", "decoder", "cross")
_NUM_CANDIDATES = 5  # shown of each hypothesis, if search did not keep more

Prefix = tuple[int, ...]


class Node(NamedTuple):
    """A token that the search considered after those before it."""

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


class View(NamedTuple):
    """One model's translation of one sentence.

    Attributes:
        model: the name of the model.
        sentence: the source text.
        translation: the best one, as the command translate writes it.
        source: the source tokens with EOS.
        read: the tokens that the decoder reads, BOS first.
        written: the tokens that it predicts at these places, EOS last.
        attentions: float32 [L, H, Q, K] for those of `KINDS` that the model has. Rows of "cross"
            belong to the tokens `written`, as in the signature `attention`.
        tree: the search, if it was recorded.
        steps: how many steps each token of "source" and of "target", those `read`, took, if these
            differ.
    """

    model: str
    sentence: str
    translation: str
    source: list[str]
    read: list[str]
    written: list[str]
    attentions: dict[str, np.ndarray]
    tree: SearchTree | None = None
    steps: dict[str, list[int]] = {}  # noqa: RUF012 (not changed)

    def tokens(self, kind: str) -> tuple[list[str], list[str]]:
        """Returns the tokens of the rows and of the columns of one kind of attention."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.read, self.read),
            "cross": (self.written, self.source),
        }[kind]


Inspector = Callable[[str], View]  # of one model, for any sentence


def inspect_model(
    name: str,
    model: Any,
    vocabularies: tuple[Vocabulary, Vocabulary],
    task: Task,
    search: SearchConfig,
) -> Inspector:
    """Makes a function that translates a sentence with a `Seq2SeqModel` and shows all attention."""
    if search.method == "beam":
        search = search.replace(num_translations=search.beam_size)
    functions = ModelFunctions(model, *vocabularies, search, xla=False, task=task)

    def inspect(sentence: str) -> View:
        source = functions.read(tf.constant([sentence]))
        if not int(source.lengths[0]):
            raise InputError("the sentence is empty; give one with words")
        recorder = SearchRecorder()
        hypotheses = functions.search_ids(source.ids, constraints=[recorder])
        tree = make_tree(recorder.steps, hypotheses, vocabularies[1])
        if not tree.translations:
            raise InputError(
                f"{name}: the search found no translation of {sentence[:40]!r}; change its options"
            )
        written = hypotheses.ids[0, 0, : hypotheses.lengths[0, 0]].numpy().tolist()
        read = [BOS_ID, *written][:-1]
        inputs = {"source": source.ids, "target": tf.constant([read])}
        weights = model.attentions(inputs)
        if not set(KINDS) & weights.keys():
            raise InputError(f"{name} has no attention to show")
        text = source.text.numpy().item().decode()
        best = functions.finish(hypotheses.ids[:, :1], source).numpy().item().decode()
        return View(
            name,
            sentence,
            task.postprocess([best], [text])[0],
            vocabularies[0].pieces(source.ids.numpy()[0].tolist()),
            vocabularies[1].pieces(read),
            vocabularies[1].pieces(written),
            {kind: np.asarray(weights[kind])[:, 0] for kind in KINDS if kind in weights},
            tree,
            _steps(model, inputs),
        )

    return inspect


def _steps(model: Any, inputs: dict[str, tf.Tensor]) -> dict[str, list[int]]:
    values = model.token_values(inputs) if hasattr(model, "token_values") else {}
    steps = {
        name.removesuffix("_steps"): np.asarray(counts)[0].astype(int).tolist()
        for name, counts in values.items()
        if name.endswith("_steps")
    }
    return steps if any(len(set(counts)) > 1 for counts in steps.values()) else {}


class SearchStep(NamedTuple):
    """The open hypotheses of one step."""

    prefixes: list[Prefix]  # their tokens, W at most
    log_probs: np.ndarray  # float32 [W, V], of the next token; see `is_possible` for forbidden ones


class SearchRecorder(Constraint):
    """Forbids nothing, and records each step of an eager search for one sentence in `steps`.

    As the last of the constraints it sees what the others forbid.
    """

    inputs = ()

    def __init__(self) -> None:
        self.steps: list[SearchStep] = []

    def forbid(self, logits: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        rows = hypotheses.tokens[0, :, : hypotheses.time].numpy().tolist()
        # Rows without a hypothesis, all but one at first, contain only PAD.
        places = {
            tuple(row): place
            for place, row in reversed([*enumerate(rows)])
            if not {PAD_ID, EOS_ID} & {*row}
        }
        prefixes = sorted(places, key=places.__getitem__)
        log_probs = logits[0].numpy()
        self.steps.append(SearchStep(prefixes, log_probs[[places[prefix] for prefix in prefixes]]))
        return logits


def make_tree(
    steps: Sequence[SearchStep], hypotheses: Hypotheses, target: Vocabulary
) -> SearchTree:
    """Returns the tree of a search for one sentence, of the steps of `SearchRecorder`."""
    lengths = hypotheses.lengths[0].numpy()
    ids = [
        tuple(row[:length]) for row, length in zip(hypotheses.ids[0].numpy(), lengths, strict=True)
    ]
    finished = {tuple(map(int, row)): place for place, row in enumerate(ids) if row}
    nodes = [Node(-1, "", 0.0, "kept")]
    index: dict[Prefix, int] = {(): 0}
    for step, next_step in zip(steps, [*steps[1:], None], strict=True):
        survivors = set(next_step.prefixes) if next_step else set()
        for prefix, log_probs in zip(step.prefixes, step.log_probs, strict=True):
            if prefix not in index:  # it is forbidden, and stands where the beam had room
                continue
            for token in _candidates(prefix, log_probs, survivors | finished.keys()):
                child = (*prefix, token)
                outcome = "kept" if child in survivors else "dropped"
                outcome = "finished" if child in finished else outcome
                index[child] = len(nodes)
                (piece,) = target.pieces([token])
                nodes.append(Node(index[prefix], piece, float(log_probs[token]), outcome))
    for row, place in finished.items():
        if row not in index:  # the search forced an EOS that a constraint forbids
            parent, total = index[row[:-1]], float(hypotheses.log_probs[0, place])
            index[row] = len(nodes)
            (piece,) = target.pieces([row[-1]])
            nodes.append(Node(parent, piece, total - _sum_to(nodes, parent), "finished"))
    texts = target.decode([[*row] for row in finished])
    scores = hypotheses.scores[0].numpy()
    return SearchTree(
        nodes,
        [
            FoundTranslation(text, float(scores[place]), index[row])
            for text, (row, place) in zip(texts, finished.items(), strict=True)
        ],
    )


def _sum_to(nodes: Sequence[Node], leaf: int) -> float:
    """Returns the log-probability of all tokens from the root to a node."""
    total = 0.0
    while leaf >= 0:
        total += nodes[leaf].log_prob
        leaf = nodes[leaf].parent
    return total


def _candidates(prefix: Prefix, log_probs: np.ndarray, chosen: set[Any]) -> list[int]:
    """Returns the next tokens to show, the most probable first."""
    count = min(_NUM_CANDIDATES, len(log_probs))
    best = np.flatnonzero(log_probs >= np.partition(log_probs, -count)[-count])
    best = best[np.argsort(-log_probs[best], kind="stable")][:count]
    followed = [row[-1] for row in chosen if row[:-1] == prefix]
    tokens = np.union1d(best, np.array(followed, best.dtype))
    tokens = tokens[np.argsort(-log_probs[tokens], kind="stable")]
    return [int(token) for token in tokens if is_possible(log_probs[token])]


def head_statistics(attentions: Sequence[np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """Returns statistics of each head: means over the tokens of all sentences, each [L, H].

    A row's own place among the columns is on the diagonal of the matrix, from corner to corner.

    Args:
        attentions: of each sentence, [L, H, Q, K], rows that sum to 1.
        kind: one of `KINDS`.

    Returns:
        "previous", "diagonal", "next": the weight on the place before the row's own, on it, and
        after it; "end": the weight on EOS, or on BOS for "decoder", which reads no EOS; "entropy":
        in bits; "distance": the mean distance from the row's own place in tokens.
    """
    rows = [_row_statistics(weights, end=0 if kind == "decoder" else -1) for weights in attentions]
    joined = {name: np.concatenate([row[name] for row in rows], axis=-1) for name in rows[0]}
    return {
        name: np.nansum(values, axis=-1) / np.maximum(np.sum(~np.isnan(values), axis=-1), 1)
        for name, values in joined.items()
    }


def _row_statistics(weights: np.ndarray, end: int) -> dict[str, np.ndarray]:
    """Returns the statistics of each row, [L, H, Q]; NaN if a row has no such place."""
    num_rows, num_columns = weights.shape[2:]
    rows = np.arange(num_rows)
    columns = np.rint(rows * (num_columns - 1) / max(num_rows - 1, 1)).astype(int)  # [Q]
    padded = np.pad(weights, [(0, 0)] * 3 + [(1, 1)], constant_values=np.nan)
    logarithms = np.log2(weights, where=weights > 0, out=np.zeros_like(weights))
    distances = np.abs(np.arange(num_columns) - columns[:, None])  # [Q, K]
    return {
        "previous": padded[:, :, rows, columns],
        "diagonal": padded[:, :, rows, columns + 1],
        "next": padded[:, :, rows, columns + 2],
        "end": weights[..., end],
        "entropy": -np.sum(weights * logarithms, axis=-1),
        "distance": np.sum(weights * distances, axis=-1),
    }
