"""Exported signatures with hundreds of odd inputs."""

import random
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

_COUNT = 400
_BLANKS = [*" \t\n\r\v\f\x1c\x85\xa0\u1680\u2000\u2009\u2028\u2029\u202f\u205f\u3000\u200b\ufeff"]
_EMOJI = [*"😀👍🏽❤\ufe0f👩\u200d💻🏳🌈🇩🇪1\u20e3", "👩‍👩‍👧‍👦"]
_JOINERS = [*"\u200c\u200d\u200e\u200f\u202a\u202e\u2066\u2069\ufe0e\ufe0f\u034f\u2060"]
_MARKS = [chr(code) for code in range(0x300, 0x370) if unicodedata.combining(chr(code))]
_RIGHT_TO_LEFT = [chr(code) for code in (*range(0x5D0, 0x5EB), *range(0x620, 0x64B))]
_SPECIAL = ["▁", "<s>", "</s>", "<unk>", "<pad>", "⁇", "\ufffd", "\\n", "\t", '"', "%s", "\x00"]


def _any_character(generator):
    """Draws from all planes of Unicode alike, without the surrogates, which UTF-8 cannot hold."""
    code = generator.randrange(0x10000) + 0x10000 * generator.choice([0] * 8 + [*range(17)])
    return chr(code if not 0xD800 <= code < 0xE000 else 0x20).encode()


