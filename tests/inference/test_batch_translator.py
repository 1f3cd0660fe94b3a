"""Lists of sentences through signatures, most of them fakes in Python: batches, order, options."""

import threading
import time

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.inference import BatchTranslator, batch_translator
from keras_transformer.sentences import SentenceWarning

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
    marks = {"is_cut": [False] * len(rows)}
    return {"scores": [sum(row) for row in rows], "token_scores": rows, "lengths": lengths} | marks


@pytest.fixture
def functions():
    pair = {"source": tf.string, "target": tf.string}
    return {
        "serving_default": Function(translate, text=tf.string),
        "translate_options": Function(translate, text=tf.string, **_OPTIONS),
        "score": Function(score, **pair),
    }


@pytest.fixture
def local(functions, monkeypatch):
    """On one core, so that batches come one after the other."""
    monkeypatch.setattr(batch_translator, "_num_workers", lambda: 1)
    return BatchTranslator(functions.__getitem__)


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_answers_keep_the_order_of_sentences(local, batch_size):
    local.batch_size = batch_size
    translations = local.translate(_SENTENCES)
    assert [best.text for best in translations] == [text.upper() for text in _SENTENCES]
    assert [best.score for best in translations] == [-len(text) for text in _SENTENCES]
    assert [str(*best.alternatives) for best in translations] == [text * 2 for text in _SENTENCES]
    scores = local.score(_SENTENCES, _SENTENCES)
    assert [len(each.token_scores) for each in scores] == [len(text) + 1 for text in _SENTENCES]


def test_batches_have_similar_lengths_longest_first(local, functions):
    local.batch_size = 4
    local.translate(_SENTENCES)
    assert [request["text"] for request in functions["serving_default"].requests] == [
        ["cat sun tree two", "tree hello cat", "two house", "שלום"],
        ["sun", ""],
    ]
    local.batch_size = 2
    local.score(["a", "b", "c"], ["one", "three", ""])
    assert functions["score"].requests == [
        {"source": ["b", "a"], "target": ["three", "one"]},
        {"source": ["c"], "target": [""]},
    ]


def test_batches_run_in_parallel_and_their_errors_are_raised(functions, monkeypatch):
    both_are_there = threading.Barrier(2)

    def wait_and_translate(text):
        both_are_there.wait(timeout=60)  # breaks where a batch waits for the other to end
        if text == ["sun"]:
            raise ZeroDivisionError(text)
        return translate(text)

    functions["serving_default"].answer = wait_and_translate
    monkeypatch.setattr(batch_translator, "_num_workers", lambda: 2)
    local = BatchTranslator(functions.__getitem__)
    local.batch_size = 1
    translations = local.translate(_SENTENCES[:4])
    assert [best.text for best in translations] == [text.upper() for text in _SENTENCES[:4]]
    with pytest.raises(ZeroDivisionError):
        local.translate(_SENTENCES)


def test_batch_without_memory_is_halved(local, functions):
    def translate_two(text):
        if len(text) > 2 or "sun" in text:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return translate(text)

    functions["serving_default"].answer = translate_two
    sentences = [text for text in _SENTENCES if text != "sun"]
    translations = local.translate(sentences)
    assert [best.text for best in translations] == [text.upper() for text in sentences]
    with pytest.raises(tf.errors.ResourceExhaustedError):
        local.translate(["cat", "sun"])


def test_string_has_one_translation_and_an_empty_list_none(local, functions):
    assert [local.translate("two")] == local.translate(["two"])
    assert local.translate("two", prefix="A ").text == "A TWO"
    for function in functions.values():
        function.requests.clear()
    assert local.translate([]) == local.translate([], max_length=3) == []
    assert local.score([], []) == []
    assert not any(function.requests for function in functions.values())


def test_ignored_options_are_reported(local, functions):
    def with_flag(text, **options):
        return translate(text, **options) | {"options_ignored": [each == "two" for each in text]}

    functions["translate_options"].answer = with_flag
    with pytest.warns(UserWarning, match="1 of 2 sentences: an option is not kept as it is"):
        local.translate(["two", "three"], banned_phrases="é")


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


