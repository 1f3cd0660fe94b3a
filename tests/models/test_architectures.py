"""What holds of every architecture in every variant, from arithmetic to a server: one table.

A new architecture is a line in `CONFIGS`. The oracles are in tests/oracles.
"""

import functools
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
import recurrent_oracle
import stand_in_server
import tensorflow as tf
import tiny_run
import transformer_oracle
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
from keras_transformer.decoding import NO_SCORE
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator
from keras_transformer.models import Ensemble, build_model
from keras_transformer.objectives import SmoothedCrossEntropy, TokenAccuracy
from keras_transformer.results import Translation
from keras_transformer.search import beam_search, kv_cache_capacities
from keras_transformer.serving.export import export, load_exported
from keras_transformer.training import RunDirectory, train

TESTS = pathlib.Path(__file__).resolve().parents[1]
SIZES = dict(vocabulary_size=tiny_run.make_vocabulary().size, model_dim=8, dropout=0.1)
HEADS = SIZES | dict(num_heads=2, feed_forward_dim=12)
WIDTHS = dict(key_dim=3, value_dim=5)
WINDOWS = dict(encoder_attention_window=3, decoder_attention_window=5, max_relative_distance=2)
SEPARATE = dict(share_embeddings="none", target_vocabulary_size=11, output_bias=True)
CONFIGS = {
    "transformer": TransformerConfig(**HEADS, num_layers=2),
    "transformer, pre": TransformerConfig(
        **HEADS, **SEPARATE, num_layers=2, norm_position="pre", norm_epsilon=1e-5,
        positions="concatenated", first_position=1, attention_bias=True,
    ),
    "transformer, sigma": TransformerConfig(
        **HEADS, **WIDTHS, num_layers=2, share_embeddings="target", target_vocabulary_size=11,
        norm_form="sigma", norm_epsilon=1e-3, positions="learned", max_positions=20,
    ),
    "transformer, toolkits": TransformerConfig(
        **HEADS, num_layers=2, decoder_layers=1, activation="swish", positions="halves",
        embedding_norm=True, scale_embeddings=False, source_eos=False, attention_bias=True,
    ),
    "transformer, rotary": TransformerConfig(
        **HEADS, num_layers=2, positions="rotary", norm_position="pre", norm_form="sigma",
    ),
    "transformer, relative": TransformerConfig(**HEADS, num_layers=1, positions="relative"),
    "transformer, window": TransformerConfig(
        **HEADS, **WIDTHS, **WINDOWS, num_layers=2, positions="relative",
    ),
    "recurrent": RecurrentConfig(**SIZES, hidden_dim=6, attention_dim=5),
    "recurrent, dot": RecurrentConfig(
        **SIZES, **SEPARATE, num_layers=2, hidden_dim=6, attention_type="dot",
        bridge_activation="tanh",
    ),
    "recurrent, temporal": RecurrentConfig(**SIZES, hidden_dim=6, intra_temporal_attention=True),
    "recurrent, all": RecurrentConfig(
        **SIZES, num_layers=2, hidden_dim=12, intra_temporal_attention=True,
        intra_decoder_attention=True, input_feeding=True,
    ),
    "universal": UniversalConfig(**HEADS, num_steps=4),
    "universal, pre": UniversalConfig(
        **HEADS, num_steps=4, norm_position="pre", positions="learned",
    ),
    "universal, fixed": UniversalConfig(
        **HEADS, num_steps=3, adaptive_steps=False, positions="relative"
    ),
    "universal, all": UniversalConfig(
        **HEADS, num_steps=3, halting_output="blend", norm_position="pre", max_position_offset=4,
    ),
    "toy": ToyConfig(**SIZES | dict(model_dim=24)),
}  # fmt: skip
# Of each architecture the one with most weights and the largest state.
VARIANTS = ["transformer, window", "recurrent, all", "universal, all", "toy"]
RUNS = {
    "transformer, window": dict(model_dim=16, feed_forward_dim=24),
    "recurrent, all": dict(model_dim=16),
    "universal, all": dict(model_dim=16, feed_forward_dim=24, num_steps=2),
    "toy": {},
}
STEPS = {"train_steps": 30, "checkpoint_steps": 10, "learning_rate": 0.02}
SEARCH = SearchConfig(beam_size=3, max_source_length=8, max_extra_length=4, num_translations=2)
KILLED_AT_STEP_14 = (
    "import sys, toy_architecture, tiny_run; tiny_run.train_until_killed(sys.argv[1], 14)"
)
PATH = os.pathsep.join(map(str, (TESTS.parent, TESTS / "models", TESTS / "training")))
SENTENCES = ["abc", "fed", "", "aabb", "c"]
# Three sentences with targets, EOS and padding included; the targets start with BOS.
SOURCE = np.array([[4, 9, 5, 7, 3], [8, 3, 0, 0, 0], [6, 6, 8, 3, 0]])
TARGET = np.array([[2, 5, 6, 10, 4, 9], [2, 7, 7, 8, 0, 0], [2, 4, 0, 0, 0, 0]])
INPUTS = {"source": SOURCE, "target": TARGET}
SIGNATURES = {"serving_default", "translate_options", "score", "tokens"}

