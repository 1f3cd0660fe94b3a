"""Reads a checkpoint of OpenNMT-tf: ckpt-N.index and its data, and a vocabulary for each side."""

import functools
import pathlib
import re

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.interop.files import Array, Given, Tensors, map_file, read_text, refuse
from keras_transformer.interop.foreign import ForeignModel, Layout
from keras_transformer.interop.vocabulary import Symbols, make_vocabularies

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
_TABLES = tuple(f"model/examples_inputter/{side}_inputter/embedding"
                for side in ("features", "labels"))  # fmt: skip
_SPECIAL = {"unk": "<unk>", "eos": "</s>", "pad": "<blank>", "start": "<s>"}


def is_opennmt_tf(path: pathlib.Path) -> bool:
    """Whether a folder or file is such a model."""
    return any(path.glob("ckpt-*.index")) if path.is_dir() else path.suffix == ".index"


def read_opennmt_tf(path: pathlib.Path, given: Given) -> ForeignModel:
    """Returns the model of a checkpoint, or of the newest one in a folder."""
    if given.num_heads is None:
        raise InputError(
            "a checkpoint of OpenNMT-tf does not tell how many attention heads the model has; give "
            "--num_heads (8 for Transformer and TransformerBase, 16 for TransformerBig)"
        )
    tensors = _tensors(_newest(path))
    folder = path if path.is_dir() else path.parent
    sides = _symbols(folder, given)
    target = tensors.get(_TABLES[1], (None, None))
    kernel, bias = "model/decoder/output_layer/kernel", "model/decoder/output_layer/bias"
    is_pre = "model/encoder/layer_norm/gamma" in tensors
    norm = "input_layer_norm" if is_pre else "output_layer_norm"
    return ForeignModel(
        options={
            "num_layers": tensors.count("model/encoder/layers/{}/ffn/layer/inner/kernel"),
            "decoder_layers": tensors.count("model/decoder/layers/{}/ffn/layer/inner/kernel"),
            "num_heads": given.num_heads,
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
        source_table=tensors.get(_TABLES[0], (None, None)) if _TABLES[0] in tensors else target,
        target_table=target,
        projection=tensors.get(kernel, target.shape[::-1]).T if kernel in tensors else target,
        output_bias=tensors.get(bias, (len(target),)) if bias in tensors else None,
        source=sides[0],
        target=sides[1],
        vocabularies=make_vocabularies(sides, given.spms, str(folder)),
        search={"length_penalty": 0.2, "beam_size": 4},
    )


def _newest(path: pathlib.Path) -> pathlib.Path:
    if not path.is_dir():
        return path
    steps = {
        int(match[1]): file
        for file in path.glob("ckpt-*.index")
        if (match := re.fullmatch(r"ckpt-(\d+)\.index", file.name))
    }
    if not steps:
        raise InputError(f"{path} has no checkpoint ckpt-N.index; give the folder of a model")
    return steps[max(steps)]


def _tensors(index: pathlib.Path) -> Tensors:
    map_file(index)
    map_file(index.with_suffix(".data-00000-of-00001"))
    try:
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        names = reader.get_variable_to_shape_map()
    except Exception as error:  # of no common class
        raise _damaged(index, error) from error

    def read(name: str) -> Array:
        try:
            value: Array = reader.get_tensor(name)
        except Exception as error:
            raise _damaged(index, error) from error
        return value

    arrays = {
        name.removesuffix(_SUFFIX): functools.partial(read, name)
        for name in names
        if name.startswith("model/") and name.endswith(_SUFFIX)
    }
    # What the optimizer keeps of each weight.
    arrays = {name: array for name, array in arrays.items() if "/.OPTIMIZER_SLOT/" not in name}
    return Tensors(arrays, str(index))


def _damaged(index: pathlib.Path, error: Exception) -> InputError:
    return InputError(
        f"{index} is no checkpoint of TensorFlow, or a damaged one ({str(error)[:120]}); copy it "
        "again"
    )


def _symbols(folder: pathlib.Path, given: Given) -> tuple[Symbols, Symbols]:
    paths = given.vocabularies
    if not paths:
        raise InputError(
            f"no file in {folder} names the vocabularies; give --source_vocabulary and "
            "--target_vocabulary"
        )
    source, target = map(_read_vocabulary, paths)
    return source, target


def _read_vocabulary(path: pathlib.Path) -> Symbols:
    tokens = [*read_text(path).removesuffix("\n").split("\n"), "<unk>"]
    refuse({"a vocabulary with counts": any("\t" in token for token in tokens)})
    return Symbols.find(tokens, str(path), **_SPECIAL)