TWO = ["two", "three"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda local: local.translate(TWO, beam_size=2),
            "no option beam_size .* it has .*Translator.load",
        ),
        (lambda local: local.translate(TWO, max_length=2.5), "max_length must .*, got 2.5"),
        (lambda local: local.translate(TWO, banned_phrases="a\n" * 257), "at most 256, got 257"),
        (lambda local: local.translate([2]), "sentences must be a string, got 2"),
        (lambda local: local.score("two", TWO), "source must be a list of sentences, got one: 'tw"),
        (lambda local: local.align(TWO, "zwei"), "target must be a list of sentences, got one"),
        (lambda local: local.align(TWO, ["zwei"]), "must have as many sentences, got 2 and 1"),
    ],
)  # more of them in tests/client/test_client.py
def test_invalid_calls_are_rejected(local, functions, call, message):
    with pytest.raises(InputError, match=message):
        call(local)
    assert not any(function.requests for function in functions.values())


def test_unknown_words_are_aligned(two_best):
    pairs = two_best.align(["sun nonsense cat"], ["شمس nonsense γάτα"])[0]
    assert [target for _, target in pairs] == [0, 1, 2]
    assert {source for source, _ in pairs} <= {0, 1, 2}


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (dict(prefix="q😀"), [0, 1]),
        (dict(prefix=["", "q😀"]), [1]),
        (dict(banned_phrases=["木", "q😀"]), [0, 1]),
        (dict(banned_phrases=[None, ["木", "q😀"]]), [1]),
        (dict(max_extra_length=[None, 99]), [1]),
    ],
    ids=str,
)
def test_options_that_cannot_be_kept_are_reported(two_best, options, rows):
    with pytest.warns(SentenceWarning) as caught:
        two_best.translate(["sun", "cat"], **options)
    assert [(each.message.remark, each.message.rows) for each in caught] == [
        ("options_ignored", rows)
    ]


@pytest.mark.slow
def test_long_sources_are_reported_by_every_method(two_best):
    long = " ".join(["two"] * 13)  # 12 are read
    calls = (two_best.translate, lambda texts: two_best.score(texts, ["x"] * 2),
             lambda texts: two_best.align(texts, ["x"] * 2),
             lambda texts: two_best.translate(texts, details=True))  # fmt: skip
    for call in calls:
        with pytest.warns(SentenceWarning, match="1 of 2 sentences: longer than the m") as caught:
            call(["sun", long])
        assert [(each.message.remark, each.message.rows) for each in caught] == [
            ("source_cut", [1])
        ]

    assert two_best.translate(["sun"], prefix=" ") == two_best.translate(["sun"], prefix="")


def test_memory_of_parallel_batches_is_limited(functions, monkeypatch):
    monkeypatch.setattr(batch_translator, "_MAX_BATCH_BYTES", 100)
    monkeypatch.setattr(batch_translator, "_MAX_BYTES", 150)
    monkeypatch.setattr(batch_translator, "_num_workers", lambda: 4)
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
    local = BatchTranslator(functions.__getitem__)
    local.batch_size = 16
    translations = local.translate(sentences)
    assert [best.text for best in translations] == [text.upper() for text in sentences]
    assert sum(rows for rows, _ in shapes) == len(sentences)
    assert all(size <= 100 or rows == 1 for rows, size in shapes)
    assert (1, 400) in shapes
    assert all(sum(sizes) <= 150 or len(sizes) == 1 for sizes in most)
    assert max(map(len, most)) > 1


def test_batches_of_pairs_count_both_sides(local, functions, monkeypatch):
    monkeypatch.setattr(batch_translator, "_MAX_BATCH_BYTES", 100)
    local.score(["x" * 60, "x", "x"], ["y", "y" * 60, "y"])
    assert [len(each["source"]) for each in functions["score"].requests] == [1, 1, 1]