def _make_kinds(generator, words):
    """Returns short pieces of text of each kind, as bytes."""
    characters = [_any_character(generator) for _ in range(500)]
    kinds = [_BLANKS, _EMOJI, _JOINERS, _MARKS, _RIGHT_TO_LEFT, _SPECIAL, map(chr, range(0x20))]
    return [
        *([piece.encode() for piece in pieces] for pieces in kinds),
        [f" {word} ".encode() for word in words],
        characters,
        [character[:-1] for character in characters],  # that were cut
        [generator.randbytes(generator.randint(1, 4)) for _ in range(500)],
        # A surrogate, and "/" in two bytes: what only a careless reader of UTF-8 lets through.
        [b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80"],
    ]


@pytest.fixture(scope="module")
def inputs(words):
    """Texts of one kind or of several, two of them as long as a megabyte."""
    generator = random.Random(7)
    kinds = _make_kinds(generator, words)

    def draw(length):
        mixed = generator.sample(kinds, generator.choice([1, 1, 2, 3, len(kinds)]))
        return b"".join(generator.choice(generator.choice(mixed)) for _ in range(length))

    texts = [draw(generator.choice([0, 3, 8, 15, 40])) for _ in range(_COUNT - 4)]
    texts += [draw(5_000), draw(5_000), *(draw(20) * 20_000 for _ in range(2))]
    generator.shuffle(texts)
    return texts


@pytest.fixture(scope="module")
def answers(inputs, exported, words):
    """What each text got, in batches of 0 to 64: translations and scores.

    One sentence in each batch is well known, and must be translated as ever.
    """
    serve = tf.saved_model.load(str(exported)).signatures["serving_default"]
    generator = random.Random(11)
    known = [" ".join(generator.choices(list(words), k=3)) for _ in range(20)]
    translations, scores = [], []
    while len(translations) < len(inputs):
        # Every new shape costs oneDNN a kernel.
        size = generator.choice([0, 1, 2, 7, 23, 64, 64, 64])
        batch = inputs[len(translations) : len(translations) + size]
        place = generator.randint(0, len(batch))
        sentence = generator.choice(known)
        asked = [*batch[:place], sentence.encode(), *batch[place:]] if batch else []
        answer = serve(text=tf.constant(asked, tf.string))
        answer = {key: value.numpy() for key, value in answer.items()}
        assert answer["translations"].shape == answer["scores"].shape == (len(asked), 2)
        if asked:
            expected = " ".join(words[word] for word in sentence.split())
            assert answer["translations"][place, 0].decode() == expected
        is_fuzz = np.arange(len(asked)) != place
        translations.extend(answer["translations"][is_fuzz])
        scores.extend(answer["scores"][is_fuzz])
    return serve, translations, np.array(scores)


@pytest.mark.slow
def test_odd_inputs_get_the_same_valid_translations_in_any_batch(inputs, answers):
    serve, translations, scores = answers
    assert len(inputs) == len(translations) == _COUNT
    assert scores.shape == (_COUNT, 2)
    assert np.isfinite(scores).all()
    assert (scores[:, 0] >= scores[:, 1]).all()
    for row in translations:
        for translation in row:
            translation.decode("utf-8")  # would raise

    # An answer does not depend on its batch.
    sample = sorted(random.Random(13).sample(range(_COUNT), 20))
    sample += [index for index, text in enumerate(inputs) if len(text) > 100_000]
    for index in sample:
        alone = serve(text=tf.constant([inputs[index]]))
        np.testing.assert_allclose(alone["scores"][0], scores[index], atol=1e-4)
        first, second = scores[index]
        if first - second > 1e-3:  # else rounding may choose
            assert alone["translations"][0, 0].numpy() == translations[index][0]


@pytest.mark.slow
def test_odd_options_do_not_affect_other_rows(inputs, exported, words):
    signature = tf.saved_model.load(str(exported)).signatures["translate_options"]
    columns = signature.structured_input_signature[1]
    generator = random.Random(17)
    numbers = [-1, -1, 0, 1, 2, 7, 1e9, -3e38, float("inf"), float("nan")]
    sentence = "two cat"
    expected = " ".join(words[word] for word in sentence.split())
    for _ in range(10):
        asked = {"text": [sentence] * 16}
        for name, spec in columns.items():
            if name == "text":
                continue
            if spec.dtype == tf.string:
                constraints = generator.sample(inputs, 15)
                asked[name] = [b"", *(generator.choice([b"", text]) for text in constraints)]
            else:
                drawn = generator.choices(numbers, k=15)
                if spec.dtype.is_integer:
                    drawn = [int(np.clip(np.nan_to_num(each), -9, 2**31 - 1)) for each in drawn]
                asked[name] = [-1, *drawn]
        tensors = {name: tf.constant(asked[name], spec.dtype) for name, spec in columns.items()}
        answer = {name: value.numpy() for name, value in signature(**tensors).items()}
        assert answer["translations"].shape == answer["scores"].shape == (16, 2)
        assert np.isfinite(answer["scores"]).all()
        assert answer["translations"][0, 0].decode() == expected
        for translation in answer["translations"].ravel():
            translation.decode("utf-8")  # would raise


@pytest.mark.slow
def test_odd_pairs_and_ids_get_finite_scores(inputs, exported):
    signatures = tf.saved_model.load(str(exported)).signatures
    generator = random.Random(19)
    for _ in range(10):
        pair = {name: tf.constant(generator.sample(inputs, 16)) for name in ("source", "target")}
        scored = {name: value.numpy() for name, value in signatures["score"](**pair).items()}
        assert np.isfinite(scored["scores"]).all()
        np.testing.assert_allclose(scored["token_scores"].sum(1), scored["scores"], rtol=1e-4)
        assert (scored["lengths"] >= 1).all()
        attention = signatures["attention"](**pair)["attention"].numpy()
        sums = attention.sum(axis=2)
        assert np.all(np.isclose(sums, 1, atol=1e-4) | (sums == 0))
        least, most = generator.choice([(-(2**31), 2**31 - 1), (-2, 9), (0, 5)])
        ids = np.array([[generator.randint(least, most) for _ in range(9)] for _ in range(16)])
        rows = [" ".join(map(str, row)) for row in ids]
        for source in (rows, pair["source"]):
            assert np.isfinite(signatures["tokens"](source=tf.constant(source))["scores"]).all()
