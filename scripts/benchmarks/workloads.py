"""What is translated: sentences as ids, and one model in the formats of all engines."""

import dataclasses
import functools
import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from benchmarks.decoding import BEAM_SIZE, LENGTH_PENALTY
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, ModelConfig, SearchConfig
from keras_transformer.data import Shortlist, read_lines
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator, XlaShapes
from keras_transformer.interop.ctranslate2 import export_ctranslate2
from keras_transformer.models import Seq2SeqModel, Transformer, build_model
from keras_transformer.text import Vocabulary, learn_vocabulary
from keras_transformer.training import RunDirectory
from keras_transformer.training.run import load_shortlist

_SEED = 1
# Size of the vocabulary, length of sentences, batch size.
_FORCED = {"tiny": (8000, 20, 64)}
_FORCED |= dict.fromkeys(("small", "base", "big"), (37000, 24, 32))
_RANDOM_BATCHES = 4  # of different sentences
_TEST_SET_BATCH = 64
_SHORTLIST = 50  # candidates of a source token

# From a folder, which it fills, to the model's own folder for each engine.
Write = Callable[[str], dict[str, str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentences:
    """Source sentences, the longest first.

    Attributes:
        name: in the table.
        ids: of each sentence, without EOS.
        batch_size: sentences of a batch, B.
        forced: whether every translation must have as many tokens as its source, and all of a
            batch as many as each other; else the model is trained, and translations end by
            themselves.
    """

    name: str
    ids: list[list[int]]
    batch_size: int
    forced: bool = False

    @classmethod
    def random(
        cls, name: str, *, vocabulary_size: int, lengths: Sequence[int], batch_size: int
    ) -> "Sentences":
        """Makes sentences of random tokens, whose translations are to be as long as they are.

        Args:
            name: in the table.
            vocabulary_size: V.
            lengths: of sentences; each batch has one of them, spread evenly over these in order.
            batch_size: B.
        """
        draw, falling = np.random.default_rng(_SEED), sorted(lengths, reverse=True)
        quantiles = (np.arange(_RANDOM_BATCHES) + 0.5) / _RANDOM_BATCHES
        ids: list[list[int]] = []
        for place in quantiles:
            shape = (batch_size, falling[int(place * len(falling))])
            ids += draw.integers(EOS_ID + 1, vocabulary_size, shape).tolist()
        return cls(name=name, ids=ids, batch_size=batch_size, forced=True)

    @classmethod
    def real(cls, name: str, ids: Sequence[list[int]], batch_size: int) -> "Sentences":
        """Takes the sentences of a test set."""
        return cls(name=name, ids=sorted(ids, key=len, reverse=True), batch_size=batch_size)

    @property
    def have_one_length(self) -> bool:
        """Whether all are as long as each other, which those that people translate are not."""
        return len(set(map(len, self.ids))) == 1

    def batches(self) -> list[list[int]]:
        """Returns the numbers of the sentences of each batch."""
        numbers = list(range(len(self.ids)))
        return [
            numbers[first : first + self.batch_size]
            for first in range(0, len(numbers), self.batch_size)
        ]

    def batches_of_round(self, count: int) -> list[list[int]]:
        """Returns `count` batches of random sentences; a test set is translated as a whole."""
        if not self.forced:
            return self.batches()
        return list(itertools.islice(itertools.cycle(self.batches()), count))

    def singles_of_round(self, number: int, count: int) -> list[list[int]]:
        """Returns `count` batches of one sentence each, different ones in each round."""
        order = np.random.default_rng(_SEED).permutation(len(self.ids)).tolist()
        taken = itertools.islice(itertools.cycle(order), number * count, (number + 1) * count)
        return [[sentence] for sentence in taken]

    def one_of_each_length(self) -> list[list[int]]:
        """Returns batches of one sentence each, of all the lengths that there are."""
        return [[number] for number in {len(ids): n for n, ids in enumerate(self.ids)}.values()]


def random_case(
    preset: str, vocabulary_size: int | None = None, path: str | None = None
) -> tuple[Sentences, Write]:
    """Returns random sentences and what writes a model with random weights.

    Args:
        preset: of the model; "rnn-tiny" is as large as "tiny".
        vocabulary_size: of the model, if it is not to be that of the preset's table.
        path: of a test set, whose lines in words are the lengths of a Transformer's sentences.
    """
    default_size, length, batch_size = _FORCED[preset.rpartition("-")[2]]
    model, vocabulary = random_model(preset, vocabulary_size or default_size)
    name, lengths = f"{length} forced", [length]
    if path is not None and isinstance(model, Transformer):
        name, lengths = f"as {pathlib.Path(path).stem}", _line_lengths(path)
    sentences = Sentences.random(
        name, vocabulary_size=vocabulary.size, lengths=lengths, batch_size=batch_size
    )
    return sentences, functools.partial(
        _write_models, model, vocabulary, vocabulary, sentences, None
    )


def run_case(run_dir: str, checkpoint: str, path: str) -> tuple[Sentences, Write]:
    """Returns the sentences of a file and what writes the model of a training run.

    Raises:
        InputError: there is no such run or checkpoint, or the file has no sentences.
    """
    run = RunDirectory(run_dir)
    model = run.load_model(checkpoint)
    source, target = run.vocabularies()
    longest = SearchConfig().max_source_length
    ids = [row[:longest] for row in source.encode(read_lines(path)) if row]
    _check_not_empty(ids, path)
    sentences = Sentences.real(pathlib.Path(path).stem, ids, _TEST_SET_BATCH)
    try:
        shortlist = load_shortlist(run)
    except InputError as error:
        print(f"Without a shortlist: {error}", file=sys.stderr)
        shortlist = None
    return sentences, functools.partial(_write_models, model, source, target, sentences, shortlist)


def _line_lengths(path: str) -> list[int]:
    lengths = [len(line.split()) for line in read_lines(path) if line.strip()]
    _check_not_empty(lengths, path)
    return lengths


def _check_not_empty(sentences: Sequence[object], path: str) -> None:
    if not sentences:
        raise InputError(f"{path} has no sentences; give --sentences a file with one on each line")


def random_model(preset: str, vocabulary_size: int) -> tuple[Seq2SeqModel, Vocabulary]:
    """Makes a model with random weights.

    A Transformer, like a trained one, never wants a reserved token: CTranslate2 could generate
    padding, which our search leaves out; here neither of them does.
    """
    words = (f"w{number}" for number in range(vocabulary_size))
    vocabulary = learn_vocabulary(words, size=vocabulary_size, kind="word")
    keras.utils.set_random_seed(_SEED)
    model = build_model(ModelConfig.preset(preset, vocabulary_size=vocabulary_size))
    if not isinstance(model, Transformer):
        return model, vocabulary
    # Hidden states share a direction, and the embeddings of these tokens point the other way.
    signs = np.random.default_rng(_SEED).choice([-1.0, 1.0], model.config.model_dim)
    model.decoder.layers[-1].feed_forward_residual.norm.bias.assign(signs / 2)
    table = np.array(model.target_embedding.table)
    table[[PAD_ID, BOS_ID, EOS_ID]] = -signs * model.config.model_dim**-0.5
    model.target_embedding.table.assign(table)
    return model, vocabulary


def _write_models(
    model: Transformer,
    source: Vocabulary,
    target: Vocabulary,
    sentences: Sentences,
    shortlist: Shortlist | None,
    folder: str,
) -> dict[str, str]:
    """Writes the model for each engine that is there, and returns its folders by engine."""
    search = SearchConfig(beam_size=BEAM_SIZE, length_penalty=LENGTH_PENALTY)
    shapes = XlaShapes(batch_sizes=(1, sentences.batch_size))
    if sentences.forced:
        lengths = sorted(set(map(len, sentences.ids)))
        search = search.replace(min_length=lengths[0], max_length=lengths[-1], max_extra_length=0)
        shapes = shapes._replace(lengths=tuple(length + 1 for length in lengths))  # and EOS
    translators = {
        "ours": Translator(model, source, target, search),
        "ours_xla": Translator(model, source, target, search, xla=shapes),
    }
    if shortlist is not None:
        search = search.replace(shortlist=_SHORTLIST)
        translators["ours_shortlist"] = Translator(
            model, source, target, search, shortlist=shortlist
        )
        shortlist = shortlist.first(_SHORTLIST)
    folders = {name: os.path.join(folder, name) for name in [*translators, "ctranslate2"]}
    for name, translator in translators.items():
        # The graph of this signature is the same in an export of all of them.
        translator = translator.with_cached_projection()
        root = tf.Module()  # a translator as root would have its own function exported too
        root.variables_to_save = translator.variables_to_save
        tokens = translator.signature("tokens")
        tf.saved_model.save(root, folders[name], signatures={"tokens": tokens})
    try:
        export_ctranslate2(model, source, target, folders["ctranslate2"], shortlist=shortlist)
    except InputError as error:  # it is not installed, or knows no such model
        print(f"CTranslate2 is left out: {error}", file=sys.stderr)
        del folders["ctranslate2"]
        return folders
    if shortlist is not None:
        folders["ctranslate2_shortlist"] = folders["ctranslate2"]  # reads it where it is asked to
    return folders
