"""The ONNX folder: onnxruntime computes what the model does, and translate.py searches as we do."""

import io
import random
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    RecurrentConfig,
    SearchConfig,
    TransformerConfig,
    UniversalConfig,
)
from keras_transformer.data import pad_ids
from keras_transformer.errors import InputError
from keras_transformer.inference.translator import search_translations
from keras_transformer.interop.onnx import export_onnx
from keras_transformer.models import Ensemble, Transformer, build_model
from keras_transformer.text import learn_vocabulary

pytest.importorskip("tf2onnx", reason="needs the package tf2onnx")
pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")

from keras_transformer.interop import onnx_translate

SIZE = 30
SMALL = TransformerConfig(
    vocabulary_size=SIZE, num_layers=2, model_dim=16, feed_forward_dim=24, num_heads=4
)
RECURRENT = RecurrentConfig(vocabulary_size=SIZE, num_layers=1, model_dim=16, hidden_dim=12)
UNIVERSAL = UniversalConfig(
    vocabulary_size=SIZE, model_dim=16, feed_forward_dim=24, num_heads=4, num_steps=3
)
CONFIGS = {
    "as in the paper": SMALL,
    "pre-norm, nothing shared": SMALL.replace(
        norm_position="pre", share_embeddings="none", attention_bias=True, output_bias=True
    ),
    "learned positions": SMALL.replace(positions="learned", max_positions=80, activation="gelu"),
    "relative positions, windows": SMALL.replace(
        positions="relative", encoder_attention_window=5, decoder_attention_window=5
    ),
    "rotary positions": SMALL.replace(positions="rotary", norm_form="sigma", decoder_layers=1),
    "other options": SMALL.replace(
        positions="halves", embedding_norm=True, source_eos=False, activation="swish", key_dim=6,
        value_dim=3, share_embeddings="target",
    ),
    "recurrent": RECURRENT,
    "recurrent, all": RECURRENT.replace(
        num_layers=2, attention_type="dot", intra_temporal_attention=True,
        intra_decoder_attention=True, input_feeding=True,
    ),
    "universal": UNIVERSAL,
    "universal, fixed steps": UNIVERSAL.replace(adaptive_steps=False, norm_position="pre"),
}  # fmt: skip
SENTENCES = [[5, 9, 20], [4] * 17, [28, 7, 11, 12, 13, 6, 29, 8], [10]]
SOURCE = pad_ids([[*ids, EOS_ID] for ids in SENTENCES])
TARGET = pad_ids([[BOS_ID, *ids] for ids in [[7, 8, 21, 5, 14], list(range(4, 29)), [], [6] * 9]])


@pytest.fixture(scope="module")
def vocabulary():
    """30 tokens, all but the reserved ones single characters."""
    generator = random.Random(1)
    texts = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz ", k=30)) for _ in range(300)]
    return learn_vocabulary(texts, size=SIZE, kind="char")


def make_model(config, dtype=None):
    """Gives random weights, gains and biases included, whose log-probabilities are far apart."""
    keras.utils.set_random_seed(3)
    model = build_model(config, dtype=dtype)
    generator = np.random.default_rng(3)
    for variable in model.weights:
        value = keras.ops.convert_to_numpy(variable)
        if value.ndim == 2:
            variable.assign(2 * value)
        else:
            variable.assign(value + generator.normal(size=value.shape, scale=0.3))
    return model


def read(model, exported):
    """Gives the log-probabilities that the two graphs compute for `TARGET`, and ours."""
    names = exported.config["context"] + exported.config["state"]
    tensors = dict(zip(names, exported.encoder.run(names, {"source": SOURCE}), strict=True))
    results = [each.name for each in exported.decoder_step.get_outputs()]
    found = []
    for time, ids in enumerate(TARGET.T):
        inputs = {"ids": ids, "time": np.array(time, np.int32), "count": np.array(3, np.int32)}
        outputs = dict(zip(results, exported.decoder_step.run(None, inputs | tensors), strict=True))
        best = np.sort(outputs["log_probs"], axis=1)[:, :-4:-1]
        np.testing.assert_array_equal(outputs["top_log_probs"], best)
        np.testing.assert_array_equal(
            np.take_along_axis(outputs["log_probs"], outputs["top_ids"], axis=1), best
        )
        found.append(outputs["log_probs"])
        tensors |= {name: outputs[f"next_{name}"] for name in exported.config["state"]}
    logits = model.call({"source": SOURCE, "target": TARGET}, training=False)
    return np.stack(found, axis=1), tf.nn.log_softmax(logits).numpy()


