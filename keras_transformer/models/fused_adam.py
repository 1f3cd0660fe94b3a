"""Adam with one operation for each weight, under TensorFlow."""

from typing import Any

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


@keras.saving.register_keras_serializable(package="keras_transformer")
class FusedAdam(keras.optimizers.Adam):
    """`keras.optimizers.Adam` (Kingma and Ba 2015) with one operation for each weight.

    Keras composes each weight's update from a dozen operations, a thousand per step in a small
    model. TensorFlow has one kernel for the update. The variables are the same; other backends, and
    `amsgrad`, use Keras's operations.
    """

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates a variable and its moments."""
        dtype = variable.dtype
        is_fused = keras.backend.backend() == "tensorflow" and not self.amsgrad
        if not is_fused or tf.as_dtype(dtype).size < 4:  # half precision would round 1 - beta_2
            super().update_step(gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        step = tf.cast(self.iterations + 1, tf.float32)
        numbers = {
            "beta1_power": tf.pow(self.beta_1, step),
            "beta2_power": tf.pow(self.beta_2, step),
            "lr": learning_rate,
            "beta1": self.beta_1,
            "beta2": self.beta_2,
            "epsilon": self.epsilon,
        }
        if isinstance(variable, keras.Variable):  # under a strategy it is TensorFlow's
            variable = variable.value
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            grad=tf.cast(tf.convert_to_tensor(gradient), dtype),
            **{name: tf.cast(value, dtype) for name, value in numbers.items()},
        )
