"""What a search is asked: the arguments, checked and in the form that a step needs.

Shapes: B sentences, W hypotheses a sentence, L the longest length of a result.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor
from keras_transformer.errors import InputError
from keras_transformer.search.constraints import Constraints


class SentenceInputs(NamedTuple):
    """What each sentence asks for, the same at every step; a nest of tensors [B, ...].

    Attributes:
        context: the model's loop_state of the source sentences.
        bos_ids: int32 [B], read before the first token.
        barred_ids: int32 [B], never generated: BOS, or PAD again where that is EOS.
        max_lengths: int32 [B], tokens a translation may have before EOS; 0 or more.
        alpha: float32 [B], exponent of the length penalty.
        beta: float32 [B], weight of the coverage penalty.
        constraints: see `Constraints.given`.
        options: what one kind of search wants to know besides, by name.
    """

    context: Any
    bos_ids: Tensor
    barred_ids: Tensor
    max_lengths: Tensor
    alpha: Tensor
    beta: Tensor
    constraints: dict[str, Tensor]
    options: dict[str, Tensor]


class SearchSpec(NamedTuple):
    """What is the same for all sentences.

    Attributes:
        step: the model.
        shared: what the model has for all sentences.
        num_hypotheses: W, that the model reads at once.
        length: int or int32 [], L: the largest of the max lengths, and one for EOS.
        capacities: where shapes must be known, as XLA wants it, what `stages` gives; else empty.
        eos_id, pad_id: the tokens that complete a translation and that fill up after it.
    """

    step: StepFunction
    shared: Any
    num_hypotheses: int
    length: Tensor
    capacities: tuple[int, ...]
    eos_id: int
    pad_id: int

    def positions(self) -> Tensor:
        """Returns the numbers of a result's tokens, int32 [L]."""
        return tf.range(self.length)


class LoopState(NamedTuple):
    """What the model remembers of open hypotheses, and how they came about.

    Attributes:
        ids: int32 [B, W], the newest tokens, not yet read by the model.
        tokens: int32 [B, W, L], all of them, PAD where there is none yet; BOS is not among them.
        ancestors: int32 [B, W, L], see `DecodingState`; -1 where there is no token yet.
        model: the changing parts of the model's `DecodingState`, by name.
    """

    ids: Tensor
    tokens: Tensor
    ancestors: Tensor
    model: dict[str, Any]


def prepare_search(
    step: StepFunction,
    state: DecodingState,
    num_hypotheses: int,
    *,
    bos_ids: Tensor,
    max_lengths: Tensor,
    length_penalty: Tensor,
    coverage_penalty: Tensor = 0.0,
    constraints: Constraints | None = None,
    longest: int | None = None,
    eos_id: int = EOS_ID,
    pad_id: int = PAD_ID,
    own: Mapping[str, Tensor] | None = None,
) -> tuple[SearchSpec, SentenceInputs, LoopState]:
    """Returns the arguments of a search in the form that its steps need.

    Those that may be one number for all sentences become [B]. What one kind of search wants to
    know besides is `own`, and becomes `SentenceInputs.options`.

    Raises:
        InputError: EOS and PAD are the same token.
    """
    if eos_id == pad_id:
        raise InputError(f"eos_id and pad_id must differ, both are {eos_id}; give PAD its own id")
    bos_ids = tf.cast(bos_ids, tf.int32)
    max_lengths = tf.maximum(tf.cast(max_lengths, tf.int32), 0)
    if longest is None:
        length = tf.maximum(tf.reduce_max(max_lengths), 0) + 1  # 1 where B = 0
    else:
        max_lengths = tf.minimum(max_lengths, longest)
        length = longest + 1

    def one_each(value: Tensor, dtype: Any = tf.float32) -> Tensor:
        return tf.broadcast_to(tf.reshape(tf.cast(value, dtype), [-1]), tf.shape(bos_ids))

    inputs = SentenceInputs(
        context=state.context,
        bos_ids=bos_ids,
        # Some models start with EOS, and EOS must remain allowed.
        barred_ids=tf.where(bos_ids == eos_id, pad_id, bos_ids),
        max_lengths=max_lengths,
        alpha=one_each(length_penalty),
        beta=one_each(coverage_penalty),
        constraints=(constraints or Constraints()).given(),
        options={name: one_each(value, value.dtype) for name, value in (own or {}).items()},
    )
    spec = SearchSpec(
        step,
        state.shared,
        num_hypotheses,
        length,
        () if longest is None else stages(longest),
        eos_id,
        pad_id,
    )
    shape = (tf.shape(bos_ids)[0], num_hypotheses, length)
    model = {"recurrent_state": state.recurrent_state, "kv_cache": state.kv_cache}
    if state.coverage is not None:
        model["coverage"] = state.coverage
    loop_state = LoopState(
        ids=tf.repeat(bos_ids[:, None], num_hypotheses, axis=1),
        tokens=_fill(shape, pad_id, num_hypotheses, spec),
        ancestors=_fill(shape, -1, num_hypotheses, spec),
        model=model,
    )
    return spec, inputs, loop_state


