"""Students of Marian, with an SSRU decoder: .npz files, and the .bin files of Firefox's models."""

import json
import struct

import numpy as np
import pytest
import tensorflow as tf
from samples import pad

from keras_transformer import Translator
from keras_transformer.config import BOS_ID, EOS_ID
from keras_transformer.errors import InputError
from keras_transformer.interop import read_model

INT8, INT16, FLOAT, TEXT, AVX512 = 0x4101, 0x4102, 0x404, 0x101, 0x12001
OPTIONS = "special:model.yml"


@pytest.fixture(scope="module")
def oracle(sample_model):
    """What Marian answers: for each beam and normalization, the sentences that are not empty."""
    runs = json.loads((sample_model("marian_ssru") / "oracle.json").read_text(encoding="utf-8"))
    for run in runs:
        run["sentences"] = [each for each in run["sentences"] if each["source"]]
    return runs


@pytest.mark.parametrize("index", range(4))
def test_search_gives_the_n_best_lists_of_marian(index, oracle, sample_model):
    run = oracle[index]
    options = dict(beam_size=run["beam_size"], num_translations=run["beam_size"])
    translator = Translator.load(
        sample_model("marian_ssru"), length_penalty=run["normalize"], replace_unknowns=False,
        **options,
    )  # fmt: skip
    found = translator.translate([each["source"] for each in run["sentences"]])
    for best, expected in zip(found, run["sentences"], strict=True):
        rows = [best, *best.alternatives]
        assert [row.text for row in rows] == [each["text"] for each in expected["n_best"]]
        scores = [each["score"] for each in expected["n_best"]]
        np.testing.assert_allclose([row.score for row in rows], scores, atol=1e-4)


def word_scores(model, pairs):
    """Returns the log-probabilities of the tokens of targets, EOS last."""
    source, target = model.vocabularies
    rows = [[*ids, EOS_ID] for ids in target.encode([text for _, text in pairs])]
    labels = pad(rows)
    inputs = {
        "source": pad([[*ids, EOS_ID] for ids in source.encode([text for text, _ in pairs])]),
        "target": np.pad(labels[:, :-1], [(0, 0), (1, 0)], constant_values=BOS_ID),
    }
    found = tf.nn.log_softmax(model.to_model()(inputs)).numpy()
    found = np.take_along_axis(found, labels[..., None], axis=2)[..., 0]
    return [row[: len(ids)] for row, ids in zip(found, rows, strict=True)]


def test_words_have_the_scores_of_marian(oracle, sample_model):
    answers = [
        (each["source"], hypothesis["text"], hypothesis["word_scores"])
        for run in oracle
        for each in run["sentences"]
        for hypothesis in each["n_best"]
    ]
    scores = word_scores(
        read_model(sample_model("marian_ssru")), [(source, text) for source, text, _ in answers]
    )
    # A hypothesis whose text is not segmented as it was written has other tokens.
    pairs = [
        (found, expected)
        for found, (*_, expected) in zip(scores, answers, strict=True)
        if len(found) == len(expected) and np.abs(found - expected).max() < 0.5
    ]
    assert len(pairs) > 0.7 * len(answers)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, atol=1e-4)


# The binary format


def quantized(array, kind):
    """Returns integers as Marian's `packAndSave` makes them, and their multiplier."""
    multiplier = np.float32(1024 if kind == INT16 else 127 / np.abs(array).max())
    return np.rint(array * multiplier).astype("<i2" if kind == INT16 else "<i1"), multiplier


def write_binary(path, arrays, kind=INT8):
    """Writes a model as `saveItems` does; matrices are integers, transposed, embeddings as is."""
    items = []
    for name, array in sorted(arrays.items()):
        stored, type_ = array.astype("<f4"), FLOAT
        if name == OPTIONS:
            stored, type_ = array, TEXT
        elif "_W" in (name[-3:-1], name[-2:]) or "Wemb" in name:
            numbers, multiplier = quantized(array, kind)
            stored, type_ = numbers if "Wemb" in name else numbers.T, kind
        data = stored.tobytes()
        if type_ == kind:
            data += multiplier.tobytes()
            if "Wemb" not in name:
                items.append((f"{name}_QuantMultA", (1,), FLOAT, struct.pack("<f", 40.0)))
        items.append((name, array.shape, type_, data + bytes(-len(data) % 256)))
    head = struct.pack("<2Q", 1, len(items))
    for name, shape, type_, data in items:
        head += struct.pack("<4Q", len(name) + 1, type_, len(shape), len(data))
    head += b"".join(name.encode() + b"\0" for name, *_ in items)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, shape, *_ in items)
    gap = 256 - (len(head) + 8) % 256
    head += struct.pack("<Q", gap) + bytes(gap)
    path.write_bytes(head + b"".join(data for *_, data in items))


@pytest.fixture
def firefox(sample_model, tmp_path):
    """Writes the sample as Firefox's models are published, and returns its folder and arrays."""

    def write(kind=INT8):
        folder = sample_model("marian_ssru")
        with np.load(folder / "model.npz") as file:
            arrays = dict(file)
        write_binary(tmp_path / "model.ende.intgemm.alphas.bin", arrays, kind)
        (tmp_path / "vocab.ende.spm").write_bytes((folder / "vocab.spm").read_bytes())
        (tmp_path / "lex.50.50.ende.s2t.bin").write_bytes(bytes(64))
        return tmp_path, arrays

    return write


@pytest.mark.parametrize("kind", [INT8, INT16])
def test_binary_model_is_read_within_the_error_of_its_integers(kind, firefox, sample_model):
    folder, arrays = firefox(kind)
    model, original = read_model(folder), read_model(sample_model("marian_ssru"))
    assert model.config == original.config
    assert model.search == original.search | {"beam_size": 1, "length_penalty": 1.0}
    assert model.notes == [
        "The shortlist lex.50.50.ende.s2t.bin is left out: any token may come next."
    ]
    for name in arrays.keys() - {OPTIONS}:
        found, expected = model.tensors.get(name), original.tensors.get(name)
        is_exact = "_W" not in (name[-3:-1], name[-2:]) and "Wemb" not in name
        error = 0 if is_exact else 0.501 / quantized(expected, kind)[1]
        np.testing.assert_allclose(found, expected, rtol=0, atol=error, err_msg=name)
    pairs = [("I smell gas.", "Ich habe das."), ("This is Tom.", "Das ist Tom.")]
    for found, expected in zip(
        word_scores(model, pairs), word_scores(original, pairs), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=0.3 if kind == INT8 else 0.05)


@pytest.mark.slow
def test_firefox_files_become_an_export_that_answers(firefox, call, tmp_path):
    folder, _ = firefox()
    texts = "This is Tom.\nI smell gas.\n"
    for command in (
        ("export.py", f"--model={folder}", f"--export_dir={tmp_path}/exports"),
        ("translate.py", f"--saved_model={tmp_path}/exports/1"),
    ):
        result = call(*command, stdin=texts.encode())
        assert result.code == 0
    expected = Translator.load(folder).translate(texts.splitlines())
    assert result.out.splitlines() == [each.text for each in expected]


def test_other_binary_models_are_rejected(firefox):
    folder, _ = firefox(AVX512)
    with pytest.raises(InputError, match="is not a binary model of Marian"):
        read_model(folder)
