"""What holds of every architecture, and of each form of it that works in a way of its own.

A new one gets in by a line in `CONFIGS`.
"""

import itertools
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import native_runtime
import numpy as np
import pytest
import tensorflow as tf
import tiny_run
from keras import ops

from keras_transformer.config import (
    RecurrentConfig,
    SearchConfig,
    TransformerConfig,
    UniversalConfig,
    architectures,
)
from keras_transformer.inference import Translator
from keras_transformer.models import Ensemble, build_model
from keras_transformer.search import beam_search
from keras_transformer.search.beam import kv_cache_capacities
from keras_transformer.serving.export import export, load_exported
from keras_transformer.training import RunDirectory, train

TESTS = pathlib.Path(__file__).resolve().parents[1]
SIZES = dict(vocabulary_size=tiny_run.make_vocabulary().size, model_dim=16, dropout=0.1)
HEADS = SIZES | dict(num_heads=2, feed_forward_dim=24)
CONFIGS = {
    "transformer": TransformerConfig(**HEADS, num_layers=1),
    "transformer, window": TransformerConfig(
        **HEADS,
        num_layers=2,
        encoder_attention_window=3,
        decoder_attention_window=3,
        positions="relative",
    ),
    "recurrent": RecurrentConfig(**SIZES, hidden_dim=24),
    "recurrent, all": RecurrentConfig(
        **SIZES,
        num_layers=2,
        hidden_dim=12,
        attention_type="dot",
        intra_temporal_attention=True,
        intra_decoder_attention=True,
        input_feeding=True,
    ),
    "universal": UniversalConfig(**HEADS, num_steps=3),
    "universal, fixed": UniversalConfig(**HEADS, num_steps=2, adaptive_steps=False),
    "universal, all": UniversalConfig(
        **HEADS,
        num_steps=2,
        halting_output="blend",
        halted_tokens="run_on",
        step_signals="learned",
        transition="separable_convolution",
        norm_position="pre",
        max_position_offset=4,
    ),
}
STEPS = {"train_steps": 30, "checkpoint_steps": 10, "learning_rate": 0.02}
SEARCH = SearchConfig(beam_size=3, max_source_length=8, max_extra_length=4, num_translations=2)
SENTENCES = ["abc", "fed", "", "aabb", "c"]
SOURCE = np.array([[5, 6, 7, 3], [8, 3, 0, 0], [4, 4, 3, 0]])
TARGET = np.array([[2, 9, 4, 6], [2, 5, 5, 0], [2, 4, 0, 0]])
INPUTS = {"source": SOURCE, "target": TARGET}
SIGNATURES = {"serving_default", "translate_options", "score", "tokens", "attention"}


def with_random_weights(config, dtype=None):
    model, random = build_model(config, dtype=dtype), np.random.default_rng(3)
    model.set_weights([random.normal(scale=0.4, size=w.shape) for w in model.get_weights()])
    return model


def logits_of(model, inputs=INPUTS):
    return np.asarray(ops.cast(model(inputs), "float32"))


