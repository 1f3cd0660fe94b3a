"""The contract between models and search: what a model hands over and how it is asked.

`Model.encode(source)` gives a `DecodingState`; `Model.step(ids, state)` reads one more token of
each hypothesis and gives the logits of the next one. Search knows nothing else of a model.

A decoder keeps what it remembers of a hypothesis in one of two ways. The state of a recurrent
network is replaced at every step: `recurrent_state`, which search reorders when hypotheses branch
or are dropped. The keys and values of a Transformer are only ever appended to: `kv_cache`, which
search never reorders; `ancestors` says which of its entries a hypothesis descends from.

Shapes: B sentences, W hypotheses (beams) a sentence, S source length, V vocabulary, C tokens of a
subset of it, t tokens read so far, the newest included (or the capacity that was asked for, see
`ancestors`).
"""

from typing import Any, NamedTuple, Protocol

Tensor = Any  # a tensor of whichever backend Keras runs on


class VocabularySubset(NamedTuple):
    """The tokens that `step` gives logits of, in place of all.

    Attributes:
        ids: int32 [C], rising.
        places: int32 [V], where a token is among them; C for the others.
    """

    ids: Tensor
    places: Tensor


class DecodingState(NamedTuple):
    """All that a decoder remembers between two tokens.

    Attributes:
        shared: nest of tensors of any shape that serve all sentences and never change.
        projection: nest of tensors [..., V] that serve all sentences and make logits, laid out for
            decoding; or those of some tokens, [..., C]: `step` then gives logits [B, W, C].
        context: nest of tensors [B, ...] that belong to the source sentence and never change
            (encoder keys and values, masks). All hypotheses of a sentence share them.
        recurrent_state: nest of tensors [B, W, ...] that belong to a hypothesis. Search reorders
            them along W when hypotheses branch or are dropped.
        kv_cache: nest of tensors [B, ..., t * W, any] to which the model adds what each step
            computed for all W hypotheses. Search leaves them as they are, but that it adds room at
            the end of the last dimension but one where the state has a fixed capacity. Where it has
            none, the model may drop what no later token sees.
        coverage: float32 [B, W, S], attention that a hypothesis has paid to each source token,
            summed over its steps, and 1 for padding; None where it was not asked for, or the model
            has no attention. Search reorders it.
        time: int32 [], tokens read before the newest one; set by search before each step. Outside a
            search it is None at first, and a model that needs it keeps count itself.
        ancestors: int32 [B, W, t], set by search before each step: the place, from 0 to W - 1, of
            each hypothesis when its j-th token was read. The last is its own place. Where the
            state has a fixed capacity, t is that, and places not yet filled hold -1. None where
            hypotheses never branch.

    A dimension of size 0 in `recurrent_state` or `kv_cache` is one that grows from step to step.
    """

    shared: Any = ()
    projection: Any = ()
    context: Any = ()
    recurrent_state: Any = ()
    kv_cache: Any = ()
    coverage: Tensor | None = None
    time: Tensor | None = None
    ancestors: Tensor | None = None


class StepFunction(Protocol):
    """One decoding step: ids [B, W] int and the state to logits [B, W, V] and the next state.

    The next state's `time` and `ancestors` mean nothing: search sets them before the next step.
    """

    def __call__(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]: ...


class TranslationModel(Protocol):
    """What translates: a `Seq2SeqModel`, an `Ensemble`, or any other model with these methods.

    One whose decoder attends to the source also has `attention(inputs)`, float32 [B, T, S], which
    aligns translations, and keeps coverage. Whoever needs it asks with `hasattr`.

    Attributes:
        config: the hyperparameters, with `vocabulary_size`, `target_size` and `to_dict()`;
            `values_per_pair` where it is not 1, see `ModelConfig`.
        dtype_policy: Keras's, that the model computes in.
        variables: all that an export has to save.
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
            num_hypotheses: W, hypotheses of a sentence that `step` will be asked for at once.
            capacity: the most tokens that `step` will be asked to read; None for a state that
                grows. With a capacity all shapes stay the same, as XLA needs it.
            coverage: whether to add up the attention to the source; a model without attention
                cannot, and leaves `DecodingState.coverage` at None.

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
