"""Checks before an export is published: its operations, and its answers in a fresh process."""

import subprocess

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer.errors import InputError
from keras_transformer.serving import checks
from keras_transformer.serving.checks import check_operations, compare_answers
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


def test_tensorflow_operations_pass(tmp_path):
    _save(tmp_path)
    assert check_operations(tmp_path) == []


def test_tensorflow_text_operations_are_listed(exported):
    assert "SentencepieceTokenizeOp" in check_operations(exported)


def test_python_operations_are_rejected(tmp_path):
    _save(tmp_path, _double_in_python)
    with pytest.raises(InputError, match=r"calls Python \(EagerPyFunc\), which a model server"):
        check_operations(tmp_path)


def test_operations_newer_than_the_oldest_server_are_rejected(tmp_path):
    _save(tmp_path)
    _rename_operation(tmp_path, "Mul", "DecodeJxl")
    with pytest.raises(InputError, match=r"needs DecodeJxl, which TensorFlow Serving 2\.20 does"):
        check_operations(tmp_path)


def test_newer_operations_cover_the_installed_tensorflow():
    # With a later one, extend the list of operations that the oldest server does not have.
    assert tf.__version__.split(".")[:2] <= checks.COVERED_TENSORFLOW.split(".")


def test_xla_is_rejected_unless_allowed(tmp_path):
    _save(tmp_path, _double_compiled)
    with pytest.raises(InputError, match="XLA must compile, which a stock model server rejects"):
        check_operations(tmp_path)
    check_operations(tmp_path, allow_xla=True)


def test_equal_answers_of_a_fresh_process_pass(tmp_path, request_to):
    function = _save(tmp_path)
    compare_answers(tmp_path, request_to(tmp_path), {"serving_default": function})


def test_unknown_operation_is_reported(tmp_path, request_to):
    function = _save(tmp_path)
    _rename_operation(tmp_path, "Mul", "Multiplication")
    assert check_operations(tmp_path) == ["Multiplication"]
    requests = request_to(tmp_path)
    with pytest.raises(InputError, match=r"cannot run the export: .*Multiplication"):
        compare_answers(tmp_path, requests, {"serving_default": function})


class _Replayed:
    """Replaces the fresh process and gives fixed answers."""

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

    def communicate(self, timeout):
        return "", None

    def kill(self):
        pass

    def wait(self):
        pass


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        (
            {"y": ["a", "b"]},
            {"y": ["a", "c"]},
            "output y of signature s changes when it is exported",
        ),
        ({"y": [1, 2]}, {"y": [1, 3]}, "output y of signature s changes when it is exported"),
        (
            {"y": [1.0, 2.0]},
            {"y": [1.0, 2.1]},
            "output y of signature s changes when it is exported",
        ),
        (
            {"y": [1.0, 2.0]},
            {"y": [[1.0, 2.0]]},
            "output y of signature s changes when it is exported",
        ),
        ({"y": [1.0]}, {"z": [1.0]}, "signature s gives z when exported, but y in Python"),
        ({"y": [np.inf]}, {"y": [np.inf]}, "output y of signature s has infinite numbers"),
        ({"y": [1.0, -30.0]}, {"y": [1.00001, -30.001]}, None),
    ],
)
def test_answers_are_compared_by_type(tmp_path, monkeypatch, ours, theirs, message):
    monkeypatch.setattr(subprocess, "Popen", _Replayed(theirs))
    tensors = {name: tf.constant(value) for name, value in ours.items()}
    arguments = (tmp_path, [Request("s", {})], {"s": lambda: tensors})
    if message is None:
        compare_answers(*arguments)
    else:
        with pytest.raises(InputError, match=message):
            compare_answers(*arguments)


def _compare_with(theirs, ours, monkeypatch, folder):
    monkeypatch.setattr(subprocess, "Popen", _Replayed(theirs))
    tensors = {name: tf.constant(value) for name, value in ours.items()}
    rows = np.zeros(len(next(iter(ours.values()))))
    compare_answers(folder, [Request("s", {"text": rows})], {"s": lambda text: tensors})


_TWENTY = {"translations": [[f"{row}"] for row in range(20)], "scores": [[-1.0]] * 20}
_TIES = {
    "text": (_TWENTY, _TWENTY | {"translations": [["x"], ["y"], *_TWENTY["translations"][2:]]}),
    "ids": (
        {"ids": [[[4, 3]]] * 10, "lengths": [[2]] * 10, "scores": [[-1.0]] * 10},
        {
            "ids": [[[4, 5, 3]]] + [[[4, 3, 0]]] * 9,
            "lengths": [[3]] + [[2]] * 9,
            "scores": [[-1.00001]] + [[-1.0]] * 9,
        },
    ),
}


@pytest.mark.parametrize(("kind", "count"), [("text", "2 of 20"), ("ids", "1 of 10")])
def test_near_ties_are_a_warning(tmp_path, monkeypatch, kind, count):
    ours, theirs = _TIES[kind]
    with pytest.warns(UserWarning, match=f"{count} answers .* differ .* near ties"):
        _compare_with(theirs, ours, monkeypatch, tmp_path)


def test_equal_answers_give_no_warning(tmp_path, monkeypatch, recwarn):
    for ours, _ in _TIES.values():
        _compare_with(ours, ours, monkeypatch, tmp_path)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (
            {"scores": [[-1.001]] + [[-1.0]] * 19},
            "output scores of signature s changes when it is exported",
        ),
        ({"translations": [["x"]] * 3 + _TWENTY["translations"][3:]}, "3 of 20 .* too many for"),
        ({"translations": [["x"]] * 20}, "20 of 20 answers .* too many for near ties"),
        (
            {"translations": [["x", "y"]] * 20},
            "output translations of signature s changes when it is",
        ),
    ],
)
def test_other_differences_are_rejected(tmp_path, monkeypatch, theirs, message):
    ours = _TWENTY | {"translations": [["z"]] * 20} if "20 of 20" in message else _TWENTY
    with pytest.raises(InputError, match=message):
        _compare_with(ours | theirs, ours, monkeypatch, tmp_path)


def test_process_that_hangs_is_stopped(tmp_path, monkeypatch):
    program = tmp_path / "hang.py"
    program.write_text("import time; time.sleep(600)")
    monkeypatch.setattr("keras_transformer.serving.replay_warm_up.__file__", str(program))
    started = []
    popen = subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(InputError, match=r"did not answer .* within 0\.5 seconds; allow more"):
        compare_answers(tmp_path, [], {}, timeout=0.5)
    assert started[0].returncode is not None
