"""Reads a checkpoint of OpenNMT-tf: ckpt-N.index with its data, and a vocabulary for each side."""

import pathlib
import re

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.interop.foreign import ForeignModel, ImportOptions, Layout
from keras_transformer.interop.reading import (
    Tensors,
    map_file,
    read_token_lines,
    reading,
    reject,
)
from keras_transformer.interop.vocabularies import Symbols

_NAMES = {
    "self.query": "model/{side}/layers/{i}/self_attention/layer/linear_queries/{kind}",
    "self.key": "model/{side}/layers/{i}/self_attention/layer/linear_keys/{kind}",
    "self.value": "model/{side}/layers/{i}/self_attention/layer/linear_values/{kind}",
    "self.out": "model/{side}/layers/{i}/self_attention/layer/linear_output/{kind}",
    "self.norm": "model/{side}/layers/{i}/self_attention/NORM/{kind}",
    "cross.query": "model/{side}/layers/{i}/attention/0/layer/linear_queries/{kind}",
    "cross.key": "model/{side}/layers/{i}/attention/0/layer/linear_keys/{kind}",
    "cross.value": "model/{side}/layers/{i}/attention/0/layer/linear_values/{kind}",
    "cross.out": "model/{side}/layers/{i}/attention/0/layer/linear_output/{kind}",
    "cross.norm": "model/{side}/layers/{i}/attention/0/NORM/{kind}",
    "ffn.inner": "model/{side}/layers/{i}/ffn/layer/inner/{kind}",
    "ffn.outer": "model/{side}/layers/{i}/ffn/layer/outer/{kind}",
    "ffn.norm": "model/{side}/layers/{i}/ffn/NORM/{kind}",
    "final.norm": "model/{side}/layer_norm/{kind}",
}
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def is_opennmt_tf(path: pathlib.Path) -> bool:
    """Whether a folder or file is such a model."""
    return any(path.glob("ckpt-[0-9]*.index")) if path.is_dir() else path.suffix == ".index"


def read_opennmt_tf(path: pathlib.Path, import_options: ImportOptions) -> ForeignModel:
    """Returns the model of a checkpoint, or of the newest one in a folder."""
    if import_options.num_heads is None or not import_options.vocabularies:
        raise InputError(
            "a checkpoint of OpenNMT-tf names neither heads nor vocabularies; give --num_heads (8 "
            "for TransformerBase, 16 for TransformerBig), --source_vocabulary and "
            "--target_vocabulary of keras-transformer import_model"
        )
    tensors = _read_checkpoint(_newest(path))
    # A table that both sides share is stored once, as a rule under the features.
    features, labels = (
        f"model/examples_inputter/{side}_inputter/embedding" for side in ("features", "labels")
    )
    target_table = tensors.get(labels if labels in tensors else features, (None, None))
    source_table = tensors.get(features if features in tensors else labels, (None, None))
    source, target = (
        _read_vocabulary(file, len(table))
        for file, table in zip(
            import_options.vocabularies, (source_table, target_table), strict=True
        )
    )
    output = "model/decoder/output_layer/"
    kernel = tensors.find(f"{output}kernel", target_table.shape[::-1])  # [D, V]
    is_pre = "model/encoder/layer_norm/gamma" in tensors
    norm = "input_layer_norm" if is_pre else "output_layer_norm"
    return ForeignModel(
        options={
            "num_layers": tensors.count("model/encoder/layers/{}/ffn/layer/inner/kernel"),
            "decoder_layers": tensors.count("model/decoder/layers/{}/ffn/layer/inner/kernel"),
            "num_heads": import_options.num_heads,
            "norm_position": "pre" if is_pre else "post",
            "norm_epsilon": 1e-3,
            "positions": "concatenated",
            "first_position": 1,
            "source_eos": False,
        },
        tensors=tensors,
        layout=Layout(
            names={part: name.replace("NORM", norm) for part, name in _NAMES.items()},
            kernel="kernel",
            gain="gamma",
            offset="beta",
            transposed=False,
        ),
        source_table=source_table,
        target_table=target_table,
        projection=target_table if kernel is None else kernel.T,
        output_bias=tensors.find(f"{output}bias", (len(target_table),)),
        source=source,
        target=target,
        spms=import_options.spms,
        search={
            "length_penalty": 0.0,
            "beam_size": 4,
            "min_length": 0,
            "max_length": 250,
            "max_extra_length": 250,
        },
    )


def _newest(path: pathlib.Path) -> pathlib.Path:
    """Returns the index of the newest checkpoint in a folder, or the one that is given."""
    if not path.is_dir():
        return path
    steps = {file: re.fullmatch(r"ckpt-(\d+)\.index", file.name) for file in path.iterdir()}
    return max((int(match[1]), file) for file, match in steps.items() if match)[1]


def _read_checkpoint(index: pathlib.Path) -> Tensors:
    map_file(index)
    map_file(index.with_suffix(".data-00000-of-00001"))
    with reading(index, "a checkpoint of TensorFlow", tf.errors.OpError, LookupError):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        # Without what the optimizer keeps of each weight.
        arrays = {
            name.removesuffix(_SUFFIX): np.asarray(reader.get_tensor(name))
            for name in reader.get_variable_to_shape_map()
            if re.match("model/(?!.*/.OPTIMIZER_SLOT/)", name) and name.endswith(_SUFFIX)
        }
    return Tensors(arrays, str(index))


def _read_vocabulary(path: pathlib.Path, rows: int) -> Symbols:
    """Reads a token a line; the unknown token follows them, unless the table has no row for it."""
    tokens = read_token_lines(path)
    # A file may list <unk>, too: for OpenNMT-tf that is a token like any other.
    unk = "<oov>" if "<unk>" in tokens and len(tokens) < rows else "<unk>"
    if unk not in tokens:
        tokens.append(unk)
    reject({"a vocabulary with counts": any("\t" in token for token in tokens)})
    return Symbols.find(tokens, str(path), unk=unk, eos="</s>", pad="<blank>", start="<s>")