def search(model, vocabulary, **options):
    """Gives our best translations of `SENTENCES` and their scores."""
    config = SearchConfig(**options)
    run = tf.function(
        lambda source: search_translations(model, source, config, vocabulary), autograph=False
    )
    found = run(SOURCE)
    rows = [row[row != PAD_ID][:-1].tolist() for row in found.ids[:, 0].numpy()]
    return rows, found.scores[:, 0].numpy()


def assert_equal_searches(model, exported, vocabulary, **options):
    options = {"length_penalty": 0.6, "max_extra_length": 9} | options
    ours, scores = search(model, vocabulary, **options)
    found = exported.search(SENTENCES, **options)
    assert [ids for ids, _ in found] == ours
    np.testing.assert_allclose([score for _, score in found], scores, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_onnxruntime_computes_what_the_model_does(config, vocabulary, tmp_path):
    model = make_model(config)
    exported = onnx_translate.Model(export_onnx(model, vocabulary, vocabulary, tmp_path / "a"))
    found, expected = read(model, exported)
    assert np.ptp(expected) > 5
    is_real = TARGET != PAD_ID
    np.testing.assert_allclose(found[is_real], expected[is_real], atol=1e-4)
    for beam_size in (1, 4):
        assert_equal_searches(model, exported, vocabulary, beam_size=beam_size)


@pytest.fixture(scope="module")
def small(vocabulary, tmp_path_factory):
    """A model, and what was exported of it."""
    model = make_model(SMALL)
    search = SearchConfig(beam_size=3, length_penalty=1.0, max_extra_length=9)
    folder = tmp_path_factory.mktemp("onnx") / "small"
    export_onnx(model, vocabulary, vocabulary, folder, search=search)
    return model, onnx_translate.Model(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 4, "length_penalty": 0.0, "min_length": 0},
        {"beam_size": 20, "length_penalty": 1.2, "length_penalty_form": "power"},
        {"beam_size": 3, "min_length": 12},
        {"beam_size": 2, "max_length": 3},
    ],
    ids=str,
)
def test_options_of_the_search_mean_the_same(small, vocabulary, options):
    assert_equal_searches(*small, vocabulary, **options)


@pytest.mark.slow
def test_batch_of_any_size_has_the_same_answers(small):
    _, exported = small
    together = exported.search(SENTENCES)
    alone = [exported.search([ids])[0] for ids in SENTENCES]
    assert [ids for ids, _ in alone] == [ids for ids, _ in together]


@pytest.mark.slow
def test_config_describes_the_graphs(small):
    _, exported = small
    graphs, sessions = exported.config["graphs"], (exported.encoder, exported.decoder_step)
    for graph, session in zip(graphs.values(), sessions, strict=True):
        for side, tensors in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
            assert set(graph[side]) == {each.name for each in tensors}
            for each in tensors:
                sizes = [size if isinstance(size, int) else None for size in each.shape]
                assert graph[side][each.name]["shape"] == sizes, each.name
    assert exported.config["search"]["beam_size"] == 3


@pytest.mark.slow
def test_ensembles_are_exported(vocabulary, tmp_path):
    model = Ensemble([make_model(SMALL), make_model(UNIVERSAL)])
    exported = onnx_translate.Model(export_onnx(model, vocabulary, vocabulary, tmp_path / "a"))
    assert_equal_searches(model, exported, vocabulary, beam_size=4)


