"""What a search is asked: the arguments, checked and in the form that a step needs.

Shapes: B sentences, W hypotheses a sentence, L the longest length of a result.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import END_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor
from keras_transformer.errors import InputError
from keras_transformer.search.wishes import Wishes


class Request(NamedTuple):
    """What each sentence asks for, the same at every step; a nest of tensors [B, ...].

    Attributes:
        context: the model's memory of the source sentences.
        start_ids: int32 [B], read before the first symbol.
        barred_ids: int32 [B], never generated: the start symbol, or PAD again where that is END.
        max_lengths: int32 [B], symbols a translation may have before END; 0 or more.
        alpha: float32 [B], exponent of the length penalty.
        beta: float32 [B], weight of the coverage penalty.
        wishes: see `Wishes.given`.
        options: what one kind of search wants to know besides, by name.
    """

    context: Any
    start_ids: Tensor
    barred_ids: Tensor
    max_lengths: Tensor
    alpha: Tensor
    beta: Tensor
    wishes: dict[str, Tensor]
    options: dict[str, Tensor]


class Task(NamedTuple):
    """What is the same for all sentences.

    Attributes:
        step: the model.
        shared: what the model has for all sentences.
        num_hypotheses: W, that the model reads at once.
        length: int or int32 [], L: the largest of the max lengths, and one for END.
        capacities: where shapes must be known, as XLA wants it, what `stages` gives; else empty.
        end_id, pad_id: the symbols that complete a translation and that fill up after it.
    """

    step: StepFunction
    shared: Any
    num_hypotheses: int
    length: Tensor
    capacities: tuple[int, ...]
    end_id: int
    pad_id: int

    def positions(self) -> Tensor:
        """Returns the numbers of a result's symbols, int32 [L]."""
        return tf.range(self.length)


class Memory(NamedTuple):
    """What the model remembers of open hypotheses, and how they came about.

    Attributes:
        ids: int32 [B, W], the newest symbols, not yet read by the model.
        symbols: int32 [B, W, L], all of them, PAD where there is none yet; START is not among them.
        ancestors: int32 [B, W, L], see `DecodingState`; -1 where there is no symbol yet.
        model: the changing parts of the model's `DecodingState`, by name.
    """

    ids: Tensor
    symbols: Tensor
    ancestors: Tensor
    model: dict[str, Any]


def make_task(
    step: StepFunction,
    state: DecodingState,
    num_hypotheses: int,
    *,
    start_ids: Tensor,
    max_lengths: Tensor,
    length_penalty: Tensor,
    coverage_penalty: Tensor = 0.0,
    wishes: Wishes | None = None,
    longest: int | None = None,
    end_id: int = END_ID,
    pad_id: int = PAD_ID,
    own: Mapping[str, Tensor] | None = None,
) -> tuple[Task, Request, Memory]:
    """Returns the arguments of a search in the form that its steps need.

    Those that may be one number for all sentences become [B]. What one kind of search wants to
    know besides is `own`, and becomes `Request.options`.

    Raises:
        InputError: END and PAD are the same symbol.
    """
    if end_id == pad_id:
        raise InputError(f"end_id and pad_id must differ, both are {end_id}; give PAD its own id")
    start_ids = tf.cast(start_ids, tf.int32)
    max_lengths = tf.maximum(tf.cast(max_lengths, tf.int32), 0)
    if longest is None:
        length = tf.maximum(tf.reduce_max(max_lengths), 0) + 1  # 1 where B = 0
    else:
        max_lengths = tf.minimum(max_lengths, longest)
        length = longest + 1

    def one_each(value: Tensor, dtype: Any = tf.float32) -> Tensor:
        return tf.broadcast_to(tf.reshape(tf.cast(value, dtype), [-1]), tf.shape(start_ids))

    request = Request(
        context=state.context,
        start_ids=start_ids,
        # Some models start with END, and END must remain allowed.
        barred_ids=tf.where(start_ids == end_id, pad_id, start_ids),
        max_lengths=max_lengths,
        alpha=one_each(length_penalty),
        beta=one_each(coverage_penalty),
        wishes=(wishes or Wishes()).given(),
        options={name: one_each(value, value.dtype) for name, value in (own or {}).items()},
    )
    task = Task(
        step,
        state.shared,
        num_hypotheses,
        length,
        () if longest is None else stages(longest),
        end_id,
        pad_id,
    )
    shape = (tf.shape(start_ids)[0], num_hypotheses, length)
    model = {"cache": state.cache, "history": state.history}
    if state.coverage is not None:
        model["coverage"] = state.coverage
    memory = Memory(
        ids=tf.repeat(start_ids[:, None], num_hypotheses, axis=1),
        symbols=_fill(shape, pad_id, num_hypotheses, task),
        ancestors=_fill(shape, -1, num_hypotheses, task),
        model=model,
    )
    return task, request, memory


