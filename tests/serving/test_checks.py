"""Warm-up requests, and checks before an export is published: operations, answers elsewhere."""

import subprocess
import sys
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.inference import XlaShapes
from keras_transformer.serving import checks
from keras_transformer.serving.checks import (
    Request,
    check_operations,
    compare_answers,
    make_requests,
    write_requests,
)
from keras_transformer.text import learn_vocabulary

_SENTENCES = ["a b c", "a", "a b c d e", "a b", "a b c d"]


def _signature(**inputs):
    """Stands in for a function of the graph, of which only the inputs matter here."""
    specs = [tf.TensorSpec([None] * rank, dtype, name) for name, (dtype, rank) in inputs.items()]
    return types.SimpleNamespace(structured_input_signature=(tuple(specs), {}))


_SIGNATURES = {
    "serving_default": _signature(text=(tf.string, 1)),
    "score": _signature(source=(tf.string, 1), target=(tf.string, 1)),
    "tokens": _signature(source=(tf.string, 1)),
    "options": _signature(
        text=(tf.string, 1), penalty=(tf.float32, 1), limit=(tf.int32, 1), prefix=(tf.string, 1)
    ),
}


@pytest.fixture(scope="module")
def translator():
    """Stands in for one, of which only the vocabularies and a limit matter here."""
    vocabulary = learn_vocabulary(["a b c d e f"], size=10, kind="word")
    tokenizer = types.SimpleNamespace(vocabulary=vocabulary)
    search = SearchConfig(max_source_length=12)
    return types.SimpleNamespace(
        source_tokenizer=tokenizer, target_tokenizer=tokenizer, search=search, xla=None
    )


@pytest.fixture(scope="module")
def requests(translator):
    return make_requests(translator, _SIGNATURES, _SENTENCES, batch_sizes=(1, 3))


def _inputs(requests, signature):
    return [each.inputs for each in requests if each.signature == signature and not each.outputs]


def _ids(row):
    return list(map(int, row.split()))


def test_requests_have_all_signatures_lengths_and_inputs(requests, translator):
    assert {each.signature for each in requests} == _SIGNATURES.keys()
    texts = [inputs["text"].tolist() for inputs in _inputs(requests, "serving_default")]
    assert texts == [[b"a"], [b"a b c"], [b"a b c d e"], [b"a", b"a b c", b"a b c d e"]]
    for request in requests:
        assert {value.shape[0] for value in request.inputs.values()} in ({1}, {3})
    targets = _inputs(requests, "score")[-1]["target"]
    assert [len(text.split()) for text in targets] == [1, 3, 5]  # as long as the sources
    ids = list(map(_ids, _inputs(requests, "tokens")[-1]["source"]))
    assert translator.source_tokenizer.vocabulary.decode(ids) == ["a", "a b c", "a b c d e"]
    inputs = _inputs(requests, "options")[-1]  # which stay as exported
    expected = {"penalty": [-1.0] * 3, "limit": [-1] * 3, "prefix": [b""] * 3}
    assert {name: inputs[name].tolist() for name in expected} == expected


def test_large_batches_go_to_serving_default_alone(translator):
    requests = make_requests(translator, _SIGNATURES, _SENTENCES, batch_sizes=(8, 9))
    assert [each.size for each in requests] == [8, 8, 8, 8, 9, 8, 8]
    assert requests[4].signature == "serving_default"


def test_usual_subsets_of_outputs_are_requested_once(requests):
    subsets = [each for each in requests if each.outputs]
    assert {each.signature for each in subsets} == {"serving_default"}
    assert [each.outputs for each in subsets] == [("translations",), ("translations", "scores")]


def test_each_compiled_shape_is_warmed_up_if_it_is_accepted(translator, requests):
    compiled = types.SimpleNamespace(**vars(translator) | {"xla": XlaShapes((1, 64), (3, 8))})
    more = make_requests(compiled, _SIGNATURES, _SENTENCES, batch_sizes=(1, 3))[len(requests) :]
    assert [request.signature for request in more] == ["tokens"] * 4
    lengths = [[len(_ids(row)) for row in request.inputs["source"]] for request in more]
    assert lengths == [[2], [7], [2] * 64, [7] * 64]  # and EOS
    found = make_requests(compiled, _SIGNATURES, _SENTENCES, (1, 3, 64), most_sentences=2)
    assert {request.size for request in found} == {1, 2}
    assert [len(inputs["source"]) for inputs in _inputs(found, "tokens")[-4:]] == [1, 1, 2, 2]


