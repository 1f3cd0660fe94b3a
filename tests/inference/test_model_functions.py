"""The signatures of an export, compared with the model and with each other."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Translator
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.inference.local_translator import signature_inputs
from keras_transformer.models import Ensemble, Transformer, build_model

_SOURCE = ["two house", "", "cat sun tree two", "hello"]
_AS_EXPORTED = {tf.string: "", tf.int32: -1, tf.float32: -1.0}
_TARGET = ["दो Haus", "木", "", "привет привет 木"]


def _evenly(self, inputs):
    """Attends to the real source tokens evenly."""
    is_real = tf.cast(inputs["source"] != PAD_ID, tf.float32)[:, None, :]  # [B, 1, S]
    weights = is_real / tf.reduce_sum(is_real, axis=-1, keepdims=True)
    return tf.repeat(weights, tf.shape(inputs["target"])[1], axis=1)


@pytest.fixture(scope="module")
def signatures(trained, two_best):
    """The functions, the model's attention replaced by an even one; not those that others share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transformer, "attention", _evenly, raising=False)
        return Translator(*trained, two_best.search).functions.signatures()


def _ask(function, *columns):
    pairs = zip(columns, signature_inputs(function).values(), strict=True)
    answer = function(**{spec.name: tf.constant(column, spec.dtype) for column, spec in pairs})
    return {name: value.numpy() for name, value in answer.items()}


def _ids(vocabulary, texts):
    rows = [[*row, EOS_ID] for row in vocabulary.encode(texts)]
    width = max(map(len, rows))
    return np.array([row + [PAD_ID] * (width - len(row)) for row in rows])


@pytest.mark.slow
def test_dimension_0_is_the_batch_everywhere(signatures):
    names = ["serving_default", "translate_options", "score", "attention"]
    assert list(signatures) == names
    for function in signatures.values():
        inputs = signature_inputs(function)
        assert {spec.shape.rank for spec in inputs.values()} == {1}  # none needs padding
        for name, spec in [*inputs.items(), *function.structured_outputs.items()]:
            assert spec.shape.rank >= 1 and spec.shape[0] is None
            assert not name.endswith("_bytes")
        assert all(len(value) == 0 for value in _ask(function, *[[] for _ in inputs]).values())


