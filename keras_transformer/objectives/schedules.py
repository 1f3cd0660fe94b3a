"""The learning rate schedule of the paper (5.3)."""

from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError


@keras.saving.register_keras_serializable(package="keras_transformer")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step.

    Vaswani et al. 2017, 5.3, eq. 3:
        lrate = scale * model_dim^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)
    The first update is step 1 (Keras counts from 0). At its peak, step = warmup_steps, the
    rate is scale * (model_dim * warmup_steps)^-0.5.

    Args:
        model_dim: width of the model.
        warmup_steps: updates until the peak; 4,000 in the paper.
        scale: a factor; 1 in the paper.

    Raises:
        InputError: `model_dim` or `warmup_steps` is below 1.
    """

    def __init__(self, model_dim: int, warmup_steps: int = 4000, scale: float = 1.0) -> None:
        super().__init__()
        if model_dim < 1 or warmup_steps < 1:
            raise InputError(
                f"model_dim and warmup_steps must be at least 1, got {model_dim} and {warmup_steps}"
            )
        self.model_dim = model_dim
        self.warmup_steps = warmup_steps
        self.scale = scale

    @classmethod
    def with_peak(cls, peak: float, warmup_steps: int) -> "InverseSquareRoot":
        """Returns the schedule whose highest rate is `peak`, at step `warmup_steps`."""
        return cls(model_dim=1, warmup_steps=warmup_steps, scale=peak * warmup_steps**0.5)

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32") + 1.0
        rate = ops.minimum(ops.rsqrt(step), step * self.warmup_steps**-1.5)
        return self.scale * self.model_dim**-0.5 * rate

    def get_config(self) -> dict[str, Any]:
        return {
            "model_dim": self.model_dim,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }
