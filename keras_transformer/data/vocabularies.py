"""Learns a vocabulary from sentence pairs, in bounded memory."""

import concurrent.futures
import itertools
import multiprocessing
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from keras_transformer.data.sources import PairSource
from keras_transformer.errors import InputError
from keras_transformer.host import end_with_parent
from keras_transformer.text import Vocabulary, learn_vocabulary

# A sample of this size gives nearly the tokens that all sentences would, in about 1 GB.
_MAX_SENTENCES = 1_000_000
# Up to this size the vocabulary is learned here, in some 100 MB; a new process takes seconds.
_SMALL_CHARACTERS = 10_000_000


def learn_from_corpus(
    sources: Sequence[PairSource], sides: Sequence[int] = (0, 1), **options: Any
) -> Vocabulary:
    """Learns one vocabulary from a corpus.

    For a large text that happens in a child process, whose memory the system takes back. As with
    all spawned processes, a script must call this under `if __name__ == "__main__"`.

    Args:
        sources: the text.
        sides: what to learn from: 0 for sources, 1 for targets, or both.
        **options: of `learn_vocabulary`, such as size and kind.

    Raises:
        InputError: the text cannot be read, or does not support such a vocabulary.
    """
    for source in sources:
        _ = source.identity  # raises for what cannot be read twice, such as a pipe
    sentences = (pair[side] for pair in itertools.chain.from_iterable(sources) for side in sides)
    characters = itertools.accumulate(map(len, sentences))
    if all(count <= _SMALL_CHARACTERS for count in characters):
        return Vocabulary(_learn(sources, sides, options))
    spawn = multiprocessing.get_context("spawn")
    try:
        with concurrent.futures.ProcessPoolExecutor(
            1, mp_context=spawn, initializer=end_with_parent
        ) as process:
            return Vocabulary(process.submit(_learn, sources, sides, options).result())
    except BrokenProcessPool as error:
        raise InputError(
            "the process that learns the vocabulary died, perhaps for lack of memory; learn from "
            "fewer sentences with keras-transformer learn_vocabulary --max_sentences, and give the "
            "result as vocabulary"
        ) from error


def _learn(sources: Sequence[PairSource], sides: Sequence[int], options: dict[str, Any]) -> bytes:
    sentences = (pair[side] for pair in itertools.chain.from_iterable(sources) for side in sides)
    return learn_vocabulary(sentences, max_sentences=_MAX_SENTENCES, **options).model_bytes
