"""The export of a model as ONNX: its encoder and its cached decoder step, for any runtime.

tf2onnx converts what `model.encode` and `model.step` compute, so every architecture is exported in
the same way. The folder has

    encoder.onnx, decoder_step.onnx    the two graphs, float32
    source.model, target.model         SentencePiece models that turn text into ids and back
    config.json                        names and shapes of inputs and outputs, options of the search
    translate.py                       a search in NumPy that runs them: `onnx_translate.py`

Shapes: B sentences, S source length, N hypotheses of all sentences together, K candidates, V target
vocabulary.
"""

import functools
import json
import logging
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from keras_transformer.config import EOS_ID, NUM_RESERVED, SearchConfig
from keras_transformer.config.search import PORTABLE_OPTIONS
from keras_transformer.data import pad_ids
from keras_transformer.decoding import DecodingState, Tensor, TranslationModel
from keras_transformer.errors import InputError, needs_extra, writing
from keras_transformer.files import atomic_folder
from keras_transformer.inference.translator import search_translations
from keras_transformer.interop.foreign import check_vocabulary_sizes
from keras_transformer.text import Vocabulary

_OPSET = 18
# The parts of a `DecodingState` that each step replaces.
_CHANGING = ("recurrent_state", "kv_cache")
_TOLERANCE = 1e-3  # of a score: two engines add float32 numbers in different orders


def export_onnx(
    model: TranslationModel,
    source: Vocabulary,
    target: Vocabulary,
    folder: str | os.PathLike[str],
    *,
    search: SearchConfig | None = None,
) -> pathlib.Path:
    """Writes the folder atomically and returns its path.

    Before the folder gets its name, onnxruntime translates a few generated sentences from it, and
    their scores must be ours.

    Args:
        model: any model, or an ensemble, that computes in float32.
        source, target: the vocabularies.
        folder: a path that does not exist.
        search: defaults of translate.py, which knows `PORTABLE_OPTIONS` only.

    Raises:
        InputError: a package is missing; the model does not compute in float32, or has an operation
            that ONNX lacks, or onnxruntime answers differently; a vocabulary is not the model's;
            the folder exists or cannot be written.

    Example:
        >>> export_onnx(model, source, target, "exports/en-de")
        PosixPath('exports/en-de')
        >>> # python exports/en-de/translate.py < sentences.txt
    """
    with needs_extra("onnx"):
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    from keras_transformer.interop import onnx_translate

    check_vocabulary_sizes(model.config, source, target)
    if (dtype := model.dtype_policy.compute_dtype) != "float32":
        raise InputError(
            f"an export to ONNX computes in float32, the model in {dtype}; give a model with dtype "
            "float32 and the same weights"
        )
    path = pathlib.Path(folder)
    if path.exists():
        raise InputError(f"export folder {path} exists already; give a path that does not")
    options = {name: getattr(search or SearchConfig(), name) for name in PORTABLE_OPTIONS}
    names = list(_tensors(_constants(model)))
    graphs = {"encoder": _encoder(model)}
    graphs["decoder_step"] = _decoder_step(model, names, graphs["encoder"])
    config = {
        "source_size": source.size,
        "target_size": target.size,
        "cuts_words_apart": source.cuts_words_apart,
        "space_ids": target.space_ids,
        "search": options,
        "context": [name for name in names if name.startswith("context")],
        "state": [name for name in names if not name.startswith("context")],
        "graphs": {name: _describe(graph) for name, graph in graphs.items()},
    }
    with writing(f"the export to {path}"), atomic_folder(path) as aside:
        for name, graph in graphs.items():
            _convert(graph, aside / f"{name}.onnx")
        source.save(aside / "source.model")
        target.save(aside / "target.model")
        text = json.dumps(config, indent=2) + "\n"
        (aside / "config.json").write_text(text, encoding="utf-8")
        shutil.copyfile(onnx_translate.__file__, aside / "translate.py")
        _check(model, target, SearchConfig(**options), onnx_translate.Model(aside))
    return path


def _encoder(model: TranslationModel) -> Any:
    """Returns a function of source ids [B, S]: the context, and the state before BOS."""

    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.int32, name="source")], autograph=False
    )
    def encoder(source: Tensor) -> dict[str, Tensor]:
        return _tensors(model.encode(source))

    return encoder


