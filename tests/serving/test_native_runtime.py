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

# A request for each signature; an option not named is left as exported.
_PAIR = {
    "source": ["two house", "", "cat sun tree two", "nonsense\t木"],
    "target": ["दो Haus", "木", "", "привет ⁇ 木"],
}
_REQUESTS = {
    "serving_default": {"text": _BYTES},
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


def _written(value):
    """What stands in a column for a value of Python."""
    return value if isinstance(value, bytes) else str(value).encode()


@pytest.mark.slow
def test_c_program_answers_every_signature_in_batches_of_any_size(exported, native_program):
    signatures = tf.saved_model.load(str(exported)).signatures
    assert set(signatures) == set(_REQUESTS)
    for name, request in _REQUESTS.items():
        count = len(next(iter(request.values())))
        specs, columns = signatures[name].structured_input_signature[1], dict(request)
        for option, spec in specs.items():
            columns.setdefault(option, ["" if spec.dtype == tf.string else -1] * count)
        tensors = {key: tf.constant(columns[key], specs[key].dtype) for key in columns}
        expected = signatures[name](**tensors)
        written = {key: list(map(_written, values)) for key, values in columns.items()}
        sizes = [5, 1, 64] if name == "serving_default" else [64]
        answer = native_runtime.answer(native_program, exported, name, written, sizes)
        assert answer.keys() == expected.keys()
        for output, values in expected.items():
            values = values.numpy().reshape(count, -1)
            if values.dtype == object:
                assert answer[output] == values.tolist()
            else:
                found = np.array(answer[output], np.float64)
                np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-5)
    empty = native_runtime.answer(native_program, exported, "serving_default", {"text": []})
    assert empty == {"scores": [], "translations": [], "source_cut": []}


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
    answer = native_runtime.answer(
        native_program, version, "serving_default", {"text": texts}, [2, 1]
    )
    plain = Translator(*trained, search).functions.translate_text(tf.constant(texts))
    assert answer["translations"] == plain["translations"].numpy().tolist()
    scores = np.array(answer["scores"], np.float32)
    np.testing.assert_allclose(scores, plain["scores"], rtol=1e-4, atol=1e-5)
