"""The interface between models and search.

`model.encode(source)` returns a `DecodingState`; `model.step(ids, state)` reads one more token of
each hypothesis and returns the logits of the next one. Search knows nothing else of a model.

A decoder remembers a hypothesis in one of two ways. A recurrent network replaces its state at
every step: `recurrent_state`, which search reorders when hypotheses branch or are dropped. A
Transformer only appends keys and values: `kv_cache`, which search never reorders; `ancestors` says
which of its entries a hypothesis descends from.

Shapes: B sentences, W hypotheses (beams) of a sentence, S source length, V vocabulary, t tokens
read so far, the newest included (or the capacity, see `ancestors`).
"""

from typing import Any, NamedTuple, Protocol

Tensor = Any  # a tensor of whichever backend Keras runs on

# Logit, log-probability or score of what cannot be chosen: float32's lowest number. Minus infinity
# would fail TensorFlow's check of numbers.
IMPOSSIBLE = -3.4028234663852886e38
NO_SCORE = -1e9  # marks an empty place in an n-best list; finite, since JSON has no infinity


class DecodingState(NamedTuple):
    """All that a decoder remembers between two tokens.

    A dimension of size 0 in `recurrent_state` or `kv_cache` grows from step to step.

    Attributes:
        projection: nest of tensors that serve all sentences and never change: the output
            projection to logits [..., V], laid out for decoding.
        context: nest of tensors [B, ...] of the source sentence that never change (encoder keys
            and values, masks). All hypotheses of a sentence share them.
        recurrent_state: nest of tensors [B, W, ...] of the hypotheses. Search reorders them along
            W when hypotheses branch or are dropped.
        kv_cache: nest of tensors [B, ..., t * W, any] to which the model appends the keys and
            values of each step for all W hypotheses. `encode` decides whether they grow or have a
            fixed capacity; their type shows it (`GrowingSlots`, `FixedSlots`). With a capacity,
            search adds room at the end of the last dimension but one; otherwise the model may drop
            entries that no later token sees.
        coverage: float32 [B, W, S], attention of a hypothesis to each source token, summed over
            its steps, and 1 for padding; None if `encode` was called without, or the model has no
            attention. Search reorders it.
        time: int32 [], tokens read before the newest one. A step counts them; search sets it.
        ancestors: int32 [B, W, t], set by search before each step: the place, from 0 to W - 1, of
            each hypothesis when its j-th token was read. The last is its own place. If the state
            has a fixed capacity, t is that, and places not yet filled hold -1. None if hypotheses
            never branch.
    """

    projection: Any = ()
    context: Any = ()
    recurrent_state: Any = ()
    kv_cache: Any = ()
    coverage: Tensor | None = None
    time: Tensor = 0
    ancestors: Tensor | None = None


class StepFunction(Protocol):
    """One decoding step: ids [B, W] int and the state to logits [B, W, V] and the next state.

    Search ignores the next state's `time` and `ancestors`: it sets them before the next step.
    """

    def __call__(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]: ...


class TranslationModel(Protocol):
    """The interface of models that translate: a `Seq2SeqModel`, an `Ensemble`, or any other.

    A model whose decoder attends to the source also has `attention(inputs)`, float32 [B, T, S],
    which aligns translations, and keeps coverage; callers check with `hasattr`.

    Attributes:
        config: the hyperparameters, with `vocabulary_size`, `target_size` and `to_dict()`;
            `values_per_pair` if it is not 1, see `ModelConfig`.
        dtype_policy: Keras's policy for its computations.
        variables: all variables that an export saves.
    """

    @property
    def config(self) -> Any: ...

    @property
    def dtype_policy(self) -> Any: ...

    @property
    def variables(self) -> Any: ...

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Returns the logits [B, T, V] of inputs "source" [B, S] and "target" [B, T]."""
        ...

    def encode(
        self,
        source: Tensor,
        *,
        num_hypotheses: int = 1,
        capacity: int | None = None,
        coverage: bool = False,
    ) -> DecodingState:
        """Encodes the source once, for any number of calls of `step`.

        Args:
            source: ids [B, S], padded with 0.
            num_hypotheses: W, hypotheses of a sentence that each `step` reads.
            capacity: the most tokens that `step` reads; None for a state that grows. With a
                capacity all shapes stay the same, as XLA needs it.
            coverage: whether to add up the attention to the source; a model without attention
                ignores this.

        Returns:
            The state before the first target token.
        """
        ...

    def step(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Reads one more target token of each hypothesis.

        Args:
            ids: [B, W], the newest tokens; BOS at first. W is static.
            state: from `encode` or the previous `step`. A search whose hypotheses branch, or
                whose state has a capacity, sets its `time` and `ancestors`.

        Returns:
            Logits [B, W, V] of the next tokens, and the next state.
        """
        ...
