"""The optimizer, schedule, loss and metrics that a run trains with (5.3, 5.4)."""

from typing import Literal

from keras_transformer.config import TrainingConfig
from keras_transformer.models import Seq2SeqModel
from keras_transformer.objectives import (
    InverseSquareRoot,
    Padding,
    Perplexity,
    SmoothedCrossEntropy,
    TargetTokens,
    TokenAccuracy,
)
from keras_transformer.training.flops import TrainingFlops
from keras_transformer.training.optimizer import FusedAdam


def compile_for_training(
    model: Seq2SeqModel, training: TrainingConfig, jit_compile: bool | Literal["auto"] = "auto"
) -> None:
    """Compiles the model with the paper's optimizer, schedule and loss (5.3, 5.4).

    Args:
        model: built under the strategy that trains it.
        training: the hyperparameters.
        jit_compile: as in `TokenWeightedModel.compile`.
    """
    if training.learning_rate is None:
        schedule = InverseSquareRoot(model.config.model_dim, training.warmup_steps)
    else:
        schedule = InverseSquareRoot.with_peak(training.learning_rate, training.warmup_steps)
    optimizer = FusedAdam(
        schedule,
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
        weight_decay=training.weight_decay or None,
    )
    if training.weight_decay:
        # Decay of gains and biases would only keep norms from doing their work.
        vectors = [weight for weight in model.trainable_weights if len(weight.shape) < 2]
        optimizer.exclude_from_weight_decay(var_list=vectors)
    model.flops_metric = TrainingFlops(model)
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(training.label_smoothing),
        metrics=[TokenAccuracy(), Perplexity(), TargetTokens(), Padding()],
        accumulation_steps=training.accumulation_steps,
        clip_norm=training.clip_norm,
        jit_compile=jit_compile,
    )
    model.optimizer.build(model.trainable_variables)
