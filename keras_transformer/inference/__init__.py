"""Text to text in Python: translations of sentences, and the scores and alignments of given ones.

A line of `translate.py` passes seven files on its way to the model:

1. `line_io.py` reads lines and hands lists of sentences to the translator.
2. `inference/batch_translator.py` sorts them by length and runs a function of the graph on batches.
3. `inference/translator.py` is that function: tokenize, search, detokenize.
4. `inference/search_options.py` turns the configuration and a sentence's options into a search.
5. `search/beam.py` says what a step does with the hypotheses of each sentence.
6. `search/decode_loop.py` repeats it while sentences are open.
7. `search/loop_steps.py` calls the model's `step` for the logits of the next tokens.

Beside this path stand `compiled_search.py` (search by XLA in batches of fixed shapes),
`teacher_forcing.py` (scores and attention of given translations), `quantization.py` (weights in
fewer bits) and `cached_projection.py` (what depends on weights alone, kept).
"""

from keras_transformer.inference.compiled_search import XlaShapes
from keras_transformer.inference.translator import BatchTranslator, Translator

__all__ = ["BatchTranslator", "Translator", "XlaShapes"]