def _decoder_step(model: TranslationModel, names: list[str], encoder: Any) -> Any:
    """Returns a function of the newest tokens [N], and of what `names` lists.

    Its outputs are the log-probabilities of the next tokens [N, V], the `count` best of them and
    their ids, both [N, K], and the next state.
    """
    outputs = encoder.get_concrete_function().structured_outputs
    inputs = [
        tf.TensorSpec([None], tf.int32, name="ids"),
        tf.TensorSpec([], tf.int32, name="time"),  # tokens read before
        tf.TensorSpec([], tf.int32, name="count"),
    ]
    for name in names:
        sizes = [None if size == 0 else size for size in outputs[name].shape[1:]]  # 0 grows
        inputs.append(tf.TensorSpec([None, *sizes], outputs[name].dtype, name=name))

    @tf.function(input_signature=inputs, autograph=False)
    def decoder_step(
        ids: Tensor, time: Tensor, count: Tensor, *tensors: Tensor
    ) -> dict[str, Tensor]:
        state, given = _constants(model), iter(tensors)
        parts = {
            field: tree.map_structure(lambda _: next(given), getattr(state, field))
            for field in ("context", *_CHANGING)
        }
        # As [1], which broadcasts: tf2onnx cannot add a dimension to a scalar.
        state = state._replace(**parts, time=tf.reshape(time, [1]))
        logits, state = model.step(ids[:, None], state)
        log_probs = tf.nn.log_softmax(tf.cast(logits[:, 0], tf.float32))
        best = tf.math.top_k(log_probs, count)
        found = {"log_probs": log_probs, "top_log_probs": best.values, "top_ids": best.indices}
        return found | {
            f"next_{name}": tensor
            for name, tensor in _tensors(state).items()
            if not name.startswith("context")
        }

    return decoder_step


def _constants(model: TranslationModel) -> DecodingState:
    """Returns a state of which `shared` and `projection` serve all sentences."""
    return model.encode(tf.constant([[EOS_ID]]))


def _tensors(state: DecodingState) -> dict[str, Tensor]:
    """Returns the tensors of a state that differ between sentences, by name."""
    return {
        "_".join(map(str, (field, *path))): leaf
        for field in ("context", *_CHANGING)
        for path, leaf in tree.flatten_with_path(getattr(state, field))
    }


def _describe(graph: Any) -> dict[str, Any]:
    """Returns types and shapes of inputs and outputs; null is a dimension of any size."""
    inputs = {spec.name: spec for spec in graph.input_signature}
    sides = {"inputs": inputs, "outputs": graph.get_concrete_function().structured_outputs}
    return {
        side: {
            name: {"type": spec.dtype.name, "shape": spec.shape.as_list()}
            for name, spec in specs.items()
        }
        for side, specs in sides.items()
    }


def _convert(graph: Any, path: pathlib.Path) -> None:
    """Writes a function as ONNX; `InputError` if it has an operation that ONNX lacks."""
    import onnx
    import tf2onnx

    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # the error has the reason
    try:
        tf2onnx.convert.from_function(
            graph,
            graph.input_signature,
            opset=_OPSET,
            custom_op_handlers={"Erfc": (_erfc, []), "Log1p": (_log1p, [])},
            output_path=str(path),
        )
        onnx.checker.check_model(str(path))
    except (ValueError, KeyError, NotImplementedError, onnx.checker.ValidationError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"tf2onnx cannot convert this model ({reason}); export it as a SavedModel"
        ) from error


# Operations that tf2onnx lacks: of GELU, and of attention that is intra-temporal.


def _erfc(context: Any, node: Any, name: str, _: Any) -> None:
    """erfc(x) = 1 - erf(x)."""
    erf = context.make_node("Erf", node.input).output[0]
    _replace(context, node, "Sub", [_one(context, name), erf])


def _log1p(context: Any, node: Any, name: str, _: Any) -> None:
    """log1p(x) = log(1 + x)."""
    total = context.make_node("Add", [_one(context, name), node.input[0]]).output[0]
    _replace(context, node, "Log", [total])


def _one(context: Any, name: str) -> str:
    return context.make_const(f"{name}_one", np.float32(1).reshape(())).output[0]


def _replace(context: Any, node: Any, kind: str, inputs: list[str]) -> None:
    shapes, dtypes = node.output_shapes, node.output_dtypes
    context.remove_node(node.name)
    context.make_node(
        kind, inputs, name=node.name, outputs=node.output, shapes=shapes, dtypes=dtypes
    )


def _check(
    model: TranslationModel, target: Vocabulary, search: SearchConfig, exported: Any
) -> None:
    """Compares the best scores that translate.py and our search find for generated sentences.

    The translations themselves may differ where two have nearly the same score.
    """
    random = np.random.default_rng(0)
    size = model.config.vocabulary_size
    sentences = [random.integers(NUM_RESERVED, size, length).tolist() for length in (1, 6, 17)]
    sentences = [ids[: search.max_source_length] for ids in sentences]
    translate = tf.function(functools.partial(search_translations, model), autograph=False)
    ours = translate(pad_ids([[*ids, EOS_ID] for ids in sentences]), search=search, target=target)
    for (_, score), expected in zip(
        exported.search(sentences), ours.scores[:, 0].numpy(), strict=True
    ):
        if not abs(score - expected) <= _TOLERANCE:
            raise InputError(
                f"onnxruntime gives a translation the score {score:.4f}, the model {expected:.4f}; "
                "export the model as a SavedModel"
            )
