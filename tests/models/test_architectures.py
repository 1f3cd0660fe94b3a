"""What holds of every architecture, and of one that only the tests define, from model to server.

A new one is a line in `CONFIGS`.
"""

import itertools
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
from keras import ops
from toy_architecture import Toy, ToyConfig

from keras_transformer import Client
from keras_transformer.config import (
    BOS_ID,
    EOS_ID,
    ModelConfig,
    RecurrentConfig,
    SearchConfig,
    TransformerConfig,
    UniversalConfig,
    architectures,
)
from keras_transformer.config import (
    model as config_module,
)
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator
from keras_transformer.models import Ensemble, build_model
from keras_transformer.search import beam_search, kv_cache_capacities
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
        norm_position="pre",
        max_position_offset=4,
    ),
    "toy": ToyConfig(**SIZES | dict(model_dim=24)),
}
# Of each architecture the one with most weights and the largest state.
VARIANT_NAMES = ["transformer, window", "recurrent, all", "universal, all", "toy"]
VARIANTS = [CONFIGS[name] for name in VARIANT_NAMES]
STEPS = {"train_steps": 30, "checkpoint_steps": 10, "learning_rate": 0.02}
SEARCH = SearchConfig(beam_size=3, max_source_length=8, max_extra_length=4, num_translations=2)
KILLED_AT_STEP_14 = (
    "import sys, toy_architecture, tiny_run; tiny_run.train_until_killed(sys.argv[1], 14)"
)
PATH = os.pathsep.join(map(str, (TESTS.parent, TESTS / "models", TESTS / "training")))
SENTENCES = ["abc", "fed", "", "aabb", "c"]
SOURCE = np.array([[5, 6, 7, 3], [8, 3, 0, 0], [4, 4, 3, 0]])
TARGET = np.array([[2, 9, 4, 6], [2, 5, 5, 0], [2, 4, 0, 0]])
INPUTS = {"source": SOURCE, "target": TARGET}
SIGNATURES = {"serving_default", "translate_options", "score", "tokens"}


def with_random_weights(config, dtype=None):
    model, random = build_model(config, dtype=dtype), np.random.default_rng(3)
    model.set_weights([random.normal(scale=0.4, size=w.shape) for w in model.get_weights()])
    return model


def logits_of(model, inputs=INPUTS):
    return np.asarray(ops.cast(model(inputs), "float32"))


def scores_of(translations):
    return np.array([[each.score for each in row] for row in translations])


def texts_of(translations):
    return [[each.text for each in row] for row in translations]


