"""Text to ids and back: a learned subword vocabulary, outside the graph and inside it."""

from keras_transformer.text.learning import learn_vocabulary
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import Vocabulary

__all__ = ["Tokenizer", "Vocabulary", "learn_vocabulary"]