every_case = pytest.mark.parametrize("name", CONFIGS)
variants = pytest.mark.parametrize("name", VARIANTS)


def random_model(config, dtype=None):
    """Returns a model with random weights, norms and biases included."""
    model, random = build_model(config, dtype=dtype), np.random.default_rng(3)
    model.set_weights([random.normal(scale=0.4, size=w.shape) for w in model.get_weights()])
    return model


@functools.cache
def model_of(name, dtype=None):
    return random_model(CONFIGS[name], dtype)


def logits_of(model, inputs=INPUTS):
    logits = model(inputs)
    return np.asarray(ops.cast(logits, "float64" if logits.dtype == "float64" else "float32"))


def steps_of(model, beams=1, **options):
    """Returns the logits [B, T, V] of the last hypothesis, step by step, and the last state."""
    state = model.encode(SOURCE, num_hypotheses=beams, **options)
    rows = []
    for time in range(TARGET.shape[1]):
        logits, state = model.step(np.repeat(TARGET[:, time : time + 1], beams, axis=1), state)
        rows.append(np.asarray(ops.cast(logits[:, -1], "float32")))
    return np.stack(rows, axis=1), state


def _places(translations):
    """Fills the empty places of n-best lists as an export does."""
    empty = Translation("", NO_SCORE)
    return [[*row, *[empty] * (SEARCH.num_translations - len(row))] for row in translations]


def scores_of(translations):
    return np.array([[each.score for each in row] for row in _places(translations)])


def texts_of(translations):
    return [[each.text for each in row] for row in _places(translations)]


def check_coverage(model, state):
    """Checks that a state after all steps has the sum of attention, if the model has attention."""
    if not hasattr(model, "attention"):
        assert state.coverage is None
        return
    is_hidden = np.asarray(getattr(model, "visible_source", np.array)(SOURCE)) == 0
    expected = np.sum(model.attention(INPUTS), axis=1) + is_hidden
    np.testing.assert_allclose(state.coverage[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_configs_cover_every_architecture():
    assert set(architectures().values()) == {type(config) for config in CONFIGS.values()}


# The model


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "toy"])
def test_logits_and_attention_equal_the_oracle_in_float64(name):
    model = model_of(name, "float64")
    # A halting unit computes in float32, whatever the model does.
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
    if "universal" not in name or "fixed" in name:
        close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-9)
    logits, attention = logits_of(model), np.asarray(model.attention(INPUTS))
    weights = {kind: np.array(each) for kind, each in model.attentions(INPUTS).items()}
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        source, target = source[source != 0], target[target != 0]
        if "recurrent" in name:
            expected, cross = recurrent_oracle.answer(model, source, target)
            close(logits[row, : len(target)], expected)
            np.testing.assert_allclose(
                attention[row, : len(target), : len(source)], cross, atol=1e-6
            )
            continue
        expected = transformer_oracle.answer(model, source, target)
        close(logits[row, : len(target)], expected.logits)
        assert list(weights) == list(expected.heads)
        for kind, heads in expected.heads.items():
            found = weights[kind][:, row]
            real = found[..., : heads.shape[2], : heads.shape[3]]
            np.testing.assert_allclose(real, heads, atol=1e-5)
            np.testing.assert_allclose(real.sum(axis=-1), 1, atol=1e-6)
            real[:] = 0
            assert not found.any()  # of padding
        for side, halting in expected.halting.items():
            values = model.token_values(INPUTS)
            for key, numbers in zip(("steps", "remainders"), halting, strict=True):
                found = np.asarray(values[f"{side}_{key}"])[row]
                np.testing.assert_allclose(found[: len(numbers)], numbers, atol=1e-5)
                assert not found[len(numbers) :].any()


