"""Several models that translate together, by the mean of their probabilities.

Shapes: B batch, S source length, T target length, W hypotheses of a sentence, V target vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_transformer.decoding import DecodingState, Tensor, TranslationModel
from keras_transformer.errors import InputError

# The fields of an ensemble's state that are tuples with an entry for each model.
_PER_MODEL = ("projection", "context", "recurrent_state", "kv_cache")


class Ensemble:
    """Models of one vocabulary as one model: checkpoints of a run, or runs of different seeds.

    The probability of a token is the mean of the models' probabilities. An ensemble decodes like
    any model, but it does not train. Its logits are log-probabilities, all at most 0: a repetition
    penalty, which depends on the sign, has another effect than with a single model.

    Args:
        models: one or more `TranslationModel`s, which differ in anything but their vocabularies.

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
            # [B, T, S]; callers check with `hasattr`.
            self.attention = lambda inputs: (
                sum(model.attention(inputs) for model in self.models) / len(self.models)
            )

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
        """The variables of all models."""
        return [variable for model in self.models for variable in model.variables]

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Returns the logarithms of the mean probabilities [B, T, V]."""
        return _log_mean([model.call(inputs, training=training) for model in self.models])

    def encode(self, source: Tensor, **options: Any) -> DecodingState:
        """Encodes the source ids [B, S] with every model; see `TranslationModel.encode`."""
        states = [model.encode(source, **options) for model in self.models]
        # They may differ: a model counts the tokens that it does not read as covered.
        coverages = [state.coverage for state in states if state.coverage is not None]
        return DecodingState(
            **{name: tuple(getattr(state, name) for state in states) for name in _PER_MODEL},
            coverage=sum(coverages) / len(states) if len(coverages) == len(states) else None,
        )

    def step(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Reads one more token of each hypothesis [B, W] with every model.

        Returns:
            The logarithms of the mean probabilities [B, W, V], and the next state.
        """
        logits, states = [], []
        for index, model in enumerate(self.models):
            fields = {name: getattr(state, name)[index] for name in _PER_MODEL}
            model_logits, model_state = model.step(ids, state._replace(**fields))
            logits.append(model_logits)
            states.append(model_state)
        coverage = None
        if state.coverage is not None:  # each model has added its attention to the same sum
            coverage = sum(model_state.coverage for model_state in states) / len(states)
        return _log_mean(logits), state._replace(
            recurrent_state=tuple(model_state.recurrent_state for model_state in states),
            kv_cache=tuple(model_state.kv_cache for model_state in states),
            coverage=coverage,
            time=state.time + 1,
        )


def _log_mean(logits: list[Tensor]) -> Tensor:
    """Returns log(mean of softmax) of several logits [..., V], in float32."""
    parts = [ops.log_softmax(ops.cast(x, "float32"), axis=-1) for x in logits]
    return ops.logsumexp(ops.stack(parts), axis=0) - math.log(len(parts))
