"""Text to text in Python: translations of sentences, and the scores and alignments of given ones.

Start with translator.py, which shows the way of a sentence; options.py makes the settings of its
search. Beside it stand scores.py (given translations) and acceleration.py (a stored projection,
XLA).
"""

from keras_transformer.inference.acceleration import XlaShapes
from keras_transformer.inference.translator import BatchTranslator, Translator

__all__ = ["BatchTranslator", "Translator", "XlaShapes"]
