"""Several models that translate together, by the mean of their probabilities.

Shapes: B batch, S source length, T target length, W hypotheses a sentence, V target vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_transformer.decoding import DecodingState, Tensor, TranslationModel
from keras_transformer.errors import InputError


class Ensemble:
    """Models of one vocabulary as one model: checkpoints of a run, or runs of different seeds.

    The probability of a token is the mean of what the models give it. It decodes like any of
    them; it is not for training. Its logits are logarithms of probabilities, none of them positive:
    a repetition penalty, which looks at the sign, does not mean the same as for a single model.

    Args:
        models: one or more, see `TranslationModel`. They may differ in everything but their
            vocabularies.

    Raises:
        InputError: there is no model, or their vocabularies differ in size.

    Example:
        >>> translator = Translator(Ensemble([first, second]), source, target)
    """

    def __init__(self, models: Sequence[TranslationModel]) -> None:
        if not models:
            raise InputError("an ensemble needs at least one model, got none")
        configs = [model.config for model in models]
        sizes = {(config.vocabulary_size, config.target_size) for config in configs}
        if len(sizes) > 1:
            raise InputError(
                "the models of an ensemble must have the same vocabularies, got sizes of source "
                f"and target {' and '.join(map(str, sorted(sizes)))}"
            )
        self.models: list[Any] = list(models)
        if all(hasattr(model, "attention") for model in models):
            self.attention = self._mean_attention  # which `hasattr` finds only where there is one

    @property
    def config(self) -> Any:
        """The first model's configuration."""
        return self.models[0].config

    @property
    def dtype_policy(self) -> Any:
        """The first model's dtype policy."""
        return self.models[0].dtype_policy

    @property
    def variables(self) -> list[Any]:
        """Those of all models."""
        return [variable for model in self.models for variable in model.variables]

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Returns the logarithms of the mean probabilities [B, T, V]."""
        return self._mix([model.call(inputs, training=training) for model in self.models])

    def encode(self, source: Tensor, **options: Any) -> DecodingState:
        """Encodes the source ids [B, S] with every model; see `TranslationModel.encode`."""
        states = [model.encode(source, **options) for model in self.models]
        keep_coverage = all(state.coverage is not None for state in states)
        return DecodingState(
            shared=tuple(state.shared for state in states),
            projection=tuple(state.projection for state in states),
            context=tuple(state.context for state in states),
            recurrent_state=tuple(state.recurrent_state for state in states),
            kv_cache=tuple(state.kv_cache for state in states),
            coverage=states[0].coverage if keep_coverage else None,
        )

    def step(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Reads one more token of each hypothesis [B, W] with every model.

        Returns:
            The logarithms of the mean probabilities [B, W, V], and the next state.
        """
        logits, states = [], []
        names = ("shared", "projection", "context", "recurrent_state", "kv_cache")
        for index, model in enumerate(self.models):
            one = state._replace(**{name: getattr(state, name)[index] for name in names})
            its_logits, next_one = model.step(ids, one)
            logits.append(its_logits)
            states.append(next_one)
        coverage = state.coverage
        if coverage is not None:  # each model has added its attention to the same sum
            coverage = sum([each.coverage for each in states[1:]], states[0].coverage)
            coverage = coverage / len(states)
        return self._mix(logits), state._replace(
            recurrent_state=tuple(each.recurrent_state for each in states),
            kv_cache=tuple(each.kv_cache for each in states),
            coverage=coverage,
            # Without a search, of the first model that counts.
            time=next((each.time for each in states if each.time is not state.time), None),
        )

    def _mean_attention(self, inputs: dict[str, Tensor]) -> Tensor:
        """Returns the mean of the models' attention, [B, T, S]."""
        weights = [model.attention(inputs) for model in self.models]
        return sum(weights[1:], weights[0]) / len(weights)

    def _mix(self, logits: list[Tensor]) -> Tensor:
        """Returns log(mean of softmax) of logits [..., V], in float32."""
        parts = [ops.log_softmax(ops.cast(each, "float32"), axis=-1) for each in logits]
        return ops.logsumexp(ops.stack(parts), axis=0) - math.log(len(parts))