@pytest.mark.parametrize("sentences", [(), ["", " "]])
def test_sentences_are_generated_by_default(translator, sentences):
    requests = make_requests(translator, _SIGNATURES, sentences)
    texts = _inputs(requests, "serving_default")[-1]["text"]
    lengths = [len(text.split()) for text in texts]
    assert len(lengths) == 64
    assert lengths[0] <= 2 < 30 <= lengths[-1]
    assert {word for text in texts for word in text.split()} == set(b"a b c d e f".split())
    again = make_requests(translator, _SIGNATURES, sentences)
    assert _inputs(again, "serving_default")[-1]["text"].tolist() == texts.tolist()


def test_tokens_of_long_sentences_are_truncated(translator):
    requests = make_requests(translator, _SIGNATURES, ["a " * 500], batch_sizes=[1])
    assert len(_inputs(requests, "serving_default")[0]["text"][0]) == 1000
    assert [len(_ids(row)) for row in _inputs(requests, "tokens")[0]["source"]] == [12]


def test_file_is_a_tfrecord_of_prediction_logs(requests, tmp_path):
    write_requests(tmp_path, requests, "words")
    path = tmp_path / "assets.extra" / "tf_serving_warmup_requests"
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    logs = [prediction_log_pb2.PredictionLog.FromString(record) for record in records]
    assert len(logs) == len(requests)
    for log, (signature, inputs, outputs) in zip(logs, requests, strict=True):
        request = log.predict_log.request
        assert (request.model_spec.name, request.model_spec.signature_name) == ("words", signature)
        assert tuple(request.output_filter) == outputs
        assert request.inputs.keys() == inputs.keys()
        for name, value in inputs.items():
            assert np.array_equal(tf.make_ndarray(request.inputs[name]), value)


def test_too_many_requests_are_rejected(translator):
    shapes = XlaShapes((1,), tuple(range(3, 1003)))
    compiled = types.SimpleNamespace(**vars(translator) | {"xla": shapes})
    with pytest.raises(InputError, match=r"1014 warm-up requests are more than the 1000"):
        make_requests(compiled, _SIGNATURES, _SENTENCES, batch_sizes=[1])


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


@pytest.mark.parametrize(
    ("double", "renamed", "message"),
    [
        (_double_in_python, "Mul", r"calls Python \(EagerPyFunc\), which a model server"),
        (_double, "DecodeJxl", r"needs DecodeJxl, which TensorFlow Serving 2\.20 does"),
        (_double_compiled, "Mul", "XLA must compile, which model servers on CPUs reject"),
    ],
)
def test_operations_that_a_server_lacks_are_rejected(tmp_path, double, renamed, message):
    _save(tmp_path, double)
    if double is _double:
        _rename_operation(tmp_path, "Mul", renamed)
    with pytest.raises(InputError, match=message):
        check_operations(tmp_path)
    if double is _double_compiled:
        check_operations(tmp_path, allow_xla=True)


def test_uncompared_tensorflow_is_a_warning(tmp_path, monkeypatch, recwarn):
    _save(tmp_path)
    assert check_operations(tmp_path) == []
    assert not recwarn.list  # with a later TensorFlow, update what checks.py says of its operations
    monkeypatch.setattr(tf, "__version__", "2.22.0-rc1")
    with pytest.warns(UserWarning, match=r"operations that TensorFlow 2\.22\.0-rc1 has and"):
        check_operations(tmp_path)


@pytest.mark.slow
def test_unknown_operation_is_reported(tmp_path):
    function = _save(tmp_path)
    _rename_operation(tmp_path, "Mul", "Multiplication")
    assert check_operations(tmp_path) == ["Multiplication"]
    requests = [Request("serving_default", {"x": np.array([1.0, 2.0], np.float32)})]
    write_requests(tmp_path, requests, "doubler")
    with pytest.raises(InputError, match=r"cannot run the export: .*Multiplication"):
        compare_answers(tmp_path, requests, {"serving_default": function})


def _replace_process(monkeypatch, answer):
    """Replaces the fresh process by one that has ended in time, with fixed answers."""
    log = prediction_log_pb2.PredictionLog()
    for name, value in answer.items():
        log.predict_log.response.outputs[name].CopyFrom(tf.make_tensor_proto(value))

    def communicate(timeout):
        if timeout is not None:
            raise subprocess.TimeoutExpired("python", timeout)
        return "", None

    def start(command, **options):
        with tf.io.TFRecordWriter(command[4]) as writer:
            writer.write(log.SerializeToString())
        return mock.Mock(returncode=0, poll=lambda: 0, communicate=communicate)

    monkeypatch.setattr(subprocess, "Popen", start)


