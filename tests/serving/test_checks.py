"""Warm-up requests, and the comparison of answers with those of a fresh process."""

import subprocess
import sys
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.inference import XlaShapes
from keras_transformer.serving import checks
from keras_transformer.serving.checks import (
    Request,
    compare_answers,
    make_requests,
    write_requests,
)
from keras_transformer.text import learn_vocabulary

_SENTENCES = ["a b c", "a", "a b c d e", "a b", "a b c d"]


def _signature(**inputs):
    """Stands in for a function of the graph, of which only the inputs matter here."""
    specs = [tf.TensorSpec([None], dtype, name) for name, dtype in inputs.items()]
    return types.SimpleNamespace(structured_input_signature=(tuple(specs), {}))


_SIGNATURES = {
    "serving_default": _signature(text=tf.string),
    "score": _signature(source=tf.string, target=tf.string),
    "tokens": _signature(source=tf.string),
    "options": _signature(text=tf.string, penalty=tf.float32, limit=tf.int32, prefix=tf.string),
}


@pytest.fixture(scope="module")
def translator():
    """Stands in for one, of which only the vocabularies and a limit matter here."""
    vocabulary = learn_vocabulary(["a b c d e f"], size=10, kind="word")
    search = SearchConfig(max_source_length=12)
    return types.SimpleNamespace(vocabularies=(vocabulary, vocabulary), search=search, xla=None)


def _inputs(requests, signature):
    return [each.inputs for each in requests if each.signature == signature]


def _ids(row):
    return list(map(int, row.split()))


def test_requests_have_all_signatures_lengths_inputs_and_compiled_shapes(translator, tmp_path):
    compiled = types.SimpleNamespace(**vars(translator) | {"xla": XlaShapes((1, 64), (3, 8))})
    requests = make_requests(compiled, _SIGNATURES, [*_SENTENCES, "a " * 500])
    assert [each.size for each in requests] == [1] * 4 + [8] * 4 + [1] * 2 + [64] * 2
    one, eight = (inputs["text"].tolist() for inputs in _inputs(requests, "serving_default"))
    assert (one, eight[0], len(eight[-1])) == ([b"a b c d"], b"a", 1000)
    targets = _inputs(requests, "score")[1]["target"]
    assert [len(text.split()) for text in targets][:2] == [1, 1]  # as long as the sources
    ids = list(map(_ids, _inputs(requests, "tokens")[1]["source"]))
    assert translator.vocabularies[0].decode(ids)[0] == "a" and len(ids[-1]) == 12
    inputs = _inputs(requests, "options")[1]  # which stay as exported
    expected = {"penalty": [-1.0] * 8, "limit": [-1] * 8, "prefix": [b""] * 8}
    assert {name: inputs[name].tolist() for name in expected} == expected
    lengths = [{len(_ids(row)) for row in request.inputs["source"]} for request in requests[8:]]
    assert lengths == [{2}, {7}, {2}, {7}]  # and EOS

    write_requests(tmp_path, requests, "words")
    path = tmp_path / "assets.extra" / "tf_serving_warmup_requests"
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    for record, (signature, inputs) in zip(records, requests, strict=True):
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        assert (request.model_spec.name, request.model_spec.signature_name) == ("words", signature)
        assert request.inputs.keys() == inputs.keys()
        for name, value in inputs.items():
            assert np.array_equal(tf.make_ndarray(request.inputs[name]), value)


@pytest.mark.parametrize("sentences", [(), ["", " "]])
def test_sentences_are_generated_by_default(translator, sentences):
    requests = make_requests(translator, _SIGNATURES, sentences)
    texts = _inputs(requests, "serving_default")[-1]["text"].tolist()
    lengths = [len(text.split()) for text in texts]
    assert lengths[0] <= 2 < 30 <= lengths[-1]
    assert {word for text in texts for word in text.split()} == set(b"a b c d e f".split())
    again = make_requests(translator, _SIGNATURES, sentences)
    assert _inputs(again, "serving_default")[-1]["text"].tolist() == texts


def _compare(ours, theirs, monkeypatch, folder):
    """Compares outputs of Python with fixed ones in place of those of the fresh process."""
    outputs = {name: tf.make_tensor_proto(value) for name, value in theirs.items()}
    answer = predict_pb2.PredictResponse(outputs=outputs)

    def start(command, **options):
        with tf.io.TFRecordWriter(command[4]) as writer:
            writer.write(answer.SerializeToString())
        return mock.Mock(returncode=0, communicate=lambda timeout: ("", None))

    monkeypatch.setattr(subprocess, "Popen", start)
    tensors = {name: tf.constant(value) for name, value in ours.items()}
    requests = [Request("s", {"text": np.zeros(len(next(iter(ours.values()))))})]
    compare_answers(folder, requests, {"s": lambda text: tensors})


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
        ({"y": ["a", "b"]}, {"y": ["a", "c"]}, "output y of signature s .* changes"),
        ({"y": [1, 2]}, {"y": [1, 3]}, "output y of signature s .* changes"),
        ({"y": [1.0, 2.0]}, {"y": [1.0, 2.1]}, "output y of signature s .* changes"),
        ({"y": [1.0, 2.0]}, {"y": [[1.0, 2.0]]}, "output y of signature s .* changes"),
        ({"y": [1.0]}, {"z": [1.0]}, "signature s gives z when exported, but y in Python"),
        ({"y": [np.inf]}, {"y": [np.inf]}, "output y of signature s is infinite"),
        (_TWENTY, _TWENTY | {"scores": [[-1.001]] + [[-1.0]] * 19}, "output scores of .* changes"),
        (_TWENTY, _TWENTY | {"translations": [["x", "y"]] * 20}, "output translations of .* chan"),
        (_TWENTY, _THREE_DIFFER, "3 of 20 answers .* too many"),
    ],
)
def test_different_answers_are_rejected(tmp_path, monkeypatch, ours, theirs, message):
    with pytest.raises(InputError, match=message):
        _compare(ours, theirs, monkeypatch, tmp_path)


def test_near_ties_and_rounding_are_accepted(tmp_path, monkeypatch):
    rounded = {"y": [1.0, -30.0]}, {"y": [1.00001, -30.001]}
    equal = (_TWENTY, _TWENTY), (_TWENTY, _TWO_DIFFER), (_IDS, _ONE_IS_LONGER), rounded
    for ours, theirs in equal:
        _compare(ours, theirs, monkeypatch, tmp_path)


@pytest.mark.slow
def test_fresh_process_cannot_call_python(tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def double(x):
        return {"y": tf.py_function(lambda x: 2.0 * x, [x], tf.float32)}

    function = double.get_concrete_function()
    tf.saved_model.save(tf.Module(), str(tmp_path), signatures={"serving_default": function})
    requests = [Request("serving_default", {"x": np.array([1.0, 2.0], np.float32)})]
    write_requests(tmp_path, requests, "doubler")
    with pytest.raises(InputError, match=r"fresh process .* cannot run the export: \S+"):
        compare_answers(tmp_path, requests, {"serving_default": function})


def test_failing_functions_and_hanging_processes_are_reported(tmp_path, monkeypatch):
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
    with pytest.raises(InputError, match=r"fails on the export.s warm-up .*no XLA kernel"):
        compare_answers(
            tmp_path,
            [Request("s", {})],
            {"s": lambda: tf.debugging.Assert(False, ["no XLA kernel"])},
        )
    assert [process.returncode is not None for process in started] == [True, True]


def test_missing_serving_package_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorflow_serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorflow_serving", None)
    with pytest.raises(InputError, match=r"package tensorflow_serving.*'.\[serving\]'"):
        checks.check_installed()
