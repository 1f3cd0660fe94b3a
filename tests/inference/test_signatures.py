"""What the functions of an export give: against the translator, the model, and each other."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator
from keras_transformer.inference.cached_projection import cache_projection
from keras_transformer.inference.quantization import Int8Model
from keras_transformer.inference.translator import signature_inputs
from keras_transformer.models import Ensemble, Transformer

_SOURCE = ["two house", "", "cat sun tree two", "hello"]
_AS_EXPORTED = {tf.string: "", tf.int32: -1, tf.float32: -1.0}
_TARGET = ["दो Haus", "木", "", "привет привет 木"]


def _evenly(self, inputs):
    """Attends to the real source tokens evenly."""
    is_real = tf.cast(inputs["source"] != PAD_ID, tf.float32)[:, None, :]  # [B, 1, S]
    weights = is_real / tf.reduce_sum(is_real, axis=-1, keepdims=True)
    return tf.repeat(weights, tf.shape(inputs["target"])[1], axis=1)


@pytest.fixture(scope="module")
def signatures(separate_translator):
    """The functions, the model's attention replaced by an even one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transformer, "attention", _evenly, raising=False)
        return separate_translator.signatures()


def _ask(function, *columns):
    pairs = zip(columns, signature_inputs(function).values(), strict=True)
    answer = function(**{spec.name: tf.constant(column, spec.dtype) for column, spec in pairs})
    return {name: value.numpy() for name, value in answer.items()}


def _ids(vocabulary, texts, padding=PAD_ID):
    rows = [[*row, EOS_ID] for row in vocabulary.encode(texts)]
    width = max(map(len, rows))
    return np.array([row + [padding] * (width - len(row)) for row in rows])


@pytest.mark.slow
def test_dimension_0_of_every_input_and_output_is_the_batch_and_nothing_is_ragged(signatures):
    names = ["serving_default", "translate_options", "score", "tokens", "attention"]
    assert list(signatures) == names
    for function in signatures.values():
        for name, spec in [
            *signature_inputs(function).items(),
            *function.structured_outputs.items(),
        ]:
            assert spec.shape.rank >= 1
            assert spec.shape[0] is None
            assert not name.endswith("_bytes")


def test_scores_are_the_log_probabilities_that_the_model_gives_to_each_token(
    signatures, separate_translator
):
    answer = _ask(signatures["score"], _SOURCE, _TARGET)
    source = _ids(separate_translator.source_tokenizer.vocabulary, _SOURCE)
    labels = _ids(separate_translator.target_tokenizer.vocabulary, _TARGET)
    shifted = np.concatenate([np.full([4, 1], BOS_ID), labels[:, :-1]], axis=1)
    logits = separate_translator.model({"source": source, "target": shifted})
    logits = keras.ops.convert_to_numpy(logits).astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = np.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    expected[labels == PAD_ID] = 0.0
    np.testing.assert_allclose(answer["token_scores"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(answer["scores"], expected.sum(1), rtol=1e-4, atol=1e-5)
    assert answer["lengths"].tolist() == [3, 2, 1, 4]


def test_the_score_of_a_translation_is_what_the_search_found_it_worth(
    signatures, separate_translator
):
    sentences = ["two house", "cat sun tree two", "hello"]
    found = _ask(signatures["serving_default"], sentences)
    for rank in range(2):
        answer = _ask(signatures["score"], sentences, found["translations"][:, rank])
        penalty = ((5 + answer["lengths"]) / 6) ** separate_translator.search.length_penalty
        np.testing.assert_allclose(answer["scores"] / penalty, found["scores"][:, rank], rtol=1e-4)


def test_a_row_gets_in_a_batch_what_it_gets_alone(signatures, separate_translator):
    ids = _ids(separate_translator.source_tokenizer.vocabulary, _SOURCE)
    columns = {"text": _SOURCE, "source": _SOURCE, "target": _TARGET}
    columns |= {"max_length": [2, -1, 1, -1], "prefix": ["", "木", "दो", ""]}
    for name, function in signatures.items():
        specs = signature_inputs(function).items()
        inputs = [columns.get(key, [_AS_EXPORTED[spec.dtype]] * 4) for key, spec in specs]
        inputs = [ids] if name == "tokens" else inputs
        together = _ask(function, *inputs)
        for row in range(len(_SOURCE)):
            for key, alone in _ask(function, *[column[row : row + 1] for column in inputs]).items():
                # What stands behind it in the batch is padding.
                found = together[key][row][tuple(map(slice, alone.shape[1:]))]
                if alone.dtype.kind == "f":
                    np.testing.assert_allclose(found, alone[0], rtol=1e-4, atol=1e-5)
                else:
                    assert np.array_equal(found, alone[0])


def test_tokens_are_translated_as_their_text_is(signatures, separate_translator):
    vocabulary = separate_translator.source_tokenizer.vocabulary
    by_text = _ask(signatures["serving_default"], _SOURCE)
    answer = _ask(signatures["tokens"], _ids(vocabulary, _SOURCE))
    for row, texts in zip(answer["ids"], by_text["translations"], strict=True):
        decoded = separate_translator.target_tokenizer.vocabulary.decode(row.tolist())
        assert decoded == [text.decode() for text in texts]
    np.testing.assert_allclose(answer["scores"], by_text["scores"], rtol=1e-5)
    assert np.array_equal(answer["lengths"], (answer["ids"] != PAD_ID).sum(-1))
    assert answer["lengths"][1].tolist() == [0, 0]  # the blank sentence


@pytest.mark.parametrize("padding", [4, EOS_ID, -7, 10_000])
def test_what_follows_the_end_of_tokens_is_not_read(signatures, separate_translator, padding):
    vocabulary = separate_translator.source_tokenizer.vocabulary
    expected = _ask(signatures["tokens"], _ids(vocabulary, _SOURCE))
    found = _ask(signatures["tokens"], _ids(vocabulary, _SOURCE, padding))
    assert np.array_equal(found["ids"], expected["ids"])


@pytest.mark.parametrize(
    ("row", "read_as"),
    [
        ([4, 5, 6], [EOS_ID, PAD_ID, PAD_ID]),
        ([4, 5, PAD_ID], [EOS_ID, PAD_ID, PAD_ID]),
        ([4, PAD_ID, EOS_ID], [4, UNK_ID, EOS_ID]),
        ([4, 10, EOS_ID], [4, UNK_ID, EOS_ID]),
        ([-1, 5, EOS_ID], [UNK_ID, 5, EOS_ID]),
    ],
)
def test_a_row_that_is_no_source_has_a_meaning_and_harms_no_other(signatures, row, read_as):
    other = [7, 8, EOS_ID]
    width = len(read_as)
    expected = _ask(signatures["tokens"], [read_as, other + [PAD_ID] * (width - 3)])
    found = _ask(signatures["tokens"], [row, other])
    assert np.array_equal(found["ids"], expected["ids"])
    np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-5)


def test_a_row_without_end_is_not_translated_however_a_server_pads_it(signatures):
    for row in ([4, 5], [4, 5, 4, 4], [4, 5, PAD_ID]):
        answer = _ask(signatures["tokens"], [row])
        assert not answer["ids"].any()
        assert not answer["scores"].any()


@pytest.mark.parametrize("ids", [[[PAD_ID, PAD_ID]] * 2, np.zeros([2, 0])])
def test_rows_of_nothing_have_empty_translations(signatures, ids):
    answer = _ask(signatures["tokens"], ids)
    assert not answer["lengths"].any()
    assert not answer["scores"].any()


@pytest.mark.parametrize("name", ["score", "attention"])
def test_as_many_targets_as_sources_are_needed(signatures, name):
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have as many rows"):
        _ask(signatures[name], ["cat", "sun"], ["木"])


def test_every_option_has_a_value_for_each_row(signatures):
    function = signatures["translate_options"]
    specs = list(signature_inputs(function).values())
    columns = [["cat", "sun"], *([_AS_EXPORTED[spec.dtype]] * 2 for spec in specs[1:])]
    _ask(function, *columns)
    for place in range(1, len(specs)):
        short = [column[:1] if place == number else column for number, column in enumerate(columns)]
        with pytest.raises(tf.errors.InvalidArgumentError, match="must have a value for each row"):
            _ask(function, *short)


def test_scores_are_the_same_however_many_rows_are_scored_at_once(
    signatures, separate_translator, monkeypatch
):
    expected = _ask(signatures["score"], _SOURCE, _TARGET)
    for rows in (1, 3):
        size = rows * 4 * separate_translator.target_tokenizer.vocabulary.size
        monkeypatch.setattr("keras_transformer.inference.scores._MAX_VALUES", size)
        found = _ask(separate_translator.signature("score"), _SOURCE, _TARGET)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)