def _compare(ours, theirs, monkeypatch, folder):
    """Compares outputs of Python, which takes longer than it may, and of the fresh process."""
    _replace_process(monkeypatch, theirs)
    tensors = {name: tf.constant(value) for name, value in ours.items()}
    rows = np.zeros(len(next(iter(ours.values()))))
    requests = [Request("s", {"text": rows})]
    compare_answers(folder, requests, {"s": lambda text: tensors}, timeout=0.0)


_TWENTY = {"translations": [[f"{row}"] for row in range(20)], "scores": [[-1.0]] * 20}
_THREE_DIFFER = _TWENTY | {"translations": [["x"]] * 3 + _TWENTY["translations"][3:]}
_TWO_DIFFER = _TWENTY | {"translations": [["x"], ["y"], *_TWENTY["translations"][2:]]}
_IDS = {"ids": [[[4, 3]]] * 10, "lengths": [[2]] * 10, "scores": [[-1.0]] * 10}
_ONE_IS_LONGER = {
    "ids": [[[4, 5, 3]]] + [[[4, 3, 0]]] * 9,
    "lengths": [[3]] + [[2]] * 9,
    "scores": [[-1.00001]] + [[-1.0]] * 9,
}


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ({"y": ["a", "b"]}, {"y": ["a", "c"]}, "output y of signature s changes when it is export"),
        ({"y": [1, 2]}, {"y": [1, 3]}, "output y of signature s changes"),
        ({"y": [1.0, 2.0]}, {"y": [1.0, 2.1]}, "output y of signature s changes"),
        ({"y": [1.0, 2.0]}, {"y": [[1.0, 2.0]]}, "output y of signature s changes"),
        ({"y": [1.0]}, {"z": [1.0]}, "signature s gives z when exported, but y in Python"),
        ({"y": [np.inf]}, {"y": [np.inf]}, "output y of signature s has infinite numbers"),
        (_TWENTY, _TWENTY | {"scores": [[-1.001]] + [[-1.0]] * 19}, "output scores of .* changes"),
        (_TWENTY, _TWENTY | {"translations": [["x", "y"]] * 20}, "output translations of .* chan"),
        (_TWENTY, _THREE_DIFFER, "3 of 20 answers .* too many for near ties"),
    ],
)
def test_different_answers_are_rejected(tmp_path, monkeypatch, ours, theirs, message):
    with pytest.raises(InputError, match=message):
        _compare(ours, theirs, monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("ours", "theirs", "count"),
    [(_TWENTY, _TWO_DIFFER, "2 of 20"), (_IDS, _ONE_IS_LONGER, "1 of 10")],
    ids=["text", "ids"],
)
def test_near_ties_are_a_warning(tmp_path, monkeypatch, ours, theirs, count):
    with pytest.warns(UserWarning, match=f"{count} answers .* differ .* near ties"):
        _compare(ours, theirs, monkeypatch, tmp_path)


def test_equal_answers_give_no_warning(tmp_path, monkeypatch, recwarn):
    rounded = {"y": [1.0, -30.0]}, {"y": [1.00001, -30.001]}
    for ours, theirs in ((_TWENTY, _TWENTY), (_IDS, _IDS), rounded):
        _compare(ours, theirs, monkeypatch, tmp_path)
    assert not recwarn.list


def test_functions_that_fail_are_reported(tmp_path, monkeypatch):
    _replace_process(monkeypatch, {})

    def fail():
        tf.debugging.Assert(False, ["no XLA kernel"])

    with pytest.raises(InputError, match=r"fails on the export.s warm-up .*no XLA kernel"):
        compare_answers(tmp_path, [Request("s", {})], {"s": fail})


def test_process_that_hangs_is_stopped(tmp_path, monkeypatch):
    (tmp_path / "hang.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(checks, "_FRESH_PROCESS", tmp_path / "hang.py")
    started = []
    popen = subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(InputError, match=r"did not answer .* within 0\.5 seconds; allow more"):
        compare_answers(tmp_path, [], {}, timeout=0.5)
    assert started[0].returncode is not None


def test_missing_serving_package_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorflow_serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorflow_serving", None)
    message = r"needs the package tensorflow_serving.*; run pip install '.\[serving\]' in"
    with pytest.raises(InputError, match=message):
        checks.check_installed()