def stages(longest: int) -> tuple[int, ...]:
    """Returns for how many symbols a model's state of fixed capacity has room, stage by stage.

    The first is the capacity that a search wants of `encode`; each next one is twice as large, and
    the last has room for `longest` symbols and END.

    Args:
        longest: the most symbols that a translation may have before END.
    """
    capacities = []
    capacity = 16
    while capacity * 3 <= (longest + 1) * 2:  # a last stage that is hardly larger is not worth it
        capacities.append(capacity)
        capacity *= 2
    return (*capacities, longest + 1)


def read(
    task: Task, request: Request, memory: Memory, time: Tensor, capacity: int | None
) -> tuple[Tensor, Memory]:
    """Has the model read the newest symbols.

    Returns:
        float32 logits [B, W, V], and the memory with what the model remembers now.
    """
    is_now = task.positions() == time  # [L]
    ancestors = tf.where(is_now, tf.range(task.num_hypotheses)[:, None], memory.ancestors)
    state = DecodingState(
        shared=task.shared,
        context=request.context,
        time=time,
        ancestors=ancestors[:, :, : capacity or time + 1],
        **memory.model,
    )
    logits, state = task.step(memory.ids, state)
    logits.set_shape([None, task.num_hypotheses, None])
    model = {name: getattr(state, name) for name in memory.model}
    return tf.cast(logits, tf.float32), memory._replace(ancestors=ancestors, model=model)


def extend(task: Task, memory: Memory, ids: Tensor, parents: Tensor | None, time: Tensor) -> Memory:
    """Adds a symbol to each hypothesis.

    Args:
        task: what is searched for.
        memory: after `read`.
        ids: int32 [B, W], the symbols.
        parents: int32 [B, W], the hypotheses that they continue; None where each its own.
        time: int32 [], symbols that the hypotheses have.
    """
    symbols, ancestors, model = memory.symbols, memory.ancestors, memory.model
    if parents is not None:

        def reorder(leaf: Tensor) -> Tensor:
            return tf.gather(leaf, parents, batch_dims=1)

        symbols, ancestors = reorder(symbols), reorder(ancestors)
        model = {
            name: part if name == "history" else tf.nest.map_structure(reorder, part)
            for name, part in model.items()
        }
    symbols = tf.where(task.positions() == time, ids[..., None], symbols)
    return Memory(ids, symbols, ancestors, model)


def widen(memory: Memory, capacity: int, wanted: int) -> Memory:
    """Gives the model's history room for `wanted` symbols in place of `capacity`."""
    missing = (wanted - capacity) * memory.ids.shape[1]

    def pad(leaf: Tensor) -> Tensor:
        paddings = [[0, 0]] * (leaf.shape.rank - 2) + [[0, missing], [0, 0]]
        return tf.pad(leaf, paddings)

    history = tf.nest.map_structure(pad, memory.model["history"])
    return memory._replace(model=memory.model | {"history": history})


def _fill(shape: Any, value: int, num_hypotheses: int, task: Task) -> Tensor:
    length = task.length if task.capacities else None
    return tf.ensure_shape(tf.fill(shape, value), [None, num_hypotheses, length])
