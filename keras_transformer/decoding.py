"""The contract between models and search: what a model hands over and how it is asked.

`Model.encode(source)` gives a `DecodingState`; `Model.step(ids, state)` reads one more symbol of
each hypothesis and gives the logits of the next one. Search knows nothing else of a model.

Shapes: B sentences, W hypotheses (beams) a sentence, V vocabulary.
"""

from typing import Any, NamedTuple, Protocol

Tensor = Any  # a tensor of whichever backend Keras runs on


class DecodingState(NamedTuple):
    """All that a decoder remembers between two symbols.

    Attributes:
        context: nest of tensors [B, ...] that belong to the source sentence and never change
            (encoder keys and values, masks). All hypotheses of a sentence share them.
        cache: nest of tensors [B, W, ...] that belong to a hypothesis. Search reorders them
            along W when hypotheses branch or die.
    """

    context: Any
    cache: Any


class StepFunction(Protocol):
    """One decoding step: ids [B, W] int and the state to logits [B, W, V] and the next state."""

    def __call__(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]: ...