def stages(longest: int) -> tuple[int, ...]:
    """Returns for how many tokens a model's state of fixed capacity has room, stage by stage.

    The first is the capacity that a search wants of `encode`; each next one is twice as large, and
    the last has room for `longest` tokens and EOS.

    Args:
        longest: the most tokens that a translation may have before EOS.
    """
    capacities = []
    capacity = 16
    while capacity * 3 <= (longest + 1) * 2:  # a last stage that is hardly larger is not worth it
        capacities.append(capacity)
        capacity *= 2
    return (*capacities, longest + 1)


def read(
    spec: SearchSpec,
    inputs: SentenceInputs,
    loop_state: LoopState,
    time: Tensor,
    capacity: int | None,
) -> tuple[Tensor, LoopState]:
    """Has the model read the newest tokens.

    Returns:
        float32 logits [B, W, V], and the loop_state with what the model remembers now.
    """
    is_now = spec.positions() == time  # [L]
    ancestors = tf.where(is_now, tf.range(spec.num_hypotheses)[:, None], loop_state.ancestors)
    state = DecodingState(
        shared=spec.shared,
        context=inputs.context,
        time=time,
        ancestors=ancestors[:, :, : capacity or time + 1],
        **loop_state.model,
    )
    logits, state = spec.step(loop_state.ids, state)
    logits.set_shape([None, spec.num_hypotheses, None])
    model = {name: getattr(state, name) for name in loop_state.model}
    return tf.cast(logits, tf.float32), loop_state._replace(ancestors=ancestors, model=model)


def extend(
    spec: SearchSpec, loop_state: LoopState, ids: Tensor, parents: Tensor | None, time: Tensor
) -> LoopState:
    """Adds a token to each hypothesis.

    Args:
        spec: what is searched for.
        loop_state: after `read`.
        ids: int32 [B, W], the tokens.
        parents: int32 [B, W], the hypotheses that they continue; None where each its own.
        time: int32 [], tokens that the hypotheses have.
    """
    tokens, ancestors, model = loop_state.tokens, loop_state.ancestors, loop_state.model
    if parents is not None:

        def reorder(leaf: Tensor) -> Tensor:
            return tf.gather(leaf, parents, batch_dims=1)

        tokens, ancestors = reorder(tokens), reorder(ancestors)
        model = {
            name: part if name == "kv_cache" else tf.nest.map_structure(reorder, part)
            for name, part in model.items()
        }
    tokens = tf.where(spec.positions() == time, ids[..., None], tokens)
    return LoopState(ids, tokens, ancestors, model)


def widen(loop_state: LoopState, capacity: int, wanted: int) -> LoopState:
    """Gives the model's kv_cache room for `wanted` tokens in place of `capacity`."""
    missing = (wanted - capacity) * loop_state.ids.shape[1]

    def pad(leaf: Tensor) -> Tensor:
        paddings = [[0, 0]] * (leaf.shape.rank - 2) + [[0, missing], [0, 0]]
        return tf.pad(leaf, paddings)

    kv_cache = tf.nest.map_structure(pad, loop_state.model["kv_cache"])
    return loop_state._replace(model=loop_state.model | {"kv_cache": kv_cache})


def _fill(shape: Any, value: int, num_hypotheses: int, spec: SearchSpec) -> Tensor:
    length = spec.length if spec.capacities else None
    return tf.ensure_shape(tf.fill(shape, value), [None, num_hypotheses, length])
