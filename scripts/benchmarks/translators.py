"""One model in the formats of all engines that decode: a folder for each."""

import functools
import importlib.util
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.decoding_process import BEAM_SIZE, LENGTH_PENALTY
from benchmarks.sentences import Sentences
from keras_transformer.config import END_ID, PAD_ID, START_ID, ModelConfig, SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer
from keras_transformer.search import Wishes, beam_search
from keras_transformer.serving.ctranslate2_format import export_ctranslate2
from keras_transformer.serving.signatures import translate_tokens
from keras_transformer.serving.translator import Translator
from keras_transformer.text import Vocabulary, learn_vocabulary

_SEED = 1
_IDS = tf.TensorSpec([None, None], tf.int32, name="source")
_LENGTH_STEP = 16  # source lengths between those that XLA compiles a program for


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
    model: Transformer,
    source: Vocabulary,
    target: Vocabulary,
    sentences: Sentences,
    folder: pathlib.Path,
) -> dict[str, pathlib.Path]:
    """Writes the model for each engine that is there, and returns the folders by engine."""
    lengths = {}
    if sentences.forced_length is not None:
        lengths = dict.fromkeys(("min_length", "max_length"), sentences.forced_length)
        lengths["max_extra_length"] = 0
    search = SearchConfig(beam_size=BEAM_SIZE, length_penalty=LENGTH_PENALTY, **lengths)
    folders = {name: folder / name for name in ("ours", "ours_xla")}
    translator = Translator(model, source, target, search)
    tokens = tf.function(functools.partial(translate_tokens, translator), input_signature=[_IDS])
    _save(model, tokens, folders["ours"])
    compiled = compiled_tokens(model, search, _source_lengths(sentences))
    _save(model, compiled, folders["ours_xla"])
    if importlib.util.find_spec("ctranslate2") is None:
        print("CTranslate2 is left out: pip install ctranslate2 for it.", file=sys.stderr)
        return folders
    try:
        folders["ctranslate2"] = export_ctranslate2(model, source, target, folder / "ctranslate2")
    except InputError as error:
        print(f"CTranslate2 is left out: {error}", file=sys.stderr)
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


def _save(model: Transformer, tokens: Any, folder: pathlib.Path) -> None:
    root = tf.Module()
    root.variables_to_save = [variable.value for variable in model.variables]
    signature = tokens.get_concrete_function()
    tf.saved_model.save(root, str(folder), signatures={"tokens": signature})
