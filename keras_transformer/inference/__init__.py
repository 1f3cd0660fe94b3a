"""Text to text in Python: translations of sentences, and the scores and alignments of given ones.

Start with translator.py, which shows the way of a sentence; options.py makes the settings of its
search. Beside it stand scores.py (given translations), compiled_search.py (XLA),
shortlist_lookup.py (a part of the vocabulary) and prepared_model.py (bfloat16, stored projection).
"""

from keras_transformer.inference.compiled_search import XlaShapes
from keras_transformer.inference.translator import BatchTranslator, Translator

__all__ = ["BatchTranslator", "Translator", "XlaShapes"]
