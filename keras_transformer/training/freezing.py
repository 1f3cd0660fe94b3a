"""Parts of a model whose weights training leaves as they are."""

from keras_transformer.config import split_list
from keras_transformer.errors import InputError, check_choice
from keras_transformer.models import Seq2SeqModel


def freeze(model: Seq2SeqModel, parts: str | None) -> None:
    """Makes the weights of some parts untrainable; before the model is compiled.

    Args:
        model: any architecture; its layers are its parts, and "embeddings" are all tables.
        parts: their names, separated by commas.

    Raises:
        InputError: it has no such part, or nothing is left to train.
    """
    weights = {layer.name: layer.weights for layer in model.layers if layer.weights}
    weights["embeddings"] = model.embedding_tables()
    for name in split_list(parts):
        check_choice("freeze", name, tuple(sorted(weights)))
        for weight in weights[name]:
            weight.trainable = False
    if not model.trainable_weights:
        raise InputError(f"freeze {parts} leaves no weights to train; name fewer parts")