@pytest.mark.parametrize(("beams", "capacity"), [(2, None), (1, 8)], ids=["growing", "fixed"])
@every_case
def test_steps_equal_the_full_pass(name, beams, capacity):
    model = model_of(name)
    stepped, state = steps_of(model, beams, capacity=capacity, coverage=True)
    np.testing.assert_allclose(stepped, logits_of(model), rtol=1e-4, atol=1e-5)
    check_coverage(model, state)


@variants
def test_ensemble_with_a_transformer_steps_as_it_calls(name):
    model = model_of(name)
    both = Ensemble([random_model(CONFIGS["transformer"]), model])
    stepped, state = steps_of(both, 2, coverage=True)
    np.testing.assert_allclose(stepped, both.call(INPUTS), rtol=1e-4, atol=1e-4)
    assert hasattr(both, "attention") == hasattr(model, "attention")
    check_coverage(both, state)


@pytest.mark.parametrize(("policy", "error"), [("bfloat16", 0.06), ("mixed_float16", 0.008)])
@pytest.mark.parametrize("name", [*VARIANTS, "transformer, relative", "universal, fixed"])
def test_half_precision_is_close_to_float32(name, policy, error):
    model, half = model_of(name), model_of(name, policy)
    exact = logits_of(model)
    tolerance = error * exact.std()
    assert 0 < np.abs(logits_of(half) - exact).max() < tolerance
    assert np.abs(steps_of(half)[0] - exact).max() < tolerance
    if hasattr(model, "attention"):
        attention = np.subtract(half.attention(INPUTS), model.attention(INPUTS))
        assert np.abs(attention).max() < error / 4


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("mode", ["int8", "int4"])
@variants
def test_quantized_steps_equal_the_full_pass(name, mode, tmp_path):
    model = random_model(CONFIGS[name].replace(share_embeddings="none", output_bias=True))
    exact = logits_of(model)
    model.quantize(mode)
    full, is_real = logits_of(model), TARGET != 0
    error = np.abs(full - exact)[is_real].max()
    assert 0 < error < {"int8": 0.25, "int4": 1.5}[mode] * exact.std()
    np.testing.assert_allclose(steps_of(model)[0][is_real], full[is_real], rtol=0, atol=1e-5)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        logits_of(keras.saving.load_model(tmp_path / "model.keras")), full
    )


@every_case
def test_padding_and_other_sentences_change_nothing(name):
    model = model_of(name)
    together = logits_of(model)
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        source, target = source[source != 0][None], target[target != 0][None]
        alone = logits_of(model, {"source": source, "target": target})[0]
        np.testing.assert_allclose(together[row, : target.size], alone, rtol=1e-4, atol=1e-5)
    empty = INPUTS | {"source": np.zeros_like(SOURCE)}
    assert np.isfinite(logits_of(model, empty)).all()


