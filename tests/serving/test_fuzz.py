"""Exported signatures with hundreds of odd inputs."""

import random

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.slow

_COUNT = 150
_KINDS = [
    " \t\n\r\v\f\x1c\x85\xa0\u1680\u2000\u2028\u2029\u202f\u3000\u200b\ufeff",
    ["😀", "👍🏽", "❤\ufe0f", "👩\u200d💻", "🏳🌈", "🇩🇪", "1\u20e3"],
    "\u200c\u200d\u200e\u202a\u202e\u2066\u2069\ufe0e\ufe0f\u034f\u2060",
    [chr(code) for code in range(0x300, 0x370)],  # combining marks
    [chr(code) for code in (*range(0x5D0, 0x5EB), *range(0x620, 0x64B))],  # right to left
    ["▁", "<s>", "</s>", "<unk>", "<pad>", "⁇", "\ufffd", "\\n", "\t", '"', "%s", "\x00"],
]


@pytest.fixture(scope="module")
def inputs(words):
    """Texts of one kind or of several, two of them as long as a megabyte."""
    generator = random.Random(7)
    kinds = [[piece.encode() for piece in pieces] for pieces in _KINDS]
    kinds += [
        [f" {word} ".encode() for word in words],
        # All planes of Unicode, and what is no UTF-8: any bytes, a surrogate, "/" in two bytes.
        [chr(generator.choice([*range(0x20, 0xD800), *range(0xE000, 0x110000, 99)])).encode()
         for _ in range(500)],
        [generator.randbytes(generator.randint(1, 4)) for _ in range(500)],
        [b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\xe6\x9c"],
    ]  # fmt: skip

    def draw(length):
        mixed = generator.sample(kinds, generator.choice([1, 1, 2, 3, len(kinds)]))
        return b"".join(generator.choice(generator.choice(mixed)) for _ in range(length))

    texts = [draw(generator.choice([0, 3, 8, 15, 40])) for _ in range(_COUNT - 2)]
    texts += [draw(20) * 20_000 for _ in range(2)]
    generator.shuffle(texts)
    return texts


@pytest.fixture(scope="module")
def signatures(exported):
    return tf.saved_model.load(str(exported)).signatures


def _answer(signature, **columns):
    specs = signature.structured_input_signature[1]
    tensors = {name: tf.constant(columns[name], spec.dtype) for name, spec in specs.items()}
    answer = {name: value.numpy() for name, value in signature(**tensors).items()}
    for values in answer.values():
        if values.dtype.kind == "f":
            assert np.isfinite(values).all()
        if values.dtype == object:
            for text in values.ravel():
                text.decode("utf-8")  # would raise
    return answer


def test_answers_to_odd_inputs_do_not_depend_on_the_batch(inputs, signatures, words):
    serve, generator = signatures["serving_default"], random.Random(11)
    place = 0
    while place < len(inputs):
        batch = inputs[place : place + generator.choice([1, 7, 23, 64, 64])]
        known = generator.choices(list(words), k=3)  # must be translated as ever
        answer = _answer(serve, text=[*batch, " ".join(known).encode()])
        assert answer["translations"][-1, 0].decode() == " ".join(words[word] for word in known)
        assert (answer["scores"][:, 0] >= answer["scores"][:, 1]).all()
        row = generator.randrange(len(batch))
        alone = _answer(serve, text=[batch[row]])
        np.testing.assert_allclose(alone["scores"][0], answer["scores"][row], atol=1e-4)
        first, second = answer["scores"][row]
        if first - second > 1e-3:  # else rounding may choose
            assert alone["translations"][0, 0] == answer["translations"][row, 0]
        place += len(batch)
    assert _answer(serve, text=[])["translations"].shape == (0, 2)


def test_odd_options_do_not_affect_other_rows(inputs, signatures, words):
    signature, generator = signatures["translate_options"], random.Random(17)
    numbers = [-1, -1, 0, 1, 2, 7, 1e9, -3e38, float("inf"), float("nan")]
    for _ in range(5):
        columns = {"text": ["two cat"] * 16}
        for name, spec in signature.structured_input_signature[1].items():
            if spec.dtype == tf.string:
                columns.setdefault(name, [b"", *generator.sample(inputs, 15)])
            else:
                drawn = generator.choices(numbers, k=15)
                if spec.dtype.is_integer:
                    drawn = [int(np.clip(np.nan_to_num(each), -9, 2**31 - 1)) for each in drawn]
                columns[name] = [-1, *drawn]
        answer = _answer(signature, **columns)
        assert answer["translations"][0, 0].decode() == f"{words['two']} {words['cat']}"


def test_odd_pairs_get_finite_scores(inputs, signatures):
    generator = random.Random(19)
    for _ in range(5):
        pair = {name: generator.sample(inputs, 16) for name in ("source", "target")}
        scored = _answer(signatures["score"], **pair)
        np.testing.assert_allclose(scored["token_scores"].sum(1), scored["scores"], rtol=1e-4)
        sums = _answer(signatures["attention"], **pair)["attention"].sum(axis=2)
        assert np.all(np.isclose(sums, 1, atol=1e-4) | (sums == 0))
