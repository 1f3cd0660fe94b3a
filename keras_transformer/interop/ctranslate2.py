"""Writes a model as a CTranslate2 model folder, for where TensorFlow does not fit.

The weights are renamed and transposed, not approximated: CTranslate2 computes the same
log-probabilities in float32.

    model.bin, config.json         weights and tokens, as CTranslate2's Translator loads them
    shared_vocabulary.json         the pieces, or source_ and target_vocabulary.json
    vmap.txt                       the candidates of each source piece, where a shortlist is given
    source.model, target.model     SentencePiece models that turn text into pieces and back
"""

import os
import pathlib
from typing import Any

from keras_transformer.atomic_folders import atomic_folder
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.data import Shortlist
from keras_transformer.errors import InputError, writing
from keras_transformer.interop.ctranslate2_specification import specification
from keras_transformer.models import Transformer
from keras_transformer.text import Vocabulary
from keras_transformer.text.vocabulary import RESERVED_IDS


def export_ctranslate2(
    model: Transformer,
    source: Vocabulary,
    target: Vocabulary,
    folder: str | os.PathLike[str],
    *,
    quantization: str | None = None,
    shortlist: Shortlist | None = None,
) -> pathlib.Path:
    """Writes the folder atomically and returns its path.

    CTranslate2 adds EOS to the source and begins with BOS by itself. Unlike `Translator` it can
    generate padding and BOS, to which a trained model gives next to no probability; its length
    penalty is length ** alpha, EOS not counted; it cuts translations at `max_decoding_length`.

    Args:
        model: a single Transformer; `norm_form` "sigma", a window and relative or rotary positions
            cannot be written.
        source, target: the vocabularies.
        folder: a path that does not exist.
        quantization: how weights are stored: None or "float32" as they are, or "int8", "int16",
            "float16", "bfloat16" (which needs PyTorch), "int8_float16" and their like.
        shortlist: is written as vmap.txt, which `translate_batch(use_vmap=True)` reads.

    Raises:
        InputError: ctranslate2 is not installed, cannot express the model, or does not know the
            quantization; a vocabulary is not the model's; the folder exists or cannot be written.

    Example:
        >>> folder = export_ctranslate2(model, source, target, "exports/en-de")
        >>> encoder = sentencepiece.SentencePieceProcessor(f"{folder}/source.model")
        >>> decoder = sentencepiece.SentencePieceProcessor(f"{folder}/target.model")
        >>> pieces = encoder.encode(["two hundred"], out_type=str)
        >>> results = ctranslate2.Translator(str(folder)).translate_batch(pieces, beam_size=4)
        >>> decoder.decode([result.hypotheses[0] for result in results])
        ['zweihundert']
    """
    try:
        from ctranslate2.specs import transformer_spec as specs
    except ImportError as error:
        raise InputError(
            "this export needs the package ctranslate2; "
            'pip install "keras_transformer[ctranslate2]" or pip install ctranslate2'
        ) from error
    _check(model, source, target)
    path = pathlib.Path(folder)
    if path.exists():
        raise InputError(f"export folder {path} exists already; give a path that does not")
    spec = specification(model, specs)
    _register(spec, source, target)
    spec.validate()
    try:
        spec.optimize(quantization=quantization)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"quantization {quantization!r} cannot be used ({error})") from error
    with writing(f"the export to {path}"), atomic_folder(path) as aside:
        spec.save(str(aside))
        source.save(aside / "source.model")
        target.save(aside / "target.model")
        if shortlist is not None:
            text = _vocabulary_map(shortlist, source, target)
            (aside / "vmap.txt").write_text(text, encoding="utf-8")
    return path


def _vocabulary_map(shortlist: Shortlist, source: Vocabulary, target: Vocabulary) -> str:
    """Returns a line for each source token, and at first one without a token for all sentences."""
    lines = [("", shortlist.common.tolist())]
    for token, ids in zip(source.pieces(range(source.size)), shortlist.candidates, strict=True):
        lines.append((token, ids[ids != PAD_ID].tolist()))
    return "".join(f"{token}\t{' '.join(target.pieces(ids))}\n" for token, ids in lines if ids)


def _check(model: Any, source: Vocabulary, target: Vocabulary) -> None:
    if not isinstance(model, Transformer):
        name = type(model).__name__
        raise InputError(
            f"CTranslate2 can have a single Transformer, got {name}; export it as a SavedModel"
        )
    config = model.config
    if config.norm_form != "variance":
        raise InputError(
            f"CTranslate2 has no layer normalization of norm_form {config.norm_form!r}; "
            "export the model as a SavedModel, or train one with norm_form 'variance'"
        )
    unknown = {
        "encoder_attention_window": config.encoder_attention_window,
        "decoder_attention_window": config.decoder_attention_window,
        "positions": config.attention_positions,
    }
    for name, value in unknown.items():
        if value is not None:
            raise InputError(
                f"no CTranslate2 model can be written with {name} {value}; export a SavedModel"
            )
    sizes = (config.vocabulary_size, config.target_size)
    for side, size, vocabulary in zip(("source", "target"), sizes, (source, target), strict=True):
        if vocabulary.size != size:
            raise InputError(
                f"the model has {size} {side} tokens and the {side} vocabulary {vocabulary.size}; "
                "give the vocabularies that it was trained with"
            )


def _register(spec: Any, source: Vocabulary, target: Vocabulary) -> None:
    """Registers the pieces; both sides must have the same ones for the reserved tokens."""
    reserved = target.pieces(RESERVED_IDS)
    spec.register_source_vocabulary(reserved + source.pieces(range(len(reserved), source.size)))
    spec.register_target_vocabulary(target.pieces(range(target.size)))
    spec.config.unk_token = reserved[UNK_ID]
    spec.config.bos_token = spec.config.decoder_start_token = reserved[BOS_ID]
    spec.config.eos_token = reserved[EOS_ID]