def check_coverage(model, state):
    """Checks that a state after all steps has the sum of attention, if the model has attention."""
    if not hasattr(model, "attention"):
        assert state.coverage is None
        return
    expected = np.sum(model.attention(INPUTS), axis=1) + (SOURCE == 0)
    np.testing.assert_allclose(state.coverage[:, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS.keys())
def config(request):
    return request.param


@pytest.fixture(scope="module")
def model(config):
    return with_random_weights(config)


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
    return export(translator, tmp_path_factory.mktemp("exports"), batch_sizes=[1, 4])


def test_configs_cover_every_architecture():
    assert set(architectures().values()) == {type(config) for config in CONFIGS.values()}


# The model


def test_steps_equal_the_full_pass(model):
    full = logits_of(model)
    state = model.encode(SOURCE, num_hypotheses=2, coverage=True)
    for time in range(TARGET.shape[1]):
        logits, state = model.step(np.repeat(TARGET[:, time : time + 1], 2, axis=1), state)
        np.testing.assert_allclose(logits[:, 1], full[:, time], rtol=1e-4, atol=1e-5)
    check_coverage(model, state)


def test_padding_and_other_sentences_change_nothing(model):
    together = logits_of(model)
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        source, target = source[source != 0][None], target[target != 0][None]
        alone = logits_of(model, {"source": source, "target": target})[0]
        np.testing.assert_allclose(together[row, : target.size], alone, rtol=1e-4, atol=1e-5)


def test_future_tokens_do_not_change_earlier_logits(model):
    other = TARGET.copy()
    other[:, 2:] = [[9, 9], [4, 0], [7, 5]]
    before, after = (logits_of(model, INPUTS | {"target": ids}) for ids in (TARGET, other))
    np.testing.assert_allclose(before[:, :2], after[:, :2], atol=1e-6)
    assert np.abs(before[:, 2:] - after[:, 2:]).max() > 1e-4


@pytest.mark.parametrize("config", VARIANTS, indirect=True, ids=VARIANT_NAMES)
def test_wide_beam_equals_enumeration(config):
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
def test_xla_search_equals_the_graph(model):
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


RELATIVE = {  # without a window, whose blocks add up otherwise
    "relative": TransformerConfig(**HEADS, num_layers=1, positions="relative"),
    "universal, relative": UniversalConfig(**HEADS, num_steps=2, positions="relative"),
}


@pytest.mark.parametrize(("policy", "error"), [("bfloat16", 0.05), ("mixed_float16", 0.008)])
@pytest.mark.parametrize("name", [*CONFIGS, *RELATIVE])
def test_half_precision_is_close_to_float32(name, policy, error):
    config = (CONFIGS | RELATIVE)[name]
    model, half = with_random_weights(config), with_random_weights(config, policy)
    exact = logits_of(model)
    tolerance = error * exact.std()
    assert 0 < np.abs(logits_of(half) - exact).max() < tolerance
    if hasattr(model, "attention"):
        attention = np.subtract(half.attention(INPUTS), model.attention(INPUTS))
        assert np.abs(attention).max() < error / 8
    state = half.encode(SOURCE)
    for time in range(TARGET.shape[1]):
        logits, state = half.step(TARGET[:, time : time + 1], state)
        stepped = ops.cast(logits[:, 0], "float32")
        assert np.abs(stepped - exact[:, time]).max() < tolerance


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_quantized_steps_equal_the_full_pass(config, mode):
    model = with_random_weights(config.replace(share_embeddings="none", output_bias=True))
    exact = logits_of(model)
    model.quantize(mode)
    full = logits_of(model)
    error = np.abs(full - exact)[TARGET != 0].max()
    assert 0 < error < {"int8": 0.2, "int4": 1.0}[mode] * exact.std()
    state = model.encode(SOURCE)
    for time in range(TARGET.shape[1]):
        logits, state = model.step(TARGET[:, time : time + 1], state)
        is_real = TARGET[:, time] != 0
        found = np.asarray(logits)[is_real, 0]
        np.testing.assert_allclose(found, full[is_real, time], rtol=0, atol=1e-5)
    some = state._replace(projection=(state.projection[0][4:7],))
    np.testing.assert_array_equal(
        model.step(TARGET[:, :1], some)[0], model.step(TARGET[:, :1], state)[0][..., 4:7]
    )


def test_keras_file_round_trip(model, tmp_path):
    model.save(tmp_path / "model.keras")
    copy = keras.saving.load_model(tmp_path / "model.keras")
    assert (type(copy), copy.config) == (type(model), model.config)
    np.testing.assert_array_equal(logits_of(copy), logits_of(model))


@pytest.mark.parametrize("config", VARIANTS, indirect=True, ids=VARIANT_NAMES)
@pytest.mark.parametrize(
    "sharing",
    [
        {},
        {"share_embeddings": "target", "target_vocabulary_size": 10, "output_bias": True},
        {"share_embeddings": "none", "output_bias": True},
    ],
)
def test_extended_model_keeps_logits_and_begins_with_means(config, sharing):
    config = config.replace(**sharing)
    model = with_random_weights(config)
    model.source_embedding.trainable = False
    source, target = [[5], [6, 7, 7]], [[4, 9], [5, 5, 8], [6]]
    extended = model.extended(source, target)
    sizes = config.target_vocabulary_size
    assert extended.config.vocabulary_size == config.vocabulary_size + 2
    assert extended.config.target_vocabulary_size == (sizes and sizes + 3)
    grown = 0
    for old, new in zip(model.weights, extended.weights, strict=True):
        paths = [each.path.partition("/")[2] for each in (old, new)]
        assert (paths[0], old.trainable) == (paths[1], new.trainable)
        old_rows, new_rows = np.array(old), np.array(new)
        if old_rows.shape == new_rows.shape:
            np.testing.assert_array_equal(new_rows, old_rows)
            continue
        grown += 1
        if "projection" in paths[0]:
            old_rows, new_rows = old_rows.T, new_rows.T
        np.testing.assert_array_equal(new_rows[: len(old_rows)], old_rows)
        spelled = source if "source" in paths[0] or sizes is None else target
        for row, ids in zip(new_rows[len(old_rows) :], spelled, strict=True):
            np.testing.assert_allclose(row, sum(old_rows[id_] for id_ in ids) / len(ids), rtol=1e-5)
    assert grown == {"all": 1, "target": 3, "none": 4}[config.share_embeddings]
    logits, more = logits_of(model), logits_of(extended)
    np.testing.assert_array_equal(more[..., : logits.shape[-1]], logits)


def test_adapted_model_cannot_get_more_tokens():
    model = build_model(CONFIGS["transformer"])
    model.enable_lora(2)
    with pytest.raises(InputError, match="with LoRA matrices or quantized layers cannot get more"):
        model.extended([[5]], [[5]])


def test_ensemble_with_a_transformer_steps_as_it_calls(model):
    both = Ensemble([with_random_weights(CONFIGS["transformer"]), model])
    full = both.call(INPUTS)
    state = both.encode(SOURCE, num_hypotheses=2, coverage=True)
    for time in range(TARGET.shape[1]):
        logits, state = both.step(np.repeat(TARGET[:, time : time + 1], 2, axis=1), state)
        np.testing.assert_allclose(logits[:, 1], full[:, time], rtol=1e-4, atol=1e-4)
    assert hasattr(both, "attention") == hasattr(model, "attention")
    check_coverage(both, state)


def test_flops_grow_with_both_lengths(model):
    counted = [float(model.count_flops(*lengths)) for lengths in [(4, 4), (8, 4), (4, 8)]]
    assert counted[1] > counted[0] > 0
    assert counted[2] > counted[0]


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_translator_uses_the_quantized_weights(mode):
    model, vocabulary = with_random_weights(CONFIGS["transformer"]), tiny_run.make_vocabulary()
    full_precision = Translator(model, vocabulary, vocabulary, SEARCH)(tf.constant(["abc"]))
    model.quantize(mode)
    translator = Translator(model, vocabulary, vocabulary, SEARCH)
    (source,) = vocabulary.encode(["abc"])
    found = translator.functions.function("tokens")(tf.constant([" ".join(map(str, source))]))
    ids = found["ids"][:, 0, : int(found["lengths"][0, 0])].numpy()
    inputs = {
        "source": np.array([[*source, EOS_ID]]),
        "target": np.pad(ids[:, :-1], [(0, 0), (1, 0)], constant_values=BOS_ID),
    }
    scores = tf.nn.log_softmax(logits_of(model, inputs)).numpy()
    score = np.take_along_axis(scores, ids[..., None], axis=2).sum()
    score /= ((5 + ids.shape[1]) / 6) ** SEARCH.length_penalty
    np.testing.assert_allclose(found["scores"][0, 0], score, rtol=1e-4)
    assert not np.array_equal(found["scores"], full_precision["scores"])


# A run and its export


@pytest.mark.slow
def test_trained_model_translates_by_steps_as_it_scores(trained, translator):
    rows = [json.loads(line) for line in trained.metrics_path.read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0] - 0.1
    assert [row["step"] for row in rows if "bleu" in row] == [10, 20, 30]
    keep = [index for index, sentence in enumerate(SENTENCES) if sentence]
    source = translator.source_tokenizer.vocabulary.encode([SENTENCES[index] for index in keep])
    found = translator.functions.function("tokens")(
        tf.constant([" ".join(map(str, row)) for row in source])
    )
    ids = found["ids"][:, 0].numpy()  # [B, L], with EOS, then PAD
    inputs = {
        "source": tf.ragged.constant([[*row, EOS_ID] for row in source]).to_tensor(),
        "target": np.pad(ids[:, :-1], [(0, 0), (1, 0)], constant_values=BOS_ID),
    }
    scores = tf.nn.log_softmax(translator.model(inputs)).numpy()
    scores = np.take_along_axis(scores, ids[..., None], axis=2)[..., 0].sum(axis=1, where=ids != 0)
    lengths = found["lengths"][:, 0].numpy()
    assert lengths.min() > 0
    scores = scores / ((5 + lengths) / 6) ** SEARCH.length_penalty
    np.testing.assert_allclose(found["scores"][:, 0], scores, rtol=1e-4)
    translations = translator.translate(SENTENCES)
    assert [index for index, row in enumerate(translations) if row[0].score] == keep
    np.testing.assert_allclose(scores_of(translations)[keep, 0], scores, rtol=1e-4)


@pytest.mark.slow
def test_average_is_the_mean_of_the_last_checkpoints(trained):
    averaged, *last = (
        tiny_run.contents(trained, name) for name in ("average", "step-20", "step-30")
    )
    names = [name for name in averaged if name.startswith("weights/")]
    assert len(names) == len(trained.load_model().weights)
    for name in names:
        mean = (last[0][name].astype(np.float64) + last[1][name]) / 2
        np.testing.assert_array_equal(averaged[name], mean.astype(np.float32))


@pytest.mark.slow
def test_empty_batch_has_no_translations(translator):
    assert translator(tf.constant([], tf.string))["translations"].shape == (0, 2)
    found = translator.functions.function("tokens")(source=tf.constant([], tf.string))
    assert found["scores"].shape == (0, 2)


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_weights(created, trained, tmp_path):
    run = RunDirectory(shutil.copytree(created.path, tmp_path / "run"))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_AT_STEP_14, run.path],
        env=os.environ | {"PYTHONPATH": PATH},
        check=False,
    )
    assert killed.returncode == -9
    assert run.checkpoints().steps() == [10]
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


