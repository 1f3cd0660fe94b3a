"""Which devices a run trains on."""

import tensorflow as tf

from keras_transformer.errors import InputError

STRATEGIES = ("auto", "none", "mirrored")


def make_strategy(name: str = "auto") -> tf.distribute.Strategy:
    """Returns the strategy under which `train` builds and fits the model.

    Args:
        name: "mirrored" trains on all GPUs of the machine, or on all its logical CPU devices
            where it has no GPU; "none" on one device; "auto" is "mirrored" where there are
            several GPUs, else "none".

    Raises:
        InputError: the name is none of these.
    """
    if name not in STRATEGIES:
        raise InputError(f"strategy must be one of {', '.join(STRATEGIES)}, got {name!r}")
    gpus = tf.config.list_logical_devices("GPU")
    if name == "none" or (name == "auto" and len(gpus) < 2):
        return tf.distribute.get_strategy()
    devices = gpus or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])
