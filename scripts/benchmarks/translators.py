"""One model in the formats of all engines that decode: a folder for each."""

import functools
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.decoding_process import BEAM_SIZE, LENGTH_PENALTY
from benchmarks.sentences import Sentences
from keras_transformer.config import END_ID, PAD_ID, START_ID, ModelConfig, SearchConfig
from keras_transformer.data import read_lines
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer
from keras_transformer.search import Wishes, beam_search
from keras_transformer.serving.ctranslate2_format import export_ctranslate2
from keras_transformer.serving.signatures import translate_tokens
from keras_transformer.serving.translator import Translator
from keras_transformer.text import Vocabulary, learn_vocabulary
from keras_transformer.training import RunDirectory

_SEED = 1
# Symbols of the vocabulary, forced length, batch size.
_FORCED = {"tiny": (8000, 20, 64), "base": (37000, 24, 32), "big": (37000, 24, 32)}
_TEST_SET_BATCH = 64
_MAX_SOURCE_LENGTH = SearchConfig().max_source_length
_IDS = tf.TensorSpec([None, None], tf.int32, name="source")
_LENGTH_STEP = 16  # source lengths between those that XLA compiles a program for


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
        InputError: there is no such run or checkpoint, or the file cannot be read.
    """
    run = RunDirectory(run_dir)
    source, target = run.vocabularies()
    model = run.load_model(checkpoint)
    ids = [row[:_MAX_SOURCE_LENGTH] for row in source.encode(read_lines(path)) if row]
    sentences = Sentences.real(pathlib.Path(path).stem, ids, _TEST_SET_BATCH)
    return sentences, functools.partial(write_models, model, source, target, sentences)


def random_model(preset: str, vocabulary_size: int) -> tuple[Transformer, Vocabulary]:
    """Makes a model with random weights that, like a trained one, never wants a reserved symbol.

    CTranslate2 could generate padding, which our search leaves out; here neither of them does.
    """
    words = (f"w{number}" for number in range(vocabulary_size))
    vocabulary = learn_vocabulary(words, size=vocabulary_size, kind="word")
    keras.utils.set_random_seed(_SEED)
    model = Transformer(ModelConfig.preset(preset, vocabulary_size=vocabulary_size))
    # Hidden states share a direction, and the embeddings of these symbols point the other way.
    signs = np.random.default_rng(_SEED).choice([-1.0, 1.0], model.config.model_dim)
    model.decoder.layers[-1].feed_forward_residual.norm.bias.assign(signs / 2)
    table = np.array(model.target_embedding.table)
    table[[PAD_ID, START_ID, END_ID]] = -signs * model.config.model_dim**-0.5
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
    translator = Translator(model, source, target, search)
    plain = tf.function(functools.partial(translate_tokens, translator), input_signature=[_IDS])
    _save(model, plain, folders["ours"])
    _save(model, compiled_tokens(model, search, _source_lengths(sentences)), folders["ours_xla"])
    try:
        export_ctranslate2(model, source, target, folders["ctranslate2"])
    except InputError as error:  # it is not installed, or knows no such model
        print(f"CTranslate2 is left out: {error}", file=sys.stderr)
        del folders["ctranslate2"]
    return folders


def compiled_tokens(model: Transformer, search: SearchConfig, lengths: Sequence[int]) -> Any:
    """Returns the signature `tokens` as programs of XLA, one for each of some source lengths.

    Sources are padded to the next of these lengths, so that XLA has few shapes to compile.
    """

    def translate(source: Any) -> dict[str, Any]:
        """Translates ids [B, S]; S is static."""
        rows, num_extra = tf.shape(source)[0], search.max_extra_length
        longest = min(search.max_length or sys.maxsize, source.shape[1] - 1 + num_extra)
        num_symbols = tf.math.count_nonzero(source, axis=1, dtype=tf.int32) - 1
        min_lengths = tf.fill([rows], search.min_length) if search.min_length else None
        hypotheses = beam_search(
            model.step,
            model.encode(source, num_hypotheses=search.beam_size, capacity=longest + 1),
            start_ids=tf.fill([rows], START_ID),
            max_lengths=num_symbols + num_extra,
            beam_size=search.beam_size,
            length_penalty=search.length_penalty,
            wishes=Wishes(min_lengths=min_lengths),
            longest=longest,
        )
        return {"ids": hypotheses.ids, "lengths": hypotheses.lengths}

    def padded(source: Any, length: int) -> dict[str, Any]:
        source = tf.pad(source, [[0, 0], [0, length - tf.shape(source)[1]]])
        return compiled(tf.ensure_shape(source, [None, length]))

    def tokens(source: Any) -> dict[str, Any]:
        branches = [functools.partial(padded, source, length) for length in lengths]
        place = tf.searchsorted(list(lengths), [tf.shape(source)[1]])[0]
        return tf.switch_case(place, branches)

    compiled = tf.function(translate, jit_compile=True)
    return tf.function(tokens, input_signature=[_IDS])


def _source_lengths(sentences: Sentences) -> list[int]:
    """Returns the lengths of sources, END included, that programs are made for."""
    longest = len(sentences.ids[0]) + 1
    if sentences.forced_length is not None:
        return [longest]
    return [*range(_LENGTH_STEP, longest, _LENGTH_STEP), longest]


def _save(model: Transformer, tokens: Any, folder: str) -> None:
    root = tf.Module()
    root.variables_to_save = [variable.value for variable in model.variables]
    signature = tokens.get_concrete_function()
    tf.saved_model.save(root, folder, signatures={"tokens": signature})
