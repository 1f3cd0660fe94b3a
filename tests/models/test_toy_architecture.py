"""An architecture that the package does not know goes all the way, from training to a server."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import fake_server
import keras
import native_runtime
import numpy as np
import pytest
import stand_in_server
import tensorflow as tf
import tiny_run
from toy_architecture import Toy, ToyConfig

from keras_transformer import Client
from keras_transformer.config import ModelConfig, SearchConfig, TransformerConfig, model
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator
from keras_transformer.inference.prepared_model import in_precision
from keras_transformer.models import Ensemble, build_model
from keras_transformer.serving.export import export, load_exported
from keras_transformer.training import RunDirectory, train

TESTS = pathlib.Path(__file__).resolve().parents[1]
SEARCH = SearchConfig(beam_size=3, max_source_length=8, max_extra_length=4, num_translations=2)
SENTENCES = ["abc", "fed", "", "aabb", "c"]
SOURCE = np.array([[5, 6, 7, 3], [8, 3, 0, 0]])
TARGET = np.array([[2, 9, 4], [2, 5, 5]])
SIGNATURES = {"serving_default", "translate_options", "score", "tokens"}
STEPS = {"train_steps": 60, "checkpoint_steps": 20, "ema_decay": 0.8, "learning_rate": 0.03}


def contents(run: RunDirectory, checkpoint: str) -> dict[str, np.ndarray]:
    """Gives all that a checkpoint holds, by name."""
    stored = tf.train.load_checkpoint(str(run.path / "checkpoints" / checkpoint))
    names = set(stored.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    return {name: stored.get_tensor(name) for name in names}


def answers(translations) -> tuple[list[list[str]], np.ndarray]:
    """Gives texts and scores."""
    texts = [[each.text for each in row] for row in translations]
    return texts, np.array([[each.score for each in row] for row in translations])


def assert_same_answers(found, expected) -> None:
    assert answers(found)[0] == answers(expected)[0]
    np.testing.assert_allclose(answers(found)[1], answers(expected)[1], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def created(tmp_path_factory) -> RunDirectory:
    """A run that nothing has trained."""
    run = RunDirectory(tmp_path_factory.mktemp("created") / "run")
    vocabulary = tiny_run.make_vocabulary()
    config = ToyConfig(vocabulary_size=vocabulary.size, model_dim=24, dropout=0.1)
    configs = tiny_run.RunConfigs(config, tiny_run.DATA, tiny_run.training_config(**STEPS))
    run.create(configs, vocabulary, vocabulary)
    return run


@pytest.fixture(scope="module")
def trained(created, tmp_path_factory) -> tuple[RunDirectory, Toy]:
    """A run that went through its steps at once, and the model that it returned."""
    run = RunDirectory(shutil.copytree(created.path, tmp_path_factory.mktemp("trained") / "run"))
    return run, train(run, tiny_run.corpus(), tiny_run.text(16, seed=1), show=False)


@pytest.fixture(scope="module")
def translator(trained) -> Translator:
    run, _ = trained
    return Translator(run.load_model(), *run.vocabularies(), SEARCH)


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory) -> pathlib.Path:
    """The translator as a SavedModel, whose answers a fresh process has checked."""
    return export(translator, tmp_path_factory.mktemp("exports"), batch_sizes=[1, 4])


def test_it_learns_with_a_dev_bleu_at_each_checkpoint(trained):
    lines = (trained[0].path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.2
    assert [row["step"] for row in rows if "bleu" in row] == [20, 40, 60]
    assert isinstance(trained[1], Toy)


@pytest.mark.slow
def test_killed_it_resumes_and_ends_with_the_same_weights(created, trained, tmp_path):
    run = RunDirectory(shutil.copytree(created.path, tmp_path / "run"))
    driver = "import sys, toy_architecture, tiny_run; tiny_run.train_until_killed(sys.argv[1], 27)"
    path = [TESTS.parent, TESTS / "models", TESTS / "training"]
    killed = subprocess.run(
        [sys.executable, "-c", driver, run.path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
        check=False,
    )
    assert killed.returncode == -9
    assert run.checkpoints().steps() == [20]
    train(run, tiny_run.corpus(), tiny_run.text(16, seed=1), show=False)
    for name in ("step-60", "average"):
        expected, found = contents(trained[0], name), contents(run, name)
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=f"{name}: {key}")


def test_its_average_is_the_mean_of_the_last_checkpoints_and_is_what_is_loaded(trained):
    run, _ = trained
    averaged, first, second = (contents(run, name) for name in ("average", "step-40", "step-60"))
    names = [name for name in averaged if name.startswith("weights/")]
    assert len(names) == len(run.load_model().weights)
    for name in names:
        mean = (first[f"average_{name}"].astype(np.float64) + second[f"average_{name}"]) / 2
        np.testing.assert_array_equal(averaged[name], mean.astype(np.float32))


def test_it_translates_by_steps_as_it_scores_in_one_pass(translator):
    found = translator.translate(SENTENCES)
    texts = [row[0].text for row in found]
    assert len(set(texts)) > 2
    assert texts[2] == ""
    one_pass = translator.score(SENTENCES, texts)
    lengths = np.array([len(each.token_scores) for each in one_pass])
    penalty = ((5 + lengths) / 6) ** SEARCH.length_penalty
    scores = np.array([each.score for each in one_pass]) / penalty
    keep = [index for index, text in enumerate(SENTENCES) if text]
    np.testing.assert_allclose(answers(found)[1][keep, 0], scores[keep], rtol=1e-4)


@pytest.mark.slow
def test_without_attention_there_is_no_alignment_and_no_penalty_on_coverage(translator, exported):
    with pytest.raises(InputError, match="the model has no signature 'attention'"):
        translator.align(["abc"], ["cba"])
    loaded = load_exported(exported)
    penalized = loaded.translate(SENTENCES, coverage_penalty=5.0)
    assert_same_answers(penalized, translator.translate(SENTENCES))


@pytest.mark.slow
def test_it_is_exported_and_answers_in_a_fresh_graph(translator, exported):
    loaded = load_exported(exported)
    assert_same_answers(loaded.translate(SENTENCES), translator.translate(SENTENCES))
    card = json.loads((exported / "assets.extra" / "model_card.json").read_text())
    assert card["model"]["architecture"] == "toy"
    assert set(card["signatures"]) == SIGNATURES


@pytest.mark.slow
def test_bfloat16_ensemble_without_attention_is_exported(trained, translator, tmp_path):
    ensemble = Ensemble([translator.model, translator.model])
    small = in_precision(ensemble, "bfloat16")
    for each in (ensemble, small, small.models[0]):
        assert not hasattr(each, "attention")
    vocabularies = trained[0].vocabularies()
    made = Translator(small, *vocabularies, SEARCH)
    path = export(made, tmp_path / "model", batch_sizes=[1], check_answers=False)
    assert set(tf.saved_model.load(str(path)).signatures) == SIGNATURES
    found = answers(load_exported(path).translate(SENTENCES))[1]
    expected = answers(translator.translate(SENTENCES))[1]
    assert 0 < np.abs(found - expected).max() < 0.1


def test_in_bfloat16_its_probabilities_hardly_change(translator):
    inputs = {"source": SOURCE, "target": TARGET}
    exact, rounded = (
        np.asarray(keras.ops.softmax(keras.ops.cast(model(inputs), "float32")))
        for model in (translator.model, in_precision(translator.model, "bfloat16"))
    )
    assert 0 < np.abs(exact - rounded).max() < 0.05


@pytest.mark.skipif(native_runtime.missing() is not None, reason=str(native_runtime.missing()))
@pytest.mark.slow
def test_a_c_program_serves_it_without_python(translator, exported, tmp_path):
    program = native_runtime.build("answer", tmp_path)
    signature = native_runtime.read_signature(exported)
    rows = [[sentence.encode()] for sentence in SENTENCES]
    found = native_runtime.answer(program, signature, rows, [2, 3])
    texts, scores = answers(translator.translate(SENTENCES))
    assert [[text.decode() for text in row] for row in found["translations"]] == texts
    np.testing.assert_allclose(np.array(found["scores"], np.float32), scores, atol=1e-4)


@pytest.mark.slow
def test_the_client_gets_its_translations_from_a_server(translator, exported):
    served = fake_server.Model({}, lambda signature, inputs: {}, "toy")
    served.versions, served.states = {}, {}
    stand_in_server.load(served, 1, exported)
    with fake_server.serve_grpc(served) as address, Client(address, model="toy") as client:
        assert_same_answers(client.translate(SENTENCES), translator.translate(SENTENCES))


def test_keras_saves_and_loads_it(trained, tmp_path):
    trained[1].save(tmp_path / "toy.keras")
    copy = keras.saving.load_model(tmp_path / "toy.keras")
    assert (type(copy), copy.config) == (Toy, trained[1].config)
    inputs = {"source": SOURCE, "target": TARGET}
    np.testing.assert_array_equal(copy(inputs), trained[1](inputs))


def test_its_operations_are_counted(trained):
    toy = trained[1]
    products = 12 * 24**2 * 8 + 2 * 4 * 24 * toy.config.target_size
    assert toy.count_flops(4, 4) == products


def test_beside_a_transformer_in_an_ensemble_it_has_no_attention_and_no_coverage(trained):
    config = TransformerConfig(
        vocabulary_size=trained[1].config.vocabulary_size,
        num_layers=1, model_dim=8, feed_forward_dim=8, num_heads=2,
    )  # fmt: skip
    both = Ensemble([build_model(config), trained[1]])
    assert not hasattr(both, "attention")
    full = both.call({"source": SOURCE, "target": TARGET})
    state = both.encode(SOURCE, num_hypotheses=2, coverage=True)
    assert state.coverage is None
    for time in range(TARGET.shape[1]):
        ids = np.repeat(TARGET[:, time : time + 1], 2, axis=1)
        logits, state = both.step(ids, state)
        np.testing.assert_allclose(logits[:, 1], full[:, time], rtol=1e-3, atol=1e-4)


def test_a_run_of_an_architecture_that_is_not_registered_is_refused_in_one_line(
    trained, monkeypatch
):
    known = {"transformer": TransformerConfig}
    monkeypatch.setattr(model, "_ARCHITECTURES", known)
    with pytest.raises(InputError) as caught:
        trained[0].load_model()
    assert str(caught.value).endswith(
        "config.json: architecture must be one of transformer, got 'toy'; import the module that "
        "registers it first (commands: --user_module)"
    )
    with pytest.raises(InputError, match="no model is registered for OtherConfig"):
        build_model(type("OtherConfig", (ToyConfig,), {})(vocabulary_size=10))
    assert ModelConfig.presets().keys() == TransformerConfig.PRESETS.keys()
