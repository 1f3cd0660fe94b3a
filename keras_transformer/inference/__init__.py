"""Text to text in Python: translations of sentences, and the scores and alignments of given ones.

Start with model_functions.py, the graphs from text to text, which an export has too;
local_translator.py sends any number of sentences through them. Beside them stand options.py (search
options of single sentences), words.py (words of a text and its tokens), teacher_forcing.py (given
translations) and compiled_search.py (XLA).
"""

from keras_transformer.inference.compiled_search import XlaShapes as XlaShapes
from keras_transformer.inference.local_translator import LocalTranslator as LocalTranslator
from keras_transformer.inference.model_functions import ModelFunctions as ModelFunctions
