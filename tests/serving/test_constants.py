"""Equal constants of a SavedModel are merged; its answers stay the same."""

import collections

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.serving.constants import merge_constants


class _Sums(tf.Module):
    """Has equal constants at its top, in a branch and in a loop, and two that are equal in part."""

    def __init__(self):
        self.weight = tf.Variable([[1.0, 2.0], [3.0, 4.0]])

    @tf.function(input_signature=[tf.TensorSpec([None, 2])], autograph=False)
    def __call__(self, values):
        rows = tf.reduce_sum(values, 1) + tf.reduce_sum(values * values, 1) + tf.constant(1.0)
        rows = tf.while_loop(lambda x: tf.reduce_sum(x) < 50.0, lambda x: (x + 1.0 + 1.0) * 1.0,
                             [rows], shape_invariants=[tf.TensorShape([None])])[0]  # fmt: skip
        large = tf.cond(tf.reduce_sum(rows) > 60.0, lambda: rows + 7.0 - 7.0, lambda: rows - 1.0)
        one = tf.constant(1.0)
        with tf.control_dependencies([tf.constant(1.0)]):  # an input "^Const_1"
            return {"sums": large + one, "one": tf.identity(one)}


def _constants(folder):
    model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    (meta_graph,) = model.meta_graphs
    return {
        function.signature.name: collections.Counter(
            node.attr["value"].tensor.SerializeToString(deterministic=True)
            for node in function.node_def
            if node.op == "Const"
        )
        for function in meta_graph.graph_def.library.function
        if "save" not in function.signature.name and "restore" not in function.signature.name
    }


def test_each_function_has_a_constant_once_and_gives_the_same(tmp_path):
    tf.saved_model.save(_Sums(), tmp_path)
    before, values = _constants(tmp_path), tf.constant([[1.0, 2.0], [3.0, -4.0], [0.5, 0.25]])
    expected = tf.saved_model.load(tmp_path)(values)
    fingerprint = tf.saved_model.experimental.read_fingerprint(str(tmp_path))
    merge_constants(tmp_path)
    after = _constants(tmp_path)
    assert max(max(counts.values(), default=0) for counts in before.values()) > 1
    assert {name: set(counts) for name, counts in after.items()} == {
        name: set(counts) for name, counts in before.items()
    }
    assert all(count == 1 for counts in after.values() for count in counts.values())
    answers = tf.saved_model.load(tmp_path)(values)
    for name, answer in expected.items():
        assert answers[name].numpy().tolist() == answer.numpy().tolist()
    assert tf.saved_model.experimental.read_fingerprint(str(tmp_path)) != fingerprint