def test_no_text_is_too_long(signatures):
    # 12 tokens of a sentence are read, 12 + 5 of a translation, and their ends.
    answer = _ask(signatures["attention"], ["cat " * 5000], ["木 " * 5000])
    assert answer["attention"].shape == (1, 18, 13)
    assert _ask(signatures["score"], ["cat"], ["木 " * 5000])["lengths"].tolist() == [18]
    answer = _ask(signatures["tokens"], [[4] * 5000 + [EOS_ID]])
    assert answer["lengths"].max() <= 18


def test_attention_is_a_row_for_each_target_token_beside_the_tokens(signatures):
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


def test_an_empty_batch_has_an_empty_answer(signatures):
    for name, function in signatures.items():
        columns = (
            [np.zeros([0, 0])] if name == "tokens" else [[] for _ in signature_inputs(function)]
        )
        for value in _ask(function, *columns).values():
            assert value.shape[0] == 0


def test_a_model_without_attention_has_no_such_signature(separate_translator, monkeypatch):
    monkeypatch.delattr(Transformer, "attention", raising=False)
    assert "attention" not in separate_translator.signatures()


class _Without:
    """A model without attention."""

    def __init__(self, model):
        names = (
            "config",
            "dtype_policy",
            "variables",
            "call",
            "encode",
            "step",
            "embedding_tables",
        )
        self.__dict__ |= {name: getattr(model, name) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["ensemble", "mixed ensemble", "int8", "precomputed"])
def test_a_wrapped_model_has_attention_only_where_the_model_has(separate_translator, wrap):
    model = separate_translator.model
    bare = _Without(model)
    wrapped, like_it = {
        "ensemble": lambda: (Ensemble([bare, bare]), Ensemble([model, model])),
        "mixed ensemble": lambda: (Ensemble([model, bare]), Ensemble([model])),
        "int8": lambda: (Int8Model(bare), Int8Model(model)),
        "precomputed": lambda: (cache_projection(bare), cache_projection(model)),
    }[wrap]()
    assert not hasattr(wrapped, "attention")
    assert not hasattr(cache_projection(wrapped), "attention")
    assert hasattr(like_it, "attention")
    vocabularies = [
        each.vocabulary
        for each in (separate_translator.source_tokenizer, separate_translator.target_tokenizer)
    ]
    translator = Translator(wrapped, *vocabularies, separate_translator.search)
    with pytest.raises(InputError, match="the model has no signature 'attention'"):
        translator.align(["two"], ["दो"])
    names = ["serving_default", "translate_options", "score", "tokens"]
    assert list(translator.signatures()) == names
