"""Text to ids and back: a learned subword vocabulary, outside the graph and inside it.

`Tokenizer` is imported when it is first used: processes that tokenize outside the graph start in
a fraction of the time that TensorFlow takes to load.
"""

from typing import TYPE_CHECKING, Any

from keras_transformer.text.learning import extend_vocabulary, learn_vocabulary
from keras_transformer.text.vocabulary import SubwordSampler, Vocabulary

if TYPE_CHECKING:
    from keras_transformer.text.tokenizer import Tokenizer

__all__ = ["SubwordSampler", "Tokenizer", "Vocabulary", "extend_vocabulary", "learn_vocabulary"]


def __getattr__(name: str) -> Any:
    if name != "Tokenizer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from keras_transformer.text.tokenizer import Tokenizer

    return Tokenizer
