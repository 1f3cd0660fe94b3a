"""Warm-up requests: for each signature, of each size, of all lengths."""

import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError
from keras_transformer.inference import XlaShapes
from keras_transformer.serving.checks import make_requests, write_requests
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
    """Requests with the sentences above."""
    return make_requests(translator, _SIGNATURES, _SENTENCES, batch_sizes=(1, 3))


def _inputs(requests, signature):
    return [inputs for name, inputs in requests if name == signature]


def test_requests_have_all_signatures_and_lengths(requests):
    assert {name for name, _ in requests} == _SIGNATURES.keys()
    texts = [inputs["text"].tolist() for inputs in _inputs(requests, "serving_default")]
    assert texts == [[b"a"], [b"a b c"], [b"a b c d e"], [b"a", b"a b c", b"a b c d e"]]


def test_inputs_have_a_row_for_each_sentence(requests):
    for _, inputs in requests:
        assert {value.shape[0] for value in inputs.values()} in ({1}, {3})


def test_targets_are_as_long_as_sources(requests):
    inputs = _inputs(requests, "score")[-1]
    assert [len(text.split()) for text in inputs["target"]] == [1, 3, 5]


def _ids(row):
    return list(map(int, row.split()))


def test_tokens_are_the_ids_of_the_text(requests, translator):
    ids = list(map(_ids, _inputs(requests, "tokens")[-1]["source"]))
    assert translator.source_tokenizer.vocabulary.decode(ids) == ["a", "a b c", "a b c d e"]


def test_options_stay_as_exported(requests):
    inputs = _inputs(requests, "options")[-1]
    assert inputs["penalty"].tolist() == [-1.0] * 3
    assert inputs["limit"].tolist() == [-1] * 3
    assert inputs["prefix"].tolist() == [b""] * 3


def test_each_compiled_shape_is_warmed_up(translator, requests):
    compiled = types.SimpleNamespace(**vars(translator) | {"xla": XlaShapes((1, 4), (3, 8))})
    more = make_requests(compiled, _SIGNATURES, _SENTENCES, batch_sizes=(1, 3))[len(requests) :]
    assert [signature for signature, _ in more] == ["tokens"] * 4
    lengths = [[len(_ids(row)) for row in inputs["source"]] for _, inputs in more]
    assert lengths == [[2], [7], [2] * 4, [7] * 4]  # and EOS


def test_requests_are_no_larger_than_accepted(translator):
    compiled = types.SimpleNamespace(**vars(translator) | {"xla": XlaShapes((1, 64), (4, 8))})
    requests = make_requests(compiled, _SIGNATURES, _SENTENCES, (1, 3, 64), most_sentences=2)
    assert {request.size for request in requests} == {1, 2}
    sizes = [len(inputs["source"]) for inputs in _inputs(requests, "tokens")[-4:]]
    assert sizes == [1, 1, 2, 2]


@pytest.mark.parametrize("sentences", [(), ["", " "]])
def test_sentences_are_generated_by_default(translator, sentences):
    requests = make_requests(translator, _SIGNATURES, sentences)
    texts = _inputs(requests, "serving_default")[-1]["text"]
    lengths = [len(text.split()) for text in texts]
    assert len(lengths) == 64
    assert lengths[0] <= 2 < 30 <= lengths[-1]
    assert {word for text in texts for word in text.split()} == set(b"a b c d e f".split())
    again = make_requests(translator, _SIGNATURES, sentences)
    assert all(
        np.array_equal(a[1][k], b[1][k]) for a, b in zip(requests, again, strict=True) for k in a[1]
    )


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
    for log, (signature, inputs) in zip(logs, requests, strict=True):
        request = log.predict_log.request
        assert (request.model_spec.name, request.model_spec.signature_name) == ("words", signature)
        assert request.inputs.keys() == inputs.keys()
        for name, value in inputs.items():
            assert np.array_equal(tf.make_ndarray(request.inputs[name]), value)


def test_too_many_requests_are_rejected(translator):
    with pytest.raises(InputError, match=r"1004 warm-up requests are more than the 1000"):
        make_requests(translator, _SIGNATURES, _SENTENCES, batch_sizes=range(2, 253))
