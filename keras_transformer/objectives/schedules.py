"""Learning rate schedules: that of the paper (5.3), and warm-up with other decays."""

import math
from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError, check_choice


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


@keras.saving.register_keras_serializable(package="keras_transformer")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to a peak, then a constant rate or a decay to 0 just after the last update.

    With p = (step - warmup_steps) / (train_steps + 1 - warmup_steps), the rate after warm-up is the
    peak times 1 - p ("linear"), (1 + cos(pi p)) / 2 ("cosine", Loshchilov and Hutter 2017, eq. 5,
    without restarts), or 1 ("constant"). The first update is step 1.

    Args:
        peak: the highest rate.
        warmup_steps: updates until the peak; 1 means no warm-up.
        train_steps: updates in total.
        decay: "constant", "linear" or "cosine".

    Example:
        >>> schedule = WarmUp(1e-3, warmup_steps=100, train_steps=1000, decay="cosine")
        >>> model.compile(keras.optimizers.Adam(schedule), SmoothedCrossEntropy())
    """

    def __init__(
        self,
        peak: float,
        warmup_steps: int,
        train_steps: int,
        decay: str = "constant",
    ) -> None:
        super().__init__()
        check_choice("decay", decay, ("constant", "linear", "cosine"))
        if warmup_steps < 1 or train_steps < 1:
            raise InputError(
                f"warmup_steps and train_steps must be at least 1, got {warmup_steps} and "
                f"{train_steps}"
            )
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.train_steps = train_steps
        self.decay = decay

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32") + 1.0
        decay_steps = max(self.train_steps + 1 - self.warmup_steps, 1)
        progress = ops.clip((step - self.warmup_steps) / decay_steps, 0.0, 1.0)
        factor = ops.ones_like(step)
        if self.decay == "linear":
            factor = 1.0 - progress
        elif self.decay == "cosine":
            factor = (1.0 + ops.cos(math.pi * progress)) / 2
        return self.peak * ops.minimum(step / self.warmup_steps, factor)

    def get_config(self) -> dict[str, Any]:
        names = ("peak", "warmup_steps", "train_steps", "decay")
        return {name: getattr(self, name) for name in names}
