"""Text to ids and back: a learned subword vocabulary, outside the graph and inside it."""

from keras_transformer.text.learning import learn_vocabulary as learn_vocabulary
from keras_transformer.text.tokenizer import Tokenizer as Tokenizer
from keras_transformer.text.vocabulary import Vocabulary as Vocabulary
