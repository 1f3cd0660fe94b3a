"""From text to text: the translator in Python, and its export for a model server."""

from keras_transformer.serving.export import export, load_exported
from keras_transformer.serving.translator import Translation, Translator, translate_sorted

__all__ = ["Translation", "Translator", "export", "load_exported", "translate_sorted"]
