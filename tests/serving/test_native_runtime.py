"""The export in the model server's runtime, called from C: the same answers as in Python."""

import native_runtime
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Translator
from keras_transformer.config import EOS_ID, SearchConfig
from keras_transformer.inference import XlaShapes
from keras_transformer.serving import export as export_module

pytestmark = pytest.mark.skipif(
    native_runtime.missing() is not None, reason=str(native_runtime.missing())
)

_SENTENCES = [
    "hello two cat", "sun", "tree house tree sun", "two two", "cat", "привет мир", "木 两 房子",
    "شمس وقطة", "γάτα και σπίτι", "दो पेड़", "かな한글 hello", "", " ", "\t\n\u3000",
    "hello\ttwo\nsun", "two\r\ncat\u2028sun", "\\t sun \\", "a\\\tb",
    "😀 hello 👩\u200d👩\u200d👧\u200d👦 two", "\x00\x01\x1f sun \x7f\u200b\ufeff",
    "two sun " * 15_000, "x" * 100_001,
]  # fmt: skip
_BYTES = [text.encode() for text in _SENTENCES]
_BYTES += [b"\xff\xfe\x80 sun", b"cat \xe6\x9c", b"\xf0\x9f"]

# A request for each signature beside serving_default; an option not named is left as exported.
_PAIR = {
    "source": ["two house", "", "cat sun tree two", "nonsense\t木"],
    "target": ["दो Haus", "木", "", "привет ⁇ 木"],
}
_REQUESTS = {
    "translate_options": {
        "text": ["hello two cat", "two\thello", "", "sun sun", "cat"],
        "length_penalty": [0.0, -1.0, 2.5, -1.0, 1e30],
        "repetition_penalty": [-1.0, 1.5, -1.0, -1.0, 0.0],
        "max_length": [-1, 2, -1, -1, 3],
        "no_repeat_ngram": [-1, -1, -1, 1, -1],
        "prefix": ["", "木", "木", "", "Haus\\ \n"],
        "banned_phrases": ["привет\nदो", "", "", "", "γάτα"],
    },
    "score": _PAIR,
    "attention": _PAIR,
    "tokens": {"source": [f"4 5 6 {EOS_ID}", "", "7"]},
}


@pytest.fixture(scope="module")
def served(exported):
    return tf.saved_model.load(str(exported))


def _written(value):
    """What stands in a column for a value of Python."""
    if isinstance(value, str):
        return value.encode()
    return " ".join(map(str, value if isinstance(value, list) else [value])).encode()


@pytest.mark.slow
@pytest.mark.parametrize("batch_sizes", [[1], [5, 64, 2]], ids=["alone", "mixed batches"])
def test_c_program_translates_as_python(exported, two_best, native_program, batch_sizes):
    signature = native_runtime.read_signature(exported)
    rows = [[sentence] for sentence in _BYTES]
    answer = native_runtime.answer(native_program, signature, rows, batch_sizes)
    ours = two_best(tf.constant(_BYTES))
    assert answer["translations"] == ours["translations"].numpy().tolist()
    scores = np.array(answer["scores"], np.float32)
    np.testing.assert_allclose(scores, ours["scores"], atol=1e-5)
    empty = native_runtime.answer(native_program, signature, [])
    assert empty == {"scores": [], "translations": [], "source_cut": []}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(_REQUESTS))
def test_c_program_answers_every_signature(exported, served, native_program, name):
    assert set(served.signatures) == {"serving_default", *_REQUESTS}
    function, columns = served.signatures[name], dict(_REQUESTS[name])
    specs = function.structured_input_signature[1]
    for option, spec in specs.items():
        neutral = "" if spec.dtype == tf.string else -1
        columns.setdefault(option, [neutral] * len(next(iter(columns.values()))))
    expected = function(**{key: tf.constant(columns[key], specs[key].dtype) for key in columns})
    signature = native_runtime.read_signature(exported, name, inputs=list(columns))
    written = [[_written(value) for value in column] for column in columns.values()]
    rows = list(zip(*written, strict=True))
    answer = native_runtime.answer(native_program, signature, rows)
    assert answer.keys() == expected.keys()
    for output, values in expected.items():
        values = values.numpy().reshape(len(rows), -1)
        if values.dtype == object:
            assert answer[output] == values.tolist()
        else:
            found = np.array(answer[output], np.float64)
            np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_c_program_runs_compiled_search(trained, native_program, tmp_path, monkeypatch):
    # The C program compares with Python, what `export` does otherwise, and compiles once more.
    monkeypatch.setattr(export_module, "compare_answers", lambda *_: None)
    search = SearchConfig(
        beam_size=2, num_translations=2, max_extra_length=3, banned_phrases=("Haus",),
    )  # fmt: skip
    translator = Translator(*trained, search, xla=XlaShapes((2,), (4,)))
    version = export_module.export(translator, tmp_path / "compiled")
    # Two together, one alone, and one that is too long for what is compiled.
    texts = [b"hello two cat", b"house", b"", b"cat " * 6]
    signature = native_runtime.read_signature(version)
    answer = native_runtime.answer(native_program, signature, [[t] for t in texts], [2, 1])
    plain = Translator(*trained, search)(tf.constant(texts))
    assert answer["translations"] == plain["translations"].numpy().tolist()
    scores = np.array(answer["scores"], np.float32)
    np.testing.assert_allclose(scores, plain["scores"], rtol=1e-4, atol=1e-5)
