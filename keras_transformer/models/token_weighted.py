"""The base of the models for training: every real target token counts once, on any backend.

Under TensorFlow the update is that of `update.py`; other backends train by Keras's own step.
"""

import warnings
from typing import Any, Literal

import keras
from keras import ops
from keras.src.backend import get_keras_mask, set_keras_mask

from keras_transformer.config import PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.models import fused_adam  # noqa: F401  compiled models in files name it

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
_Model: Any = keras.Model
if ON_TENSORFLOW:
    from keras_transformer.models.update import TensorFlowUpdate

    _Model = TensorFlowUpdate


class TokenWeightedModel(_Model):
    """Base of the models: an update follows the mean loss of the batch's real target tokens.

    The loss shown is the mean over the real tokens of all batches. On JAX and PyTorch Keras's own
    step trains on one device. A loss that averages over the real tokens, such as
    `SmoothedCrossEntropy`, gives the same update there, but the loss shown over several batches
    weights them by rows, and only float16's loss scaling skips updates.

    Attributes:
        accumulation_steps, clip_norm: see `compile`.
        max_length: the most tokens that the model has positions for; None for any number.
        uses_xla: whether XLA compiles the update (TensorFlow).
        bad_steps, bad_steps_in_a_row: int64 variables (TensorFlow): the updates skipped since
            `compile`, and since the last update that was not skipped.
    """

    accumulation_steps = 1
    clip_norm: float | None = None
    uses_xla = False
    max_length: int | None = None
    _jit_compile_asked: bool | Literal["auto"] = "auto"

    def compile(
        self,
        *args: Any,
        accumulation_steps: int = 1,
        clip_norm: float | None = None,
        jit_compile: bool | Literal["auto"] = "auto",
        **kwargs: Any,
    ) -> None:
        """Compiles as `keras.Model.compile` does, with two options of the update.

        Args:
            *args, **kwargs: of `keras.Model.compile`.
            accumulation_steps: parts into which a batch is split to save memory. The update is the
                same, but for rounding and dropout masks, if the loss is a mean over the labels
                that are not 0, such as `SmoothedCrossEntropy`.
            clip_norm: the largest global norm of a gradient; None does not clip.
            jit_compile: whether XLA compiles the update (of several devices its gradients), once
                for each shape of a batch; "auto" compiles on a GPU. `run_eagerly` turns it off.

        Raises:
            InputError: a number is out of range; the batch is split and the loss is not a mean;
                or accumulation or clipping is set on JAX or PyTorch.

        Warns if the model stores its weights in 16 bits, which an optimizer can hardly change.
        """
        if accumulation_steps < 1 or (clip_norm is not None and clip_norm <= 0):
            raise InputError(
                "accumulation_steps must be at least 1 and clip_norm above 0, got "
                f"{accumulation_steps} and {clip_norm}"
            )
        if not ON_TENSORFLOW and (accumulation_steps > 1 or clip_norm):
            raise InputError(
                "accumulation_steps and clip_norm need the TensorFlow backend; give the optimizer "
                "gradient_accumulation_steps and global_clipnorm instead"
            )
        if self.variable_dtype in ("bfloat16", "float16"):
            warnings.warn(
                f"weights in {self.variable_dtype} round small updates away, and Adam's beta_2 to "
                f"1: the model may not learn; make it with the policy mixed_{self.variable_dtype}",
                stacklevel=2,
            )
        self.accumulation_steps = accumulation_steps
        self.clip_norm = clip_norm
        self._jit_compile_asked = jit_compile
        super().compile(*args, jit_compile=jit_compile, **kwargs)

    def fit(self, *args: Any, class_weight: None = None, **kwargs: Any) -> Any:
        """Trains as `keras.Model.fit` does, without `class_weight`.

        Raises:
            InputError: there are class weights: Keras makes one weight of a whole row of labels.
        """
        _reject(class_weight)
        return super().fit(*args, **kwargs)

    def train_on_batch(self, *args: Any, class_weight: None = None, **kwargs: Any) -> Any:
        """Trains as `keras.Model.train_on_batch` does, without `class_weight`; see `fit`."""
        _reject(class_weight)
        return super().train_on_batch(*args, **kwargs)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Updates the metrics as `keras.Model.compute_metrics` does, without padding."""
        if get_keras_mask(y_pred) is None:  # metrics of Keras skip padding by it
            labels = ops.reshape(y, ops.shape(y_pred)[:-1])
            set_keras_mask(y_pred, ops.not_equal(labels, PAD_ID))
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_compile_config(self) -> dict[str, Any] | None:
        """Returns the arguments of `compile`, for a file of the model."""
        config = super().get_compile_config()
        if not self.compiled:
            return config
        return config | {
            "accumulation_steps": self.accumulation_steps,
            "clip_norm": self.clip_norm,
            "jit_compile": self._jit_compile_asked,
        }

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a model from a file as before; Keras requires this beside the method above."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built and self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)


def _reject(class_weight: Any) -> None:
    if class_weight is not None:
        raise InputError("class_weight needs one label a row; give sample_weight [B, T]")