@pytest.mark.slow
@pytest.mark.skipif(native_runtime.missing() is not None, reason=str(native_runtime.missing()))
def test_c_program_serves_the_export(translator, exported, tmp_path):
    program = native_runtime.build("answer", tmp_path)
    signature = native_runtime.read_signature(exported)
    rows = [[sentence.encode()] for sentence in SENTENCES]
    found = native_runtime.answer(program, signature, rows, [2, 3])
    ours = translator.translate(SENTENCES)
    assert [[text.decode() for text in row] for row in found["translations"]] == texts_of(ours)
    np.testing.assert_allclose(np.array(found["scores"], np.float32), scores_of(ours), atol=1e-4)


# What only an architecture without attention, or of a user, shows


only_toy = pytest.mark.parametrize("config", [CONFIGS["toy"]], indirect=True, ids=["toy"])


@pytest.mark.slow
@only_toy
def test_client_gets_the_translations_of_a_server(translator, exported):
    served = fake_server.Model({}, lambda signature, inputs: {}, "toy")
    served.versions, served.states = {}, {}
    stand_in_server.load(served, 1, exported)
    expected = translator.translate(SENTENCES)
    with fake_server.serve_grpc(served) as address, Client(address, model="toy") as client:
        found = client.translate(SENTENCES)
    assert texts_of(found) == texts_of(expected)
    np.testing.assert_allclose(scores_of(found), scores_of(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@only_toy
def test_without_attention_no_alignment_and_no_coverage_penalty(translator, exported):
    with pytest.raises(InputError, match="the model has no signature 'attention'"):
        translator.align(["abc"], ["cba"])
    penalized = load_exported(exported).translate(SENTENCES, coverage_penalty=5.0)
    assert texts_of(penalized) == texts_of(translator.translate(SENTENCES))


@only_toy
def test_run_of_an_unknown_architecture_is_rejected(created, monkeypatch):
    monkeypatch.setattr(config_module, "_ARCHITECTURES", {"transformer": TransformerConfig})
    with pytest.raises(InputError) as caught:
        created.load_model()
    assert str(caught.value).endswith(
        "config.json: architecture must be one of transformer, got 'toy'; import the module that "
        "registers it first (commands: --user_module)"
    )
    with pytest.raises(InputError, match="no model is registered for OtherConfig"):
        build_model(type("OtherConfig", (ToyConfig,), {})(vocabulary_size=10))
    assert ModelConfig.presets().keys() == TransformerConfig.PRESETS.keys()


def test_flops_of_the_toy_are_counted_by_hand():
    toy = Toy(CONFIGS["toy"])
    assert toy.count_flops(4, 4) == 12 * 24**2 * 8 + 2 * 4 * 24 * toy.config.target_size
