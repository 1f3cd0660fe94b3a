"""A Keras model whose loss and gradients count every real target token once.

Keras averages the losses of replicas, and of accumulated parts of a batch, with equal weight,
however many tokens each has, and clips gradients before it adds up the replicas'. Here the mean
is taken over the real target tokens of the whole batch and its gradient is clipped, so that any
number of devices and of parts gives the weights that one device gives.
"""

from typing import Any, Literal

import keras

from keras_transformer.errors import InputError

if keras.backend.backend() == "tensorflow":
    from keras_transformer.models.tensorflow_train_step import TensorFlowModel

    _Model: Any = TensorFlowModel
else:
    _Model = keras.Model


class TokenWeightedModel(_Model):
    """Base of the models: an update follows the mean loss of the batch's real target tokens.

    Under TensorFlow the steps of `tensorflow_train_step.py` replace Keras's own, on one device and
    under any `tf.distribute` strategy. The loss shown is the mean over the real tokens of all
    batches.
    An update whose gradient is not finite is left out: `bad_steps` counts those since `compile`,
    `bad_steps_in_a_row` those since the last good one; both are int32 variables.

    `flops_metric`, a metric where it is set, gets the ids of each batch, source and labels.

    Under JAX and PyTorch Keras's own step trains on one device. A loss that averages over the real
    tokens, such as `SmoothedCrossEntropy`, gives the same update; but the loss shown over several
    batches weights them by rows, and only float16's loss scaling leaves updates out.
    """

    accumulation_steps = 1
    clip_norm: float | None = None
    uses_xla = False
    flops_metric: Any = None
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
            accumulation_steps: parts into which a batch is cut to save memory; the update is
                that of the whole batch where the loss is a mean over the labels that are not 0,
                such as `SmoothedCrossEntropy`.
            clip_norm: the largest global norm of a gradient; None does not clip.
            jit_compile: whether XLA compiles the forward and backward pass, once for each shape
                of a batch; "auto" where there is a GPU. On a CPU it is slower.

        Raises:
            InputError: a number is out of range; the loss is a sum, and the batch cut; or one of
                the two is asked for on another backend than TensorFlow.
        """
        if accumulation_steps < 1 or (clip_norm is not None and clip_norm <= 0):
            raise InputError(
                "accumulation_steps must be at least 1 and clip_norm above 0, got "
                f"{accumulation_steps} and {clip_norm}"
            )
        asked = jit_compile
        on_tensorflow = keras.backend.backend() == "tensorflow"
        if not on_tensorflow and (accumulation_steps > 1 or clip_norm):
            raise InputError(
                "accumulation_steps and clip_norm need the TensorFlow backend; give the optimizer "
                "gradient_accumulation_steps and global_clipnorm in their place"
            )
        if on_tensorflow:
            loss: Any = kwargs.get("loss", args[1] if len(args) > 1 else None)
            is_cut = accumulation_steps > 1 or self.distribute_strategy.num_replicas_in_sync > 1
            if is_cut and getattr(loss, "reduction", "mean") in ("sum", "none", None):
                raise InputError(
                    "the parts of a batch are weighted by their real tokens, which needs a loss "
                    f"that is a mean, got the reduction {loss.reduction}; give another one, such "
                    "as SmoothedCrossEntropy"
                )
            self._prepare_step(jit_compile)
            jit_compile = False  # of the whole step, which tf.distribute does not allow
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        self.accumulation_steps = accumulation_steps
        self.clip_norm = clip_norm
        self._jit_compile_asked = asked

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Updates the metrics as `keras.Model.compute_metrics` does, and `flops_metric`."""
        if self.flops_metric is not None:
            self.flops_metric.update_state(x["source"], y)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_compile_config(self) -> dict[str, Any] | None:
        """Returns what `compile` was given, for a file of the model."""
        config = super().get_compile_config()
        if not self.compiled:
            return config
        return config | {
            "accumulation_steps": self.accumulation_steps,
            "clip_norm": self.clip_norm,
            "jit_compile": self._jit_compile_asked,
        }

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a model that is read from a file as it was; Keras leaves that to overriders."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built and self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)
