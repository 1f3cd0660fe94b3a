"""Lists of sentences through signatures, most of them fakes in Python: batches, order, options."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.client import Score
from keras_transformer.errors import InputError
from keras_transformer.inference import BatchTranslator, translator
from keras_transformer.serving.export import load_exported

_SENTENCES = ["two house", "", "cat sun tree two", "שלום", "tree hello cat", "sun"]
_OPTIONS = {
    "length_penalty": tf.float32,
    "max_length": tf.int32,
    "prefix": tf.string,
    "banned_phrases": tf.string,
}


class Function:
    """A fake function of a signature that records its requests."""

    def __init__(self, answer, **inputs):
        specs = {name: tf.TensorSpec([None], dtype, name=name) for name, dtype in inputs.items()}
        self.structured_input_signature = ((), specs)
        self.answer = answer
        self.requests = []

    def __call__(self, **inputs):
        plain = {name: value.numpy().tolist() for name, value in inputs.items()}
        for name, values in plain.items():
            plain[name] = [v.decode() if isinstance(v, bytes) else v for v in values]
        self.requests.append(plain)
        return {name: tf.constant(value) for name, value in self.answer(**plain).items()}


def translate(text, **options):
    """Two translations of each sentence: its upper case with the prefix, and it doubled."""
    prefixes = options.get("prefix", [""] * len(text))
    pairs = zip(text, prefixes, strict=True)
    return {
        "translations": [[prefix + each.upper(), each + each] for each, prefix in pairs],
        "scores": [[-float(len(each)), -99.0] for each in text],
    }


def score(source, target):
    """-0.5 for each character of the target, and for the end."""
    lengths = [len(each) + 1 for each in target]
    rows = [[-0.5] * length + [0.0] * (max(lengths) - length) for length in lengths]
    return {"scores": [sum(row) for row in rows], "token_scores": rows, "lengths": lengths}


def attend(source, target):
    """The words, each looking at that of the other side with its place counted from the end."""
    sides = [
        [["▁" + word for word in each.split()] + ["</s>"] for each in s] for s in (source, target)
    ]
    widths = [max(map(len, side)) for side in sides]
    attention = np.zeros([len(source), widths[1], widths[0]], np.float32)
    for row, (words, others) in enumerate(zip(*sides, strict=True)):
        for place in range(len(others)):
            attention[row, place, max(len(words) - 2 - place, 0)] = 1.0
    sources, targets = (
        [each + [""] * (width - len(each)) for each in side]
        for side, width in zip(sides, widths, strict=True)
    )
    return {"attention": attention, "source_pieces": sources, "target_pieces": targets}


@pytest.fixture
def functions():
    pair = {"source": tf.string, "target": tf.string}
    return {
        "serving_default": Function(translate, text=tf.string),
        "translate_options": Function(translate, text=tf.string, **_OPTIONS),
        "score": Function(score, **pair),
        "attention": Function(attend, **pair),
    }


@pytest.fixture
def local(functions, monkeypatch):
    """On one core, so that batches come one after the other."""
    monkeypatch.setattr(translator, "_num_workers", lambda: 1)
    return BatchTranslator(functions.__getitem__)


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_answers_keep_the_order_of_sentences(local, batch_size):
    translations = local.translate(_SENTENCES, batch_size)
    assert [best.text for best, _ in translations] == [text.upper() for text in _SENTENCES]
    assert [best.score for best, _ in translations] == [-len(text) for text in _SENTENCES]
    assert [second.text for _, second in translations] == [text + text for text in _SENTENCES]
    scores = local.score(_SENTENCES, _SENTENCES, batch_size)
    assert [len(each.token_scores) for each in scores] == [len(text) + 1 for text in _SENTENCES]
    alignments = local.align(_SENTENCES, _SENTENCES, batch_size)
    assert [len(each) for each in alignments] == [len(text.split()) for text in _SENTENCES]


def test_batches_have_similar_lengths_longest_first(local, functions):
    local.translate(_SENTENCES, 4)
    assert [request["text"] for request in functions["serving_default"].requests] == [
        ["cat sun tree two", "tree hello cat", "two house", "שלום"],
        ["sun", ""],
    ]
    local.score(["a", "b", "c"], ["one", "three", ""], batch_size=2)
    assert functions["score"].requests == [
        {"source": ["b", "a"], "target": ["three", "one"]},
        {"source": ["c"], "target": [""]},
    ]


def test_batches_run_in_parallel(functions, monkeypatch):
    both_are_there = threading.Barrier(2)

    def wait_and_translate(text):
        both_are_there.wait(timeout=60)  # breaks where a batch waits for the other to end
        return translate(text)

    functions["serving_default"].answer = wait_and_translate
    monkeypatch.setattr(translator, "_num_workers", lambda: 2)
    translations = BatchTranslator(functions.__getitem__).translate(_SENTENCES[:4], 1)
    assert [best.text for best, _ in translations] == [text.upper() for text in _SENTENCES[:4]]


def test_error_in_a_parallel_batch_is_raised(functions, monkeypatch):
    def fail(text):
        raise ZeroDivisionError(text)

    functions["serving_default"].answer = fail
    monkeypatch.setattr(translator, "_num_workers", lambda: 2)
    with pytest.raises(ZeroDivisionError):
        BatchTranslator(functions.__getitem__).translate(_SENTENCES, 1)


def test_batch_without_memory_is_halved(local, functions):
    def translate_two(text):
        if len(text) > 2 or "sun" in text:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return translate(text)

    functions["serving_default"].answer = translate_two
    sentences = [text for text in _SENTENCES if text != "sun"]
    translations = local.translate(sentences, 8)
    assert [best.text for best, *_ in translations] == [text.upper() for text in sentences]
    with pytest.raises(tf.errors.ResourceExhaustedError):
        local.translate(["cat", "sun"])


def test_string_has_one_translation(local):
    assert local.translate("two") == local.translate(["two"])[0][0]
    assert local.translate("two", prefix="A ").text == "A TWO"


def test_ignored_options_are_reported(local, functions):
    def with_flag(text, **options):
        return translate(text, **options) | {"options_ignored": [each == "two" for each in text]}

    functions["translate_options"].answer = with_flag
    with pytest.warns(UserWarning, match="a banned phrase of 1 of 2 sentences is not kept"):
        local.translate(["two", "three"], banned_phrases="é")


def test_no_sentences_call_no_signature(local, functions):
    assert local.translate([]) == local.translate([], max_length=3) == []
    assert local.score([], []) == local.align([], []) == []
    assert not any(function.requests for function in functions.values())


def test_options_call_translate_options(local, functions):
    local.translate(["two", "three"], length_penalty=1, banned_phrases="vier\nacht")
    assert not functions["serving_default"].requests
    assert functions["translate_options"].requests == [
        {
            "text": ["three", "two"],
            "length_penalty": [1.0, 1.0],
            "max_length": [-1, -1],
            "prefix": ["", ""],
            "banned_phrases": ["vier\nacht"] * 2,
        }
    ]


def test_options_can_differ_between_sentences(local, functions):
    options = dict(prefix=["1 ", None, "3 "], banned_phrases=[["a b", "c"], "", None])
    translations = local.translate(["x", "xxx", "xx"], 2, **options, max_length=np.array([1, 2, 3]))
    assert [best.text for best, _ in translations] == ["1 X", "XXX", "3 XX"]
    first, second = functions["translate_options"].requests
    assert (first["max_length"], second["max_length"]) == ([2, 3], [1])
    assert second["banned_phrases"] == ["a b\nc"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(beam_size=2), "no option beam_size that can change .* it has banned_phrases, length"),
        (dict(max_length=2.5), "max_length must be a whole number of 32 bits, got 2.5"),
        (dict(banned_phrases="a\n" * 257), "number of banned_phrases must be at most 256, got 257"),
    ],
)  # more of them in tests/client/test_client.py
def test_invalid_options_are_rejected(local, functions, options, message):
    with pytest.raises(InputError, match=message):
        local.translate(["two", "three"], **options)
    assert not functions["translate_options"].requests


def test_wrong_sentences_and_batch_size_are_rejected(local):
    with pytest.raises(InputError, match="text must be text, got 2"):
        local.translate([2])
    with pytest.raises(InputError, match="batch_size must be at least 1, got 0"):
        local.translate(_SENTENCES, 0)
    for ask in (local.score, local.align):
        with pytest.raises(InputError, match="source must be a list of sentences, got one: 'two'"):
            ask("two", ["zwei"])
        with pytest.raises(InputError, match="target must be a list of sentences, got one: 'zwe"):
            ask(["two"], "zwei")
        with pytest.raises(InputError, match="must have as many sentences, got 2 and 1"):
            ask(["two", "three"], ["zwei"])
        with pytest.raises(InputError, match="batch_size must be at least 1, got -1"):
            ask(_SENTENCES, _SENTENCES, -1)


def test_scores_have_no_padding(local):
    assert local.score(["a", "b"], ["x", "xyz"]) == [
        Score(-1.0, [-0.5, -0.5]),
        Score(-2.0, [-0.5] * 4),
    ]


def test_alignments_index_the_words_of_each_sentence(local):
    assert local.align(["a b c", "", "d"], ["x y", "x", "x y z"]) == [
        [(2, 0), (1, 1)],
        [],
        [(0, 0), (0, 1), (0, 2)],
    ]


def test_signatures_are_made_once_and_on_demand(functions):
    made = []
    local = BatchTranslator(lambda name: made.append(name) or functions[name])
    for _ in range(2):
        local.translate(["a"])
        local.score(["a"], ["b"])
    assert made == ["serving_default", "score"]


def test_missing_signature_is_reported(functions):
    local = BatchTranslator({"serving_default": functions["serving_default"]}.__getitem__)
    assert local.translate(["two"])[0][0].text == "TWO"
    for ask, name in (
        (lambda: local.translate(["two"], max_length=3), "translate_options"),
        (lambda: local.score(["two"], ["zwei"]), "score"),
        (lambda: local.align(["two"], ["zwei"]), "attention"),
    ):
        with pytest.raises(InputError, match=f"the model has no signature '{name}'; export it"):
            ask()


@pytest.mark.slow
def test_export_answers_like_its_translator(exported, separate_translator):
    ours, theirs = separate_translator, load_exported(exported)
    sentences = ["hello two cat", "", "tree nonsense sun"]
    constraints = dict(max_length=[2, -1, 3], prefix=["", "", "木"])
    expected = ours.translate(sentences, **constraints)
    found = theirs.translate(sentences, **constraints)
    assert [[each.text for each in row] for row in found] == [
        [each.text for each in row] for row in expected
    ]
    texts = [row[0].text for row in expected]
    assert theirs.align(sentences, texts) == ours.align(sentences, texts)
    for found_one, expected_one in zip(
        theirs.score(sentences, texts), ours.score(sentences, texts), strict=True
    ):
        np.testing.assert_allclose(found_one.token_scores, expected_one.token_scores, rtol=1e-4)


def test_unknown_words_are_aligned(separate_translator):
    pairs = separate_translator.align(["sun nonsense cat"], ["شمس nonsense γάτα"])[0]
    assert [target for _, target in pairs] == [0, 1, 2]
    assert {source for source, _ in pairs} <= {0, 1, 2}


def test_phrase_with_unknown_characters_is_rejected(separate_translator):
    with pytest.raises(InputError, match="prefix: the vocabulary cannot spell 'q😀'; use char"):
        separate_translator.translate(["sun", "cat"], prefix=["", "q😀"])
    with pytest.raises(InputError, match="banned_phrases: the vocabulary cannot spell 'q😀'"):
        separate_translator.translate(["sun", "cat"], banned_phrases=[None, ["木", "q😀"]])
    assert separate_translator.translate(["sun"], prefix=" ") == separate_translator.translate(
        ["sun"], prefix=""
    )


def test_memory_of_parallel_batches_is_limited(functions, monkeypatch):
    monkeypatch.setattr(translator, "_MAX_BATCH_BYTES", 100)
    monkeypatch.setattr(translator, "_MAX_BYTES", 150)
    monkeypatch.setattr(translator, "_num_workers", lambda: 4)
    lock = threading.Lock()
    under_way, most, shapes = [], [], []

    def note(text):
        size = len(text) * max(len(each.encode()) for each in text)
        with lock:
            under_way.append(size)
            shapes.append((len(text), size))
            most.append(list(under_way))
        time.sleep(0.01)  # so that batches meet
        with lock:
            under_way.remove(size)
        return translate(text)

    functions["serving_default"].answer = note
    sentences = ["x" * length for length in [400, 60, 30, 30, 30, 90, *[10] * 40]] + ["я" * 30]
    translations = BatchTranslator(functions.__getitem__).translate(sentences, 16)
    assert [best.text for best, _ in translations] == [text.upper() for text in sentences]
    assert sum(rows for rows, _ in shapes) == len(sentences)
    assert all(size <= 100 or rows == 1 for rows, size in shapes)
    assert (1, 400) in shapes
    assert all(sum(sizes) <= 150 or len(sizes) == 1 for sizes in most)
    assert max(map(len, most)) > 1


def test_batches_of_pairs_count_both_sides(local, functions, monkeypatch):
    monkeypatch.setattr(translator, "_MAX_BATCH_BYTES", 100)
    local.score(["x" * 60, "x", "x"], ["y", "y" * 60, "y"])
    assert [len(each["source"]) for each in functions["score"].requests] == [1, 1, 1]
