"""An export that a stock model server could not serve, or not rightly, is found and explained."""

import subprocess

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer.errors import InputError
from keras_transformer.serving.export_checks import check_operations, compare_answers
from keras_transformer.serving.warm_up import Request, write_requests


def _double(x):
    return {"y": 2.0 * x}


def _double_in_python(x):
    return {"y": tf.py_function(lambda x: 2.0 * x, [x], tf.float32)}


def _double_compiled(x):
    return {"y": tf.function(lambda x: 2.0 * x, jit_compile=True)(x)}


def _save(folder, double=_double):
    inputs = [tf.TensorSpec([None], tf.float32, name="x")]
    function = tf.function(double, input_signature=inputs).get_concrete_function()
    tf.saved_model.save(tf.Module(), str(folder), signatures={"serving_default": function})
    return function


def _rename_operation(version, old, new):
    path = version / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    renamed = 0
    for function in model.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op == old:
                node.op = new
                renamed += 1
    assert renamed
    path.write_bytes(model.SerializeToString())


@pytest.fixture
def request_to(tmp_path):
    """Writes one request beside the SavedModel."""
    requests = [Request("serving_default", {"x": np.array([1.0, 2.0], np.float32)})]

    def write(version):
        write_requests(version, requests, "doubler")
        return requests

    return write


def test_operations_of_tensorflow_alone_pass(tmp_path):
    _save(tmp_path)
    assert check_operations(tmp_path) == []


def test_those_of_tensorflow_text_are_told(exported):
    assert "SentencepieceTokenizeOp" in check_operations(exported)


def test_python_is_refused_by_name(tmp_path):
    _save(tmp_path, _double_in_python)
    with pytest.raises(InputError, match=r"calls Python \(EagerPyFunc\), which a model server"):
        check_operations(tmp_path)


def test_xla_is_refused_unless_allowed(tmp_path):
    _save(tmp_path, _double_compiled)
    with pytest.raises(InputError, match="XLA must compile, which a stock model server refuses"):
        check_operations(tmp_path)
    check_operations(tmp_path, allow_xla=True)


def test_a_fresh_process_that_gives_the_same_answers_passes(tmp_path, request_to):
    function = _save(tmp_path)
    compare_answers(tmp_path, request_to(tmp_path), {"serving_default": function})


def test_an_operation_that_no_library_has_is_told(tmp_path, request_to):
    function = _save(tmp_path)
    _rename_operation(tmp_path, "Mul", "Multiplication")
    assert check_operations(tmp_path) == ["Multiplication"]
    requests = request_to(tmp_path)
    with pytest.raises(InputError, match=r"cannot run the export: .*Multiplication"):
        compare_answers(tmp_path, requests, {"serving_default": function})


class _Replayed:
    """Stands in for the fresh process, which answers as it is reported to."""

    returncode = 0

    def __init__(self, answer):
        self.log = prediction_log_pb2.PredictionLog()
        for name, value in answer.items():
            outputs = self.log.predict_log.response.outputs
            outputs[name].CopyFrom(tf.make_tensor_proto(value))

    def __call__(self, command, **options):
        with tf.io.TFRecordWriter(command[4]) as writer:
            writer.write(self.log.SerializeToString())
        return self

    def communicate(self):
        return "", None

    def kill(self):
        pass


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ({"y": ["a", "b"]}, {"y": ["a", "c"]}, "output y of signature s is another one"),
        ({"y": [1, 2]}, {"y": [1, 3]}, "output y of signature s is another one"),
        ({"y": [1.0, 2.0]}, {"y": [1.0, 2.1]}, "output y of signature s is another one"),
        ({"y": [1.0, 2.0]}, {"y": [[1.0, 2.0]]}, "output y of signature s is another one"),
        ({"y": [1.0]}, {"z": [1.0]}, "signature s gives z when exported, but y in Python"),
        ({"y": [np.inf]}, {"y": [np.inf]}, "output y of signature s has infinite numbers"),
        ({"y": [1.0, -30.0]}, {"y": [1.00001, -30.001]}, None),
    ],
)
def test_text_and_whole_numbers_must_be_equal_and_others_close(
    tmp_path, monkeypatch, ours, theirs, message
):
    monkeypatch.setattr(subprocess, "Popen", _Replayed(theirs))
    tensors = {name: tf.constant(value) for name, value in ours.items()}
    arguments = (tmp_path, [Request("s", {})], {"s": lambda: tensors})
    if message is None:
        compare_answers(*arguments)
    else:
        with pytest.raises(InputError, match=message):
            compare_answers(*arguments)
