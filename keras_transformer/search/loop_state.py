"""What a search loop works on: its fixed parameters, the inputs of each sentence, and its state.

Shapes: B sentences, W hypotheses a sentence, L longest result, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor, VocabularySubset
from keras_transformer.errors import InputError
from keras_transformer.search.constraints import Constraint
from keras_transformer.search.decode_loop import kv_cache_capacities


class SearchSpec(NamedTuple):
    """What is the same for all sentences.

    Attributes:
        step: the model.
        shared, projection: the parts of the model's state that serve all sentences.
        subset: the tokens that the model and the search choose among; None for all.
        places: `VocabularySubset.places` where only the model is limited to a subset; else None.
        num_hypotheses: W.
        result_length: int or int32 [], L: the largest of the max lengths, and one for EOS.
        capacities: of the KV cache, see `kv_cache_capacities`, where shapes must be known before
            the graph runs; else empty.
        constraints: those with `takes_precedence` last.
        eos_id, pad_id: the tokens that complete a translation and that follow it.
        length_penalty_form: see `length_penalty`.
    """

    step: StepFunction
    shared: Any
    projection: Any
    subset: VocabularySubset | None
    places: Tensor | None
    num_hypotheses: int
    result_length: Tensor
    capacities: tuple[int, ...]
    constraints: tuple[Constraint, ...]
    eos_id: int
    pad_id: int
    length_penalty_form: str

    def positions(self) -> Tensor:
        """Returns the positions of a result's tokens, int32 [L]."""
        return tf.range(self.result_length)


class SentenceInputs(NamedTuple):
    """What differs from sentence to sentence, the same at every step; a nest of tensors [B, ...].

    Attributes:
        context: the part of the model's state that belongs to the source sentences.
        bos_ids: int32 [B], read before the first token.
        forbidden_ids: int32 [B], never generated: BOS, or PAD where BOS is EOS.
        max_lengths: int32 [B], tokens a translation may have before EOS; 0 or more.
        alpha: float32 [B], exponent of the length penalty.
        beta: float32 [B], weight of the coverage penalty.
        constraints: the inputs of each constraint.
        options: parameters of one kind of search only, by name.
    """

    context: Any
    bos_ids: Tensor
    forbidden_ids: Tensor
    max_lengths: Tensor
    alpha: Tensor
    beta: Tensor
    constraints: tuple[Any, ...]
    options: dict[str, Tensor]


class LoopState(NamedTuple):
    """Open hypotheses and what is remembered of them; changes at every step.

    Attributes:
        ids: int32 [B, W], the newest tokens, not yet read by the model.
        tokens: int32 [B, W, L], all of them, PAD where there is none yet; BOS is not among them.
        ancestors: int32 [B, W, L], see `DecodingState`; -1 where there is no token yet.
        model: the changing parts of the model's `DecodingState`, by name.
        constraints: the state of each constraint.
    """

    ids: Tensor
    tokens: Tensor
    ancestors: Tensor
    model: dict[str, Any]
    constraints: tuple[Any, ...]


def prepare_search(
    step: StepFunction,
    state: DecodingState,
    num_hypotheses: int,
    *,
    bos_ids: Tensor,
    max_lengths: Tensor,
    length_penalty: Tensor,
    length_penalty_form: str = "gnmt",
    coverage_penalty: Tensor = 0.0,
    constraints: Sequence[Constraint] = (),
    max_length_bound: int | None = None,
    vocabulary: VocabularySubset | None = None,
    reads_logits: bool = False,
    eos_id: int = EOS_ID,
    pad_id: int = PAD_ID,
    options: Mapping[str, Tensor] | None = None,
) -> tuple[SearchSpec, SentenceInputs, LoopState]:
    """Returns the arguments of a search in the form that its loop needs.

    `options` are parameters of one kind of search only, and `reads_logits` says whether it reads
    those of all tokens; others are those of `beam_search`.

    Raises:
        InputError: EOS and PAD are the same token.
    """
    if eos_id == pad_id:
        raise InputError(f"eos_id and pad_id must differ, both are {eos_id}; give PAD its own id")
    bos_ids = tf.cast(bos_ids, tf.int32)
    batch_size = tf.shape(bos_ids)[0]
    max_lengths = tf.maximum(tf.cast(max_lengths, tf.int32), 0)
    if max_length_bound is None:
        result_length = tf.maximum(tf.reduce_max(max_lengths), 0) + 1  # 1 where B = 0
    else:
        max_lengths = tf.minimum(max_lengths, max_length_bound)
        result_length = max_length_bound + 1
    ordered = tuple(sorted(constraints, key=lambda constraint: constraint.takes_precedence))
    inputs = SentenceInputs(
        context=state.context,
        bos_ids=bos_ids,
        # Some models start with EOS, and EOS must remain allowed.
        forbidden_ids=tf.where(bos_ids == eos_id, pad_id, bos_ids),
        max_lengths=max_lengths,
        alpha=repeat_for_each_sentence(tf.cast(length_penalty, tf.float32), batch_size),
        beta=repeat_for_each_sentence(tf.cast(coverage_penalty, tf.float32), batch_size),
        constraints=repeat_for_each_sentence(tuple(each.inputs for each in ordered), batch_size),
        options=repeat_for_each_sentence(dict(options or {}), batch_size),
    )
    capacities = () if max_length_bound is None else kv_cache_capacities(max_length_bound)
    fixed = (result_length, capacities, ordered, eos_id, pad_id, length_penalty_form)
    subset, places = vocabulary, None
    if subset is not None and (reads_logits or any(each.reads_logits for each in ordered)):
        places, subset = subset.places, None
    spec = SearchSpec(step, state.shared, state.projection, subset, places, num_hypotheses, *fixed)
    return spec, inputs, _empty_hypotheses(spec, inputs, state)


def repeat_for_each_sentence(values: Any, batch_size: Tensor) -> Any:
    """Returns a nest whose leaves are [B, ...]; those of shape [] or [1, ...] are repeated."""

    def repeat(value: Tensor) -> Tensor:
        value = tf.convert_to_tensor(value)
        if value.shape.rank == 0:
            value = value[None]
        if value.shape.rank is None or value.shape[0] != 1:
            return value
        return tf.broadcast_to(value, tf.concat([[batch_size], tf.shape(value)[1:]], axis=0))

    return tf.nest.map_structure(repeat, values)


def _empty_hypotheses(spec: SearchSpec, inputs: SentenceInputs, state: DecodingState) -> LoopState:
    """Returns the state before the first step."""
    length = spec.result_length if spec.capacities else None  # static or unknown

    def fill(value: int) -> Tensor:
        shape = (tf.shape(inputs.bos_ids)[0], spec.num_hypotheses, spec.result_length)
        return tf.ensure_shape(tf.fill(shape, value), [None, spec.num_hypotheses, length])

    model = {"recurrent_state": state.recurrent_state, "kv_cache": state.kv_cache}
    if state.coverage is not None:
        model["coverage"] = state.coverage
    return LoopState(
        ids=tf.repeat(inputs.bos_ids[:, None], spec.num_hypotheses, axis=1),
        tokens=fill(spec.pad_id),
        ancestors=fill(-1),
        model=model,
        constraints=tuple(
            constraint.initial_state(its_inputs, spec.num_hypotheses)
            for constraint, its_inputs in zip(spec.constraints, inputs.constraints, strict=True)
        ),
    )
