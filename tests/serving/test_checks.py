"""Warm-up requests, and the comparison of answers with those of a fresh process."""

import pathlib
import pickle
import subprocess
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer.errors import InputError
from keras_transformer.inference import XlaShapes
from keras_transformer.serving import checks
from keras_transformer.serving.checks import (
    Request,
    compare_answers,
    make_requests,
    write_requests,
)
from keras_transformer.text import Tokenizer, learn_vocabulary

_SENTENCES = ["a b c", "a", "a b c d e", "a b", "a b c d", "a " * 500]


def _signature(**inputs):
    """Stands in for a function of the graph, of which only the inputs matter here."""
    specs = [tf.TensorSpec([None], dtype, name) for name, dtype in inputs.items()]
    return types.SimpleNamespace(structured_input_signature=(tuple(specs), {}))


_SIGNATURES = {
    "serving_default": _signature(text=tf.string),
    "score": _signature(source=tf.string, target=tf.string),
    "options": _signature(text=tf.string, top_p=tf.float32, max_length=tf.int32, prefix=tf.string),
}


@pytest.fixture(scope="module")
def translator():
    """Stands in for one, of which only the vocabularies, tokens and shapes matter here."""
    vocabulary = learn_vocabulary(["a b c d e f"], size=10, kind="word")

    def read(text):
        return types.SimpleNamespace(lengths=Tokenizer(vocabulary).tokenize(text).row_lengths())

    return types.SimpleNamespace(
        vocabularies=(vocabulary, vocabulary), read=read, xla=XlaShapes((1, 64), (3, 8))
    )


def _inputs(requests, signature):
    return [each.inputs for each in requests if each.signature == signature]


def test_requests_have_all_signatures_lengths_inputs_and_compiled_shapes(translator, tmp_path):
    requests = make_requests(translator, _SIGNATURES, _SENTENCES)
    assert [each.size for each in requests] == [1] * 3 + [8] * 3 + [1] * 2 + [64] * 2
    one, eight, *compiled = (
        inputs["text"].tolist() for inputs in _inputs(requests, "serving_default")
    )
    assert (one, eight[0], len(eight[-1])) == ([b"a b c d"], b"a", 1000)
    targets = _inputs(requests, "score")[1]["target"]
    assert [len(text.split()) for text in targets][:2] == [1, 1]  # as long as the sources
    inputs = _inputs(requests, "options")[1]  # which stay as exported
    expected = {"top_p": [-1.0] * 8, "max_length": [-1] * 8, "prefix": [""] * 8}
    assert {name: inputs[name].tolist() for name in expected} == expected
    lengths = [{len(text.split()) for text in texts} for texts in compiled]
    assert lengths == [{2}, {7}, {2}, {7}]  # and EOS

    write_requests(tmp_path, requests, "words")
    path = tmp_path / "assets.extra" / "tf_serving_warmup_requests"
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    for record, (signature, inputs) in zip(records, requests, strict=True):
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        assert (request.model_spec.name, request.model_spec.signature_name) == ("words", signature)
        assert request.inputs.keys() == inputs.keys()
        for name, value in inputs.items():
            assert request.inputs[name] == tf.make_tensor_proto(value)


# Answers

_TWENTY = {"translations": [[f"{row}"] for row in range(20)], "scores": [[-1.0]] * 20}
_THREE_DIFFER = _TWENTY | {"translations": [["x"]] * 3 + _TWENTY["translations"][3:]}
_TWO_DIFFER = _TWENTY | {"translations": [["x"], ["y"], *_TWENTY["translations"][2:]]}


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
        (
            _TWENTY | {"source_cut": [False] * 20},
            _TWENTY | {"source_cut": [True] + [False] * 19},
            "output source_cut of .* changes",
        ),
        # Equal, near ties, and rounding
        (_TWENTY, _TWENTY, None),
        (_TWENTY, _TWO_DIFFER, None),
        ({"y": [1.0, -30.0]}, {"y": [1.00001, -30.001]}, None),
    ],
)
def test_answers_of_a_fresh_process_may_differ_in_near_ties(
    tmp_path, monkeypatch, ours, theirs, message
):
    """Fixed outputs stand in for those of the fresh process."""
    outputs = {name: tf.constant(value).numpy() for name, value in theirs.items()}

    def start(command, **options):
        pathlib.Path(command[4]).write_bytes(pickle.dumps([outputs]))
        return mock.Mock(returncode=0, communicate=lambda timeout: ("", None))

    monkeypatch.setattr(subprocess, "Popen", start)
    tensors = {name: tf.constant(value) for name, value in ours.items()}
    requests = [Request("s", {"text": np.zeros(len(next(iter(ours.values()))))})]
    arguments = (tmp_path, requests, {"s": lambda text: tensors})
    if message is None:
        compare_answers(*arguments)
    else:
        with pytest.raises(InputError, match=message):
            compare_answers(*arguments)


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


def test_hanging_process_is_ended_and_reported(tmp_path, monkeypatch):
    (tmp_path / "hang.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(checks, "_FRESH_PROCESS", tmp_path / "hang.py")
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with pytest.raises(InputError, match=r"did not answer .* within 0\.5 seconds"):
        compare_answers(tmp_path, [], {}, timeout=0.5)
    assert started[0].returncode is not None