def test_scores_are_the_models_log_probabilities(signatures, two_best):
    answer = _ask(signatures["score"], _SOURCE, _TARGET)
    source = _ids(two_best.source, _SOURCE)
    labels = _ids(two_best.target, _TARGET)
    shifted = np.concatenate([np.full([4, 1], BOS_ID), labels[:, :-1]], axis=1)
    logits = two_best.model({"source": source, "target": shifted})
    logits = keras.ops.convert_to_numpy(logits).astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = np.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    expected[labels == PAD_ID] = 0.0
    np.testing.assert_allclose(answer["token_scores"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(answer["scores"], expected.sum(1), rtol=1e-4, atol=1e-5)
    assert answer["lengths"].tolist() == [3, 2, 1, 4]


def test_rows_do_not_depend_on_their_batch(signatures):
    columns = {"text": _SOURCE, "source": _SOURCE, "target": _TARGET}
    columns |= {"max_length": [2, -1, 1, -1], "prefix": ["", "木", "दो", ""]}
    for function in signatures.values():
        specs = signature_inputs(function).items()
        inputs = [columns.get(key, [_AS_EXPORTED[spec.dtype]] * 4) for key, spec in specs]
        together = _ask(function, *inputs)
        for row in range(len(_SOURCE)):
            for key, alone in _ask(function, *[column[row : row + 1] for column in inputs]).items():
                # What stands behind it in the batch is padding.
                found = together[key][row][tuple(map(slice, alone.shape[1:]))]
                if alone.dtype.kind == "f":
                    np.testing.assert_allclose(found, alone[0], rtol=1e-4, atol=1e-5)
                else:
                    assert np.array_equal(found, alone[0])


@pytest.mark.parametrize("name", ["score", "attention"])
def test_unequal_numbers_of_rows_are_rejected(signatures, name):
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have as many rows"):
        _ask(signatures[name], ["cat", "sun"], ["木"])


def test_short_option_columns_are_rejected(signatures):
    function = signatures["translate_options"]
    specs = list(signature_inputs(function).values())
    columns = [["cat", "sun"], *([_AS_EXPORTED[spec.dtype]] * 2 for spec in specs[1:])]
    _ask(function, *columns)
    for place in range(1, len(specs)):
        short = [column[:1] if place == number else column for number, column in enumerate(columns)]
        with pytest.raises(tf.errors.InvalidArgumentError, match="must have a value for each row"):
            _ask(function, *short)


def test_long_texts_are_cut(signatures):
    # 12 tokens of a sentence are read, and 12 + 5 of a translation.
    answer = _ask(signatures["attention"], ["cat " * 5000], ["木 " * 5000])
    assert answer["attention"].shape == (1, 18, 13)  # and their ends
    assert answer["source_cut"].all() and answer["is_cut"].all()
    longest = _ask(signatures["score"], ["cat"] * 2, ["木 " * 5000, "木 " * 17])
    assert longest["lengths"].tolist() == [17, 18]  # what is cut has no end
    assert longest["is_cut"].tolist() == [True, False]
    spaces = _ask(signatures["score"], ["cat"], ["木" + " " * 5000 + "木"])
    assert spaces["is_cut"].all() and spaces["lengths"] == [1]
    np.testing.assert_allclose(*longest["token_scores"][:, :17], rtol=1e-5)
    assert longest["scores"][0] == pytest.approx(longest["token_scores"][1, :17].sum(), rel=1e-5)


def test_attention_has_a_row_for_each_target_token(signatures):
    answer = _ask(signatures["attention"], _SOURCE, _TARGET)
    decode = np.vectorize(bytes.decode)
    pieces = {name: decode(answer[f"{name}_pieces"]) for name in ("source", "target")}
    assert pieces["source"][3].tolist() == ["▁hello", "</s>", "", "", ""]
    assert pieces["target"][0].tolist() == ["▁दो", "▁Haus", "</s>", ""]
    np.testing.assert_allclose(
        answer["attention"].sum(-1), pieces["target"] != "", rtol=1e-6
    )  # 1 where there is a token
    assert np.array_equal(
        answer["attention"] > 0,
        (pieces["target"] != "")[:, :, None] & (pieces["source"] != "")[:, None],
    )


class _Without:
    """A model without attention."""

    def __init__(self, model):
        names = ("config", "dtype_policy", "variables", "call", "encode", "step")
        self.__dict__ |= {name: getattr(model, name) for name in names}


@pytest.mark.parametrize("wrap", ["alone", "ensemble", "mixed ensemble"])
def test_attention_needs_all_models_to_have_it(two_best, wrap):
    model = two_best.model
    bare = _Without(model)
    wrapped = {
        "alone": bare,
        "ensemble": Ensemble([bare, bare]),
        "mixed ensemble": Ensemble([model, bare]),
    }[wrap]
    translator = Translator(wrapped, two_best.source, two_best.target)
    functions = translator.functions
    for each in (functions, functions.with_stored_projection()):
        assert each.names == ["serving_default", "translate_options", "score"]
    with pytest.raises(InputError, match="the model has no signature 'attention'"):
        translator.align(["two"], ["दो"])
    with pytest.raises(InputError, match="the model has no option coverage_penalty that can"):
        translator.translate(["two"], coverage_penalty=0.2)
    with pytest.raises(InputError, match=r"coverage_penalty=0\.2 needs a model with attention"):
        search = two_best.search.replace(coverage_penalty=0.2)
        Translator(wrapped, two_best.source, two_best.target, search)


@pytest.mark.slow
def test_graph_of_tiny_is_small(trained):
    """Tracing and the first call take time for each operation; a second decoder had 3,600 more."""
    vocabulary = trained[1]
    model = build_model(TransformerConfig.preset("tiny", vocabulary_size=vocabulary.size))
    function = Translator(model, vocabulary).functions.function("serving_default")
    graph = function.graph.as_graph_def()
    functions = graph.library.function
    assert len(graph.node) + sum(len(function.node_def) for function in functions) < 3_200
