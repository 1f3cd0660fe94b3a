"""Text to text in Python: tokenize, search, detokenize; scores and alignments of translations."""

from keras_transformer.inference.batch_translator import BatchTranslator
from keras_transformer.inference.compiled_search import XlaShapes
from keras_transformer.inference.translator import Translator

__all__ = ["BatchTranslator", "Translator", "XlaShapes"]
