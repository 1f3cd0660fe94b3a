"""Merges equal constants of a SavedModel: two fifths of the nodes of an export.

TensorFlow makes a node for each number in Python code, each axis of a sum and each bound of a
slice. A model server copies all nodes of an export for each signature, and again for each set of
outputs.
"""

import pathlib
from collections.abc import Collection, MutableSequence
from typing import Any

from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model.fingerprinting_utils import write_fingerprint

from keras_transformer.files import write_atomically


def merge_constants(version: pathlib.Path) -> None:
    """Rewrites the graph of a SavedModel so that each function has a constant once."""
    path = version / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for meta_graph in model.meta_graphs:
        for function in meta_graph.graph_def.library.function:
            merged = _merge(function.node_def, set(function.control_ret.values()))
            for name, output in function.ret.items():
                function.ret[name] = _renamed(output, merged)
    write_atomically(path, model.SerializeToString(deterministic=True))
    write_fingerprint(str(version))  # of the new graph, in fingerprint.pb


def _merge(nodes: MutableSequence[NodeDef], outputs: Collection[str]) -> dict[str, str]:
    """Removes constants that an earlier one equals, and returns the name of that one for each.

    The control outputs of the function, by name, stay.
    """
    first: dict[Any, str] = {}
    merged: dict[str, str] = {}
    for node in nodes:
        if node.op == "Const" and not node.input and node.name not in outputs:
            value = node.attr["value"].tensor.SerializeToString(deterministic=True)
            name = first.setdefault((node.device, value), node.name)
            if name != node.name:
                merged[node.name] = name
    for place in reversed(range(len(nodes))):
        if nodes[place].name in merged:
            del nodes[place]
        else:
            nodes[place].input[:] = [_renamed(name, merged) for name in nodes[place].input]
    return merged


def _renamed(tensor: str, merged: dict[str, str]) -> str:
    """Returns an input such as "axis:output:0", or "^axis" for a control input, after merging."""
    name, colon, output = tensor.removeprefix("^").partition(":")
    return "^" * tensor.startswith("^") + merged.get(name, name) + colon + output
