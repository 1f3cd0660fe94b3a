"""Training runs of each architecture, what they export, and who answers from it."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tiny_run
from model_cases import CONFIGS

from keras_transformer import Translator
from keras_transformer.config import BOS_ID, EOS_ID, SearchConfig, TransformerConfig
from keras_transformer.config import model as config_module
from keras_transformer.decoding import NO_SCORE
from keras_transformer.errors import InputError
from keras_transformer.outputs import Translation
from keras_transformer.serving.export import export, load_exported
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.trainer import train

RUNS = {
    "transformer, window": dict(model_dim=16, feed_forward_dim=24),
    "recurrent, all": dict(model_dim=16),
    "universal, all": dict(model_dim=16, feed_forward_dim=24, num_steps=2),
    "bag": {},
}
STEPS = {"train_steps": 30, "checkpoint_steps": 10, "learning_rate": 0.02}
SEARCH = SearchConfig(beam_size=3, max_source_length=8, max_extra_length=4, num_translations=2)
SENTENCES = ["abc", "fed", "", "aabb", "c"]
SIGNATURES = {"serving_default", "translate_options", "score"}
only_bag = pytest.mark.parametrize("config", ["bag"], indirect=True)


def _places(translations):
    """Fills the empty places of n-best lists as an export does."""
    empty = Translation("", NO_SCORE)
    rows = [[best, *best.alternatives] for best in translations]
    return [[*row, *[empty] * (SEARCH.num_translations - len(row))] for row in rows]


def scores_of(translations):
    return np.array([[each.score for each in row] for row in _places(translations)])


def texts_of(translations):
    return [[each.text for each in row] for row in _places(translations)]


@pytest.fixture(scope="module", params=RUNS)
def config(request):
    return CONFIGS[request.param].replace(**RUNS[request.param])


@pytest.fixture(scope="module")
def created(config, tmp_path_factory) -> RunDirectory:
    """A run that nothing has trained."""
    run, vocabulary = RunDirectory(tmp_path_factory.mktemp("run")), tiny_run.make_vocabulary()
    training = tiny_run.training_config(**STEPS)
    configs = tiny_run.RunConfigs(config, tiny_run.DATA, training)
    run.write(configs, vocabulary, vocabulary)
    return run


@pytest.fixture(scope="module")
def trained(created, tmp_path_factory) -> RunDirectory:
    """The run after its steps, which nothing interrupted."""
    run = RunDirectory(shutil.copytree(created.path, tmp_path_factory.mktemp("trained") / "run"))
    train(run, tiny_run.corpus(), tiny_run.text(16, seed=1), show=False)
    return run


@pytest.fixture(scope="module")
def translator(trained) -> Translator:
    return Translator(trained.load_model(), *trained.vocabularies(), SEARCH)


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory) -> pathlib.Path:
    """The translator as a SavedModel, whose answers a fresh process has checked."""
    return export(translator, tmp_path_factory.mktemp("exports"))


@pytest.mark.slow
def test_trained_model_translates_by_steps_as_it_scores(trained, translator):
    rows = [json.loads(line) for line in trained.metrics_path.read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0] - 0.1
    assert [row["step"] for row in rows if "bleu" in row] == [10, 20, 30]
    keep = [index for index, sentence in enumerate(SENTENCES) if sentence]
    rows = translator.source.encode([SENTENCES[index] for index in keep])
    source = tf.ragged.constant([[*row, EOS_ID] for row in rows]).to_tensor()
    find = tf.function(lambda ids: translator.functions.search_ids(ids), autograph=False)
    found = find(source)
    ids = found.ids[:, 0].numpy()  # [B, L], with EOS, then PAD
    inputs = {
        "source": source,
        "target": np.pad(ids[:, :-1], [(0, 0), (1, 0)], constant_values=BOS_ID),
    }
    scores = tf.nn.log_softmax(translator.model(inputs)).numpy()
    scores = np.take_along_axis(scores, ids[..., None], axis=2)[..., 0].sum(axis=1, where=ids != 0)
    lengths = found.lengths[:, 0].numpy()
    assert lengths.min() > 0
    scores = scores / ((5 + lengths) / 6) ** SEARCH.length_penalty
    np.testing.assert_allclose(found.scores[:, 0], scores, rtol=1e-4)
    translations = translator.translate(SENTENCES)
    assert [index for index, best in enumerate(translations) if best.score] == keep
    np.testing.assert_allclose(scores_of(translations)[keep, 0], scores, rtol=1e-4)


@pytest.mark.slow
def test_resumed_run_ends_with_the_same_weights(trained, tmp_path):
    run = tiny_run.copy_of(trained, tmp_path / "run", until_step=10)
    train(run, tiny_run.corpus(), tiny_run.text(16, seed=1), show=False)
    for name in ("step-30", "average"):
        tiny_run.assert_same_checkpoint(trained, run, name)


@pytest.mark.slow
def test_export_answers_as_python_in_a_fresh_process(config, translator, exported):
    # `export` has asked the fresh process; here is what it was compared with.
    has_attention = hasattr(translator.model, "attention")
    expected = SIGNATURES | ({"attention"} if has_attention else set())
    assert set(tf.saved_model.load(str(exported)).signatures) == expected
    loaded, ours = (each.translate(SENTENCES) for each in (load_exported(exported), translator))
    assert texts_of(loaded) == texts_of(ours)
    np.testing.assert_allclose(scores_of(loaded), scores_of(ours), rtol=1e-5, atol=1e-6)
    card = json.loads((exported / "assets.extra" / "model_card.json").read_text())
    assert card["model"]["architecture"] == config.architecture
    assert set(card["signatures"]) == expected


@only_bag
def test_run_of_an_unknown_architecture_is_rejected(created, monkeypatch):
    monkeypatch.setattr(config_module, "_ARCHITECTURES", {"transformer": TransformerConfig})
    with pytest.raises(InputError, match=r"config\.json: architecture must be one of tr.*, got"):
        created.load_model()
