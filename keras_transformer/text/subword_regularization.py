"""Subword regularisation: sentences cut into other tokens each time (Kudo 2018).

A model that sees a word in several segmentations learns what its parts mean. Byte-pair tokens
leave out random merges (BPE-dropout, Provilkov et al. 2020); unigram tokens are drawn by their
probabilities. Only training text is treated so.
"""

import threading
from collections.abc import Sequence

import sentencepiece

from keras_transformer.config import UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import Vocabulary

# SentencePiece has one seed for the whole process: it is set and used by one thread at a time.
_SEED_IN_USE = threading.Lock()


class SubwordSampler:
    """Draws another segmentation of sentences, as a pure function of a seed.

    Args:
        vocabulary: gives the tokens; of the kind "bpe" or "unigram".
        alpha: rate of merges left out of byte-pair tokens, exponent of the probabilities of
            unigram tokens.

    Raises:
        InputError: the vocabulary has one segmentation only.

    Example:
        >>> sampler = SubwordSampler(vocabulary, alpha=0.1)
        >>> sampler(vocabulary.encode(["ein Hund"]), seed=3)  # perhaps ▁ein ▁H und
    """

    def __init__(self, vocabulary: Vocabulary, *, alpha: float) -> None:
        self._vocabulary = vocabulary
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model_bytes)
        self._alpha = alpha
        try:
            self._sample(["a"], seed=0)
        except RuntimeError as error:
            raise InputError(
                "subword_sampling needs a vocabulary of kind bpe or unigram; this one cuts a text "
                "in one way only"
            ) from error

    def __call__(self, sentences: Sequence[Sequence[int]], seed: int) -> list[list[int]]:
        """Returns the ids of the same sentences in segmentations drawn at random.

        A sentence is kept as it is where its text would change: where a token is unknown.

        Args:
            sentences: ids, without start and end.
            seed: at least 0, below 2**32 - 1.
        """
        texts = self._decode(sentences)
        sampled = self._sample(texts, seed)
        return [
            new if new and UNK_ID not in old and new_text == text else list(old)
            for old, new, text, new_text in zip(
                sentences, sampled, texts, self._decode(sampled), strict=True
            )
        ]

    def _decode(self, sentences: Sequence[Sequence[int]]) -> list[str]:
        texts: list[str] = self._processor.decode([list(ids) for ids in sentences], num_threads=1)
        return texts

    def _sample(self, texts: list[str], seed: int) -> list[list[int]]:
        with _SEED_IN_USE:
            sentencepiece.set_random_generator_seed(seed)
            # A list is encoded in threads that SentencePiece starts for the call, and each thread
            # makes its random generator of the seed: with one thread the result is always the same.
            sampled: list[list[int]] = self._processor.encode(
                texts,
                out_type=int,
                num_threads=1,
                enable_sampling=True,
                alpha=self._alpha,
                nbest_size=-1,
            )
        return [self._vocabulary.known(ids) for ids in sampled]
