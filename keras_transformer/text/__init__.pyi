from .learning import extend_vocabulary as extend_vocabulary
from .learning import learn_vocabulary as learn_vocabulary
from .tokenizer import Tokenizer as Tokenizer
from .vocabulary import SubwordSampler as SubwordSampler
from .vocabulary import Vocabulary as Vocabulary