@every_case
def test_future_tokens_do_not_change_earlier_logits(name):
    other = TARGET.copy()
    other[:, 2:] = [[9, 9, 1, 1], [4, 0, 0, 0], [7, 5, 5, 5]]
    before, after = (logits_of(model_of(name), INPUTS | {"target": ids}) for ids in (TARGET, other))
    np.testing.assert_allclose(before[:, :2], after[:, :2], atol=1e-6)
    assert np.abs(before[:, 2:] - after[:, 2:]).max() > 1e-4


@variants
def test_keras_metrics_do_not_count_padding(name):
    model = random_model(CONFIGS[name])
    found = np.argmax(logits_of(model), axis=-1)
    labels = np.where(TARGET != 0, np.maximum(found, 1), 0)
    labels[:, 0] = 9
    real, all_tokens = np.mean((found == labels)[labels != 0]), np.mean(found == labels)
    model.compile("sgd", SmoothedCrossEntropy(), metrics=["accuracy", TokenAccuracy(name="tokens")])
    shown = model.evaluate(INPUTS, labels, return_dict=True, verbose=0)
    assert shown["accuracy"] == pytest.approx(shown["tokens"]) == pytest.approx(real)
    assert real != all_tokens


@variants
def test_wide_beam_equals_enumeration(name):
    model = random_model(CONFIGS[name].replace(vocabulary_size=6))
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
@every_case
def test_xla_search_equals_the_graph(name):
    model = model_of(name)

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


@variants
@pytest.mark.parametrize(
    "sharing",
    [
        {},
        {"share_embeddings": "target", "target_vocabulary_size": 11, "output_bias": True},
        {"share_embeddings": "none", "output_bias": True},
    ],
)
def test_extended_model_keeps_logits_and_begins_with_means(name, sharing):
    config = CONFIGS[name].replace(**sharing)
    model = random_model(config)
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


@every_case
def test_keras_file_round_trip(name, tmp_path):
    model = random_model(CONFIGS[name], "mixed_bfloat16")
    model.save(tmp_path / "model.keras")
    copy = keras.saving.load_model(tmp_path / "model.keras")
    assert (type(copy), copy.config, copy.name) == (type(model), model.config, model.name)
    assert copy.dtype_policy.name == "mixed_bfloat16"
    np.testing.assert_array_equal(logits_of(copy), logits_of(model))
    if name != "toy":  # whose `build` is the shortest
        before = list(model.weights)
        model.build({"source": (None, 5), "target": (None, 4)})  # which a built model ignores
        assert all(one is other for one, other in zip(before, model.weights, strict=True))


@every_case
def test_flops_grow_with_both_lengths(name):
    count = model_of(name).count_flops
    counted = [float(count(*lengths)) for lengths in [(4, 4), (8, 4), (4, 8)]]
    assert counted[1] > counted[0] > 0
    assert counted[2] > counted[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "recurrent", "universal, fixed"])
def test_keras_exports_the_model_to_onnx(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, path = model_of(name), str(tmp_path / "model.onnx")
    model.export(path, format="onnx", verbose=False)
    ids = {side: each.astype("int32") for side, each in INPUTS.items()}
    (found,) = onnxruntime.InferenceSession(path).run(None, ids)
    np.testing.assert_allclose(found, logits_of(model), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "universal"])
def test_keras_exports_the_model_to_litert_without_other_operations(name, tmp_path):
    model, path = model_of(name), str(tmp_path / "model.tflite")
    model.export(path, format="litert", verbose=False)
    interpreter = tf.lite.Interpreter(model_path=path)
    run = interpreter.get_signature_runner()  # needs no Flex delegate
    (found,) = run(**{side: each.astype("int32") for side, each in INPUTS.items()}).values()
    np.testing.assert_allclose(found, logits_of(model), rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_translator_uses_the_quantized_weights(mode):
    model, vocabulary = random_model(CONFIGS["transformer"]), tiny_run.make_vocabulary()
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
    return export(translator, tmp_path_factory.mktemp("exports"), batch_sizes=[1, 4])


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


only_toy = pytest.mark.parametrize("config", ["toy"], indirect=True)


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