@pytest.mark.slow
def test_program_translates_without_tensorflow(separate_translator, words, tmp_path):
    ours = separate_translator
    vocabularies = ours.source_tokenizer.vocabulary, ours.target_tokenizer.vocabulary
    folder = export_onnx(ours.model, *vocabularies, tmp_path / "model", search=ours.search)
    for name in ("tensorflow", "keras", "keras_transformer"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} was imported')\n")
    lines = [*words, "sun cat zebra", "", "  ", "two  two"]
    done = subprocess.run(
        [sys.executable, folder / "translate.py", "--scores", "--batch_size=3"],
        input="\n".join(lines), env={"PYTHONPATH": str(tmp_path)}, capture_output=True,
        encoding="utf-8",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found = [line.split("\t") for line in done.stdout.split("\n")[:-1]]
    expected = [best for best, *_ in ours.translate(lines)]
    assert [text for _, text in found] == [each.text for each in expected]
    scores = [float(score) for score, _ in found]
    np.testing.assert_allclose(scores, [each.score for each in expected], atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (["--beam_size=0"], b"a", "--beam_size: expected a whole number from 1 on, got '0'"),
        (["--batch_size=x"], b"a", "--batch_size: expected a whole number from 1 on, got 'x'"),
        ([], b"a\nb\xff\n", "line 2 is not UTF-8: invalid start byte; convert it first"),
    ],
)
def test_program_reports_wrong_input(arguments, text, message, monkeypatch, capsys):
    stdin = types.SimpleNamespace(buffer=io.BytesIO(text))
    monkeypatch.setattr(onnx_translate.sys, "stdin", stdin)
    monkeypatch.setattr(onnx_translate.sys, "argv", ["translate.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        onnx_translate.main()
    assert capsys.readouterr().err.endswith(f"{message}\n")


@pytest.mark.slow
def test_imported_vocabularies_cut_text_as_ours(small, vocabulary):
    _, exported = small
    texts = ["abc", "b  ca", " ü漢ü abc", "z" * 9]
    assert [exported.tokenize(text) for text in texts] == vocabulary.encode(texts)


def refuse(reason, model, vocabulary, folder):
    """Exports, which must fail and leave nothing behind."""
    with pytest.raises(InputError, match=reason):
        export_onnx(model, vocabulary, vocabulary, folder)
    assert not list(folder.parent.glob("*"))


def test_other_dtypes_and_vocabularies_are_rejected(vocabulary, tmp_path):
    model = make_model(SMALL, dtype="bfloat16")
    refuse("computes in float32, the model in bfloat16", model, vocabulary, tmp_path / "a")
    model = make_model(SMALL.replace(vocabulary_size=31))
    refuse("31 source tokens and the source vocabulary 30", model, vocabulary, tmp_path / "a")


@pytest.mark.slow
def test_operation_that_onnx_lacks_is_named(vocabulary, tmp_path):
    class Special(Transformer):
        def logits(self, x, projection=()):
            return tf.math.bessel_i0(super().logits(x, projection))

    model = Special(SMALL)
    refuse("cannot convert this model .*BesselI0", model, vocabulary, tmp_path / "a")


@pytest.mark.slow
def test_wrong_answers_of_onnxruntime_are_noticed(small, vocabulary, tmp_path, monkeypatch):
    model, exported = small
    wrong = [(ids, score - 0.01) for ids, score in exported.search([[4], [5], [6]])]
    monkeypatch.setattr(onnx_translate.Model, "search", lambda self, sentences: wrong)
    refuse("onnxruntime gives a translation the score", model, vocabulary, tmp_path / "a")


def test_folder_that_exists_is_rejected(vocabulary, tmp_path):
    with pytest.raises(InputError, match="exists already"):
        export_onnx(make_model(SMALL), vocabulary, vocabulary, tmp_path)


@pytest.mark.parametrize("package", ["tf2onnx", "onnxruntime"])
def test_missing_package_is_named(vocabulary, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    refuse(r"run pip install '.\[onnx\]' in", make_model(SMALL), vocabulary, tmp_path / "a")
