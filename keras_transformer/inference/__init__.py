"""Text to text in Python: translations of sentences, and the scores and alignments of given ones.

Start with translator.py, the graphs from text to text, which an export has too; generate.py has the
search from ids to ids, batch_translator.py sends any number of sentences through the graphs. Beside
them stand scores.py (given translations) and compiled_search.py (XLA).
"""

from keras_transformer.inference.batch_translator import BatchTranslator
from keras_transformer.inference.compiled_search import XlaShapes
from keras_transformer.inference.translator import ModelTranslator

__all__ = ["BatchTranslator", "ModelTranslator", "XlaShapes"]