def contents(run: RunDirectory, checkpoint: str) -> dict[str, np.ndarray]:
    """Gives all that a checkpoint holds, by name."""
    stored = tf.train.load_checkpoint(str(run.path / "checkpoints" / checkpoint))
    names = set(stored.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    return {name: stored.get_tensor(name) for name in names}


def scores_of(translations):
    return np.array([[each.score for each in row] for row in translations])


def texts_of(translations):
    return [[each.text for each in row] for row in translations]


@pytest.fixture(scope="module", params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


@pytest.fixture(scope="module")
def model(config):
    return with_random_weights(config)


@pytest.fixture(scope="module")
def created(config, tmp_path_factory) -> RunDirectory:
    """A run that nothing has trained."""
    run, vocabulary = RunDirectory(tmp_path_factory.mktemp("run")), tiny_run.make_vocabulary()
    training = tiny_run.training_config(**STEPS)
    configs = tiny_run.RunConfigs(config, tiny_run.DATA, training)
    run.create(configs, vocabulary, vocabulary)
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
    return export(translator, tmp_path_factory.mktemp("exports"), batch_sizes=[1, 4])


def test_every_architecture_is_here():
    package = {each for each in architectures().values() if "keras_transformer" in each.__module__}
    assert package == {type(config) for config in CONFIGS.values()}


# The model


def test_steps_equal_the_full_pass_and_coverage_is_the_sum_of_attention(model):
    full = logits_of(model)
    state = model.encode(SOURCE, num_hypotheses=2, coverage=True)
    for time in range(TARGET.shape[1]):
        logits, state = model.step(np.repeat(TARGET[:, time : time + 1], 2, axis=1), state)
        np.testing.assert_allclose(logits[:, 1], full[:, time], rtol=1e-4, atol=1e-5)
    expected = np.sum(model.attention(INPUTS), axis=1) + (SOURCE == 0)
    np.testing.assert_allclose(state.coverage[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_sentence_alone_gives_what_it_gives_in_a_batch(model):
    together = logits_of(model)
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        source, target = source[source != 0][None], target[target != 0][None]
        alone = logits_of(model, {"source": source, "target": target})[0]
        np.testing.assert_allclose(together[row, : target.size], alone, rtol=1e-4, atol=1e-5)


def test_a_beam_of_all_hypotheses_finds_what_enumeration_finds(config):
    model = with_random_weights(config.replace(vocabulary_size=6))
    sentences = np.array([[4, 5, 3], [5, 3, 0]])
    # Up to three tokens other than padding (0) and BOS (2), then EOS (3).
    tokens = (1, 4, 5)
    found = [each for n in range(4) for each in itertools.product(tokens, repeat=n)]
    rows = np.array([[2, *each, 3, *[0] * (3 - len(each))] for each in found])  # [40, 5]
    best = tf.function(beam_search, autograph=False)(
        model.step,
        model.encode(sentences, num_hypotheses=40),
        bos_ids=tf.constant([2, 2]),
        max_lengths=tf.constant([3, 3]),
        beam_size=40,
        num_translations=5,
    )
    lengths = (rows[:, 1:] != 0).sum(axis=1)
    for index, sentence in enumerate(sentences):
        inputs = {"source": np.repeat(sentence[None], 40, axis=0), "target": rows[:, :-1]}
        log_probs = np.asarray(ops.log_softmax(logits_of(model, inputs)))
        picked = np.take_along_axis(log_probs, rows[:, 1:, None], axis=2)[..., 0]
        scores = (picked * (rows[:, 1:] != 0)).sum(axis=1) / ((5 + lengths) / 6) ** 0.6
        order = np.argsort(-scores)[:5]
        np.testing.assert_allclose(best.scores[index], scores[order], rtol=1e-4)
        np.testing.assert_array_equal(best.ids[index], rows[order, 1:])


@pytest.mark.slow
def test_xla_finds_what_the_graph_finds(model):
    def search(source):
        capacity = kv_cache_capacities(5)[0]
        found = beam_search(
            model.step,
            model.encode(source, num_hypotheses=3, capacity=capacity),
            bos_ids=tf.fill([3], 2),
            max_lengths=tf.constant([5, 3, 4]),
            beam_size=3,
            max_length_bound=5,
        )
        return found.ids, found.scores

    plain, compiled = (
        tf.function(search, jit_compile=xla, autograph=False)(tf.constant(SOURCE))
        for xla in (False, True)
    )
    np.testing.assert_array_equal(compiled[0], plain[0])
    np.testing.assert_allclose(compiled[1], plain[1], rtol=1e-6)


def test_mixed_precision_hardly_changes_probabilities(model, config):
    half = with_random_weights(config, "mixed_bfloat16")
    exact, rounded = (np.asarray(ops.softmax(logits_of(each))) for each in (model, half))
    assert 0 < np.abs(exact - rounded).max() < 0.1


RELATIVE = {  # without a window, whose blocks add up otherwise
    "relative": TransformerConfig(**HEADS, num_layers=1, positions="relative"),
    "universal, relative": UniversalConfig(**HEADS, num_steps=2, positions="relative"),
}


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_float16"])
@pytest.mark.parametrize("name", [*CONFIGS, *RELATIVE])
def test_half_precision_attends_and_steps_as_float32_nearly(name, policy):
    config = (CONFIGS | RELATIVE)[name]
    model, half = with_random_weights(config), with_random_weights(config, policy)
    assert np.abs(np.subtract(half.attention(INPUTS), model.attention(INPUTS))).max() < 0.1
    state = half.encode(SOURCE)
    for time in range(TARGET.shape[1]):
        logits, state = half.step(TARGET[:, time : time + 1], state)
    exact = np.asarray(ops.softmax(logits_of(model)[:, -1]))
    rounded = np.asarray(ops.softmax(ops.cast(logits[:, 0], "float32")))
    assert 0 < np.abs(exact - rounded)[0].max() < 0.1


def test_keras_saves_and_loads_it(model, tmp_path):
    model.save(tmp_path / "model.keras")
    copy = keras.saving.load_model(tmp_path / "model.keras")
    assert (type(copy), copy.config) == (type(model), model.config)
    np.testing.assert_array_equal(logits_of(copy), logits_of(model))


def test_beside_a_transformer_in_an_ensemble_it_keeps_attention_and_coverage(model):
    other = with_random_weights(CONFIGS["transformer"])
    both = Ensemble([other, model])
    full, attention = both.call(INPUTS), both.attention(INPUTS)
    state = both.encode(SOURCE, num_hypotheses=2, coverage=True)
    for time in range(TARGET.shape[1]):
        logits, state = both.step(np.repeat(TARGET[:, time : time + 1], 2, axis=1), state)
        np.testing.assert_allclose(logits[:, 1], full[:, time], rtol=1e-4, atol=1e-4)
    expected = np.sum(attention, axis=1) + (SOURCE == 0)
    np.testing.assert_allclose(state.coverage[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_its_operations_grow_with_both_lengths(model):
    counted = [float(model.count_flops(*lengths)) for lengths in [(4, 4), (8, 4), (4, 8)]]
    assert counted[1] > counted[0] > 0
    assert counted[2] > counted[0]


# A run and its export


@pytest.mark.slow
def test_it_learns_and_translates_by_steps_as_it_scores_in_one_pass(trained, translator):
    rows = [line for line in trained.metrics_path.read_text().splitlines() if '"loss"' in line]
    losses = [float(line.split('"loss": ')[1].split(",")[0]) for line in rows]
    assert losses[-1] < losses[0] - 0.1
    found = translator.translate(SENTENCES)
    one_pass = translator.score(SENTENCES, [row[0].text for row in found])
    lengths = np.array([len(each.token_scores) for each in one_pass])
    scores = np.array([each.score for each in one_pass])
    scores = scores / ((5 + lengths) / 6) ** SEARCH.length_penalty
    keep = [index for index, sentence in enumerate(SENTENCES) if sentence]
    assert [index for index, row in enumerate(found) if row[0].text.strip()] == keep
    np.testing.assert_allclose(scores_of(found)[keep, 0], scores[keep], rtol=1e-4)


@pytest.mark.slow
def test_no_sentences_have_no_translations(translator):
    assert translator(tf.constant([], tf.string))["translations"].shape == (0, 2)
    found = translator.signature("tokens")(source=tf.zeros([0, 3], tf.int32))
    assert found["scores"].shape == (0, 2)


@pytest.mark.slow
def test_killed_it_resumes_and_ends_with_the_same_weights(created, trained, tmp_path):
    run = RunDirectory(shutil.copytree(created.path, tmp_path / "run"))
    killed = subprocess.run(
        [sys.executable, TESTS / "training" / "tiny_run.py", run.path, "14"],
        env=os.environ | {"PYTHONPATH": str(TESTS.parent)},
        check=False,
    )
    assert killed.returncode == -9
    assert run.checkpoints().steps() == [10]
    train(run, tiny_run.corpus(), tiny_run.text(16, seed=1), show=False)
    for name in ("step-30", "average"):
        expected, found = contents(trained, name), contents(run, name)
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=f"{name}: {key}")


@pytest.mark.slow
def test_a_fresh_process_gives_the_same_answers_to_all_signatures(translator, exported):
    # `export` has asked the fresh process; here is what it was compared with.
    assert set(tf.saved_model.load(str(exported)).signatures) == SIGNATURES
    loaded, ours = (each.translate(SENTENCES) for each in (load_exported(exported), translator))
    assert texts_of(loaded) == texts_of(ours)
    np.testing.assert_allclose(scores_of(loaded), scores_of(ours), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(native_runtime.missing() is not None, reason=str(native_runtime.missing()))
def test_a_c_program_serves_it_without_python(translator, exported, tmp_path):
    program = native_runtime.build("answer", tmp_path)
    signature = native_runtime.read_signature(exported)
    rows = [[sentence.encode()] for sentence in SENTENCES]
    found = native_runtime.answer(program, signature, rows, [2, 3])
    ours = translator.translate(SENTENCES)
    assert [[text.decode() for text in row] for row in found["translations"]] == texts_of(ours)
    np.testing.assert_allclose(np.array(found["scores"], np.float32), scores_of(ours), atol=1e-4)
