"""What each step of a search does with the state of its loop.

Shapes: B sentences, W hypotheses a sentence, L longest result, V vocabulary, C tokens of a subset.
"""

import tensorflow as tf

from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.search.loop_state import LoopState, SearchSpec, SentenceInputs


def read(
    spec: SearchSpec,
    inputs: SentenceInputs,
    loop_state: LoopState,
    time: Tensor,
    capacity: int | None,
) -> tuple[Tensor, LoopState]:
    """Has the model read the newest tokens.

    Returns:
        float32 logits [B, W, V] of the next tokens, or [B, W, C] of those of `spec.subset`; and the
        state after reading.
    """
    is_now = spec.positions() == time  # [L]
    ancestors = tf.where(is_now, tf.range(spec.num_hypotheses)[:, None], loop_state.ancestors)
    state = DecodingState(
        shared=spec.shared,
        projection=spec.projection,
        context=inputs.context,
        time=time,
        ancestors=ancestors[:, :, : capacity or time + 1],
        **loop_state.model,
    )
    logits, state = spec.step(loop_state.ids, state)
    logits.set_shape([None, spec.num_hypotheses, None])
    model = {name: getattr(state, name) for name in loop_state.model}
    logits = tf.cast(logits, tf.float32)
    if spec.places is not None:
        padding = [[0, 0], [0, 0], [0, 1]]
        logits = tf.pad(logits, padding, constant_values=-float("inf"))
        logits = tf.gather(logits, spec.places, axis=2)
    return logits, loop_state._replace(ancestors=ancestors, model=model)


def extend(
    spec: SearchSpec,
    inputs: SentenceInputs,
    loop_state: LoopState,
    ids: Tensor,
    parents: Tensor | None,
    time: Tensor,
) -> LoopState:
    """Adds a token to each hypothesis.

    Args:
        spec, inputs: of the search.
        loop_state: after `read`.
        ids: int32 [B, W], the tokens.
        parents: int32 [B, W], the hypotheses that they continue; None where each its own.
        time: int32 [], tokens that the hypotheses have.
    """
    if parents is not None:
        kept = {name: part for name, part in loop_state.model.items() if name != "kv_cache"}
        reordered = (loop_state.tokens, loop_state.ancestors, kept, loop_state.constraints)
        tokens, ancestors, kept, states = tf.nest.map_structure(
            lambda leaf: tf.gather(leaf, parents, batch_dims=1), reordered
        )
        loop_state = LoopState(ids, tokens, ancestors, loop_state.model | kept, states)
    return loop_state._replace(
        ids=ids,
        tokens=tf.where(spec.positions() == time, ids[..., None], loop_state.tokens),
        constraints=tuple(
            constraint.update(state, ids, its_inputs)
            for constraint, state, its_inputs in zip(
                spec.constraints, loop_state.constraints, inputs.constraints, strict=True
            )
        ),
    )


def grow_cache(loop_state: LoopState, capacity: int, new_capacity: int) -> LoopState:
    """Gives the model's KV cache room for `new_capacity` tokens in place of `capacity`."""
    missing = (new_capacity - capacity) * loop_state.ids.shape[1]

    def pad(leaf: Tensor) -> Tensor:
        paddings = [[0, 0]] * (leaf.shape.rank - 2) + [[0, missing], [0, 0]]
        return tf.pad(leaf, paddings)

    kv_cache = tf.nest.map_structure(pad, loop_state.model["kv_cache"])
    return loop_state._replace(model=loop_state.model | {"kv_cache": kv_cache})
