"""Text to text in Python: translations of sentences, and the scores and alignments of given ones.

Start with translator.py (sentences in, translations out); functions.py has the graphs that it calls
and that an export has, generate.py the search from ids to ids. Beside them stand scores.py (given
translations) and compiled_search.py (XLA).
"""

from keras_transformer.inference.compiled_search import XlaShapes
from keras_transformer.inference.translator import BatchTranslator, Translator

__all__ = ["BatchTranslator", "Translator", "XlaShapes"]
