"""One model in the formats of all engines that decode: a folder for each."""

import functools
import os
import pathlib
import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from benchmarks.decoding_process import BEAM_SIZE, LENGTH_PENALTY
from benchmarks.sentences import Sentences
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, SearchConfig, TransformerConfig
from keras_transformer.data import read_lines
from keras_transformer.errors import InputError
from keras_transformer.inference.compiled_search import XlaShapes
from keras_transformer.inference.translator import Translator
from keras_transformer.interop.ctranslate2 import export_ctranslate2
from keras_transformer.models import Transformer
from keras_transformer.text import Vocabulary, learn_vocabulary
from keras_transformer.training import RunDirectory

_SEED = 1
# Symbols of the vocabulary, forced length, batch size.
_FORCED = {"tiny": (8000, 20, 64), "base": (37000, 24, 32), "big": (37000, 24, 32)}
_TEST_SET_BATCH = 64
_MAX_SOURCE_LENGTH = SearchConfig().max_source_length

# From a folder, which it fills, to the model's own folder for each engine.
Write = Callable[[str], dict[str, str]]


def random_case(preset: str, vocabulary_size: int | None = None) -> tuple[Sentences, Write]:
    """Returns random sentences and what writes a model with random weights.

    Args:
        preset: of the model.
        vocabulary_size: of the model, if it is not to be that of the preset's table.
    """
    default_size, length, batch_size = _FORCED[preset]
    model, vocabulary = random_model(preset, vocabulary_size or default_size)
    sentences = Sentences.random(
        vocabulary_size=vocabulary.size, length=length, batch_size=batch_size
    )
    return sentences, functools.partial(write_models, model, vocabulary, vocabulary, sentences)


def run_case(run_dir: str, checkpoint: str, path: str) -> tuple[Sentences, Write]:
    """Returns the sentences of a file and what writes the model of a training run.

    Raises:
        InputError: there is no such run or checkpoint, or the file has no sentences.
    """
    run = RunDirectory(run_dir)
    model = run.load_model(checkpoint)
    source, target = run.vocabularies()
    ids = [row[:_MAX_SOURCE_LENGTH] for row in source.encode(read_lines(path)) if row]
    if not ids:
        raise InputError(f"{path} has no sentences; give --sentences a file with one on each line")
    sentences = Sentences.real(pathlib.Path(path).stem, ids, _TEST_SET_BATCH)
    return sentences, functools.partial(write_models, model, source, target, sentences)


def random_model(preset: str, vocabulary_size: int) -> tuple[Transformer, Vocabulary]:
    """Makes a model with random weights that, like a trained one, never wants a reserved symbol.

    CTranslate2 could generate padding, which our search leaves out; here neither of them does.
    """
    words = (f"w{number}" for number in range(vocabulary_size))
    vocabulary = learn_vocabulary(words, size=vocabulary_size, kind="word")
    keras.utils.set_random_seed(_SEED)
    model = Transformer(TransformerConfig.preset(preset, vocabulary_size=vocabulary_size))
    # Hidden states share a direction, and the embeddings of these symbols point the other way.
    signs = np.random.default_rng(_SEED).choice([-1.0, 1.0], model.config.model_dim)
    model.decoder.layers[-1].feed_forward_residual.norm.bias.assign(signs / 2)
    table = np.array(model.target_embedding.table)
    table[[PAD_ID, BOS_ID, EOS_ID]] = -signs * model.config.model_dim**-0.5
    model.target_embedding.table.assign(table)
    return model, vocabulary


def write_models(
    model: Transformer, source: Vocabulary, target: Vocabulary, sentences: Sentences, folder: str
) -> dict[str, str]:
    """Writes the model for each engine that is there, and returns its folders by engine."""
    search = SearchConfig(beam_size=BEAM_SIZE, length_penalty=LENGTH_PENALTY)
    if (length := sentences.forced_length) is not None:
        search = search.replace(min_length=length, max_length=length, max_extra_length=0)
    folders = {name: os.path.join(folder, name) for name in ("ours", "ours_xla", "ctranslate2")}
    for name, shapes in (("ours", None), ("ours_xla", _xla_shapes(sentences))):
        translator = Translator(model, source, target, search, xla=shapes)
        _save(translator.precomputed(), folders[name])  # as `export` does
    try:
        export_ctranslate2(model, source, target, folders["ctranslate2"])
    except InputError as error:  # it is not installed, or knows no such model
        print(f"CTranslate2 is left out: {error}", file=sys.stderr)
        del folders["ctranslate2"]
    return folders


def _xla_shapes(sentences: Sentences) -> XlaShapes:
    """Returns the shapes of forced translations, which are known, or else the usual ones."""
    if sentences.forced_length is None:
        return XlaShapes()
    length = len(sentences.ids[0]) + 1  # END included
    return XlaShapes(batch_sizes=(1, sentences.batch_size), lengths=(length,))


def _save(translator: Translator, folder: str) -> None:
    """Exports the signature `tokens` alone: the same graph as in an export of all of them."""
    root = tf.Module()  # a translator as root would have its own function exported too
    root.variables_to_save = translator.variables_to_save
    tokens = translator.signature("tokens")
    tf.saved_model.save(root, folder, signatures={"tokens": tokens})
