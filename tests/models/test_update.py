"""The update that a batch makes, on one device; test_devices.py has several."""

import contextlib
import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import TransformerConfig, UniversalConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer, build_model
from keras_transformer.models.fused_adam import FusedAdam
from keras_transformer.objectives import Perplexity, SmoothedCrossEntropy, TokenAccuracy

SIZES = dict(vocabulary_size=11, model_dim=8, feed_forward_dim=16, num_heads=2, dropout=0.0)
CONFIG = TransformerConfig(**SIZES, num_layers=1)
LABELS = np.array([[5, 6, 7, 8, 9, 3], [4, 3, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0]])
INPUTS = {"source": LABELS, "target": np.pad(LABELS[:, :-1], ((0, 0), (1, 0)), constant_values=2)}


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(CONFIG)


def test_loss_counts_real_tokens_once_for_any_batch_size(model):
    logits = np.asarray(model(INPUTS), "float64")
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    own = np.take_along_axis(log_probs, LABELS[..., None], axis=-1)[..., 0]
    expected = -own[LABELS != 0].mean()
    model.compile(loss=SmoothedCrossEntropy(0.0), metrics=[TokenAccuracy()], run_eagerly=True)
    right = (logits.argmax(axis=-1) == LABELS)[LABELS != 0].mean()
    for batch_size in (1, 2, 3):
        loss, accuracy = model.evaluate(INPUTS, LABELS, batch_size=batch_size, verbose=0)
        assert loss == pytest.approx(expected, rel=1e-5)
        assert accuracy == pytest.approx(right)


def test_metrics_of_keras_skip_padding(model):
    found = np.argmax(model(INPUTS), axis=-1)
    labels = np.where(LABELS != 0, np.maximum(found, 1), 0)
    labels[:, 0] = 9
    real, all_tokens = np.mean((found == labels)[labels != 0]), np.mean(found == labels)
    metrics = ["accuracy", TokenAccuracy("ours")]
    model.compile("sgd", SmoothedCrossEntropy(), metrics=metrics, run_eagerly=True)
    for run in (model.test_on_batch, model.train_on_batch):
        shown = run(INPUTS, labels, return_dict=True)
        assert shown["accuracy"] == pytest.approx(shown["ours"]) == pytest.approx(real)
    assert real != all_tokens


def test_update_is_the_mean_gradient_of_real_tokens(model):
    start = model.get_weights()
    model.compile(keras.optimizers.SGD(1.0), SmoothedCrossEntropy(0.0), run_eagerly=True)
    model.train_on_batch(INPUTS, LABELS)
    after_all = model.get_weights()
    steps = []
    for row in range(3):  # each sentence alone, without its padding
        model.set_weights(start)
        real = LABELS[row : row + 1, : (LABELS[row] != 0).sum()]
        target = np.pad(real[:, :-1], ((0, 0), (1, 0)), constant_values=2)
        model.train_on_batch({"source": LABELS[row : row + 1], "target": target}, real)
        steps.append([new - old for new, old in zip(model.get_weights(), start, strict=True)])
    # 6, 2 and 1 tokens of 9
    for new, old, a, b, c in zip(after_all, start, *steps, strict=True):
        np.testing.assert_allclose(new - old, (6 * a + 2 * b + c) / 9, atol=1e-5)


def changes_of(model, loss=None, loss_scale_factor=None, sample_weight=None, **options):
    """Returns the changes that one step of SGD at rate 1 makes, as one vector."""
    start = model.get_weights()
    optimizer = keras.optimizers.SGD(1.0, loss_scale_factor=loss_scale_factor)
    model.compile(optimizer, loss or SmoothedCrossEntropy(), run_eagerly=True, **options)
    model.train_on_batch(INPUTS, LABELS, sample_weight)
    changes = [new - old for new, old in zip(model.get_weights(), start, strict=True)]
    model.set_weights(start)
    return np.concatenate([change.ravel() for change in changes])


class Halved(SmoothedCrossEntropy):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return super().__call__(y_true, y_pred, sample_weight) / 2


class HalvedModel(Transformer):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) / 2


def test_overrides_of_the_loss_are_followed(model):
    halved = HalvedModel(CONFIG)
    halved.set_weights(model.get_weights())
    expected = changes_of(model) / 2
    for found in (changes_of(halved), changes_of(model, Halved()), changes_of(model, [Halved()])):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_weights_of_rows_are_not_those_of_tokens_for_a_loss_of_keras(model):
    keras_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    found, expected = (
        changes_of(model, loss, sample_weight=np.array([1.0, 2.0, 0.0]))
        for loss in (keras_loss, SmoothedCrossEntropy(0.0))
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


# Three sentences of 6, 2 and 1 tokens: a mean of the parts' means would differ.
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("share", [None, 0.25, 4.0])
def test_parts_and_clipping_scale_the_update_of_the_whole_batch(model, parts, share):
    whole = changes_of(model)
    norm = float(np.linalg.norm(whole))
    changes = changes_of(model, accumulation_steps=parts, clip_norm=share and share * norm)
    np.testing.assert_allclose(changes, min(share or 1, 1) * whole, atol=1e-6)


def test_clipping_leaves_out_the_scale_of_the_loss(model):
    scaled = changes_of(model, loss_scale_factor=1024.0, clip_norm=0.1)
    assert np.linalg.norm(scaled) == pytest.approx(0.1, rel=1e-4)
    half = Transformer(CONFIG, dtype="mixed_float16")  # whose scale is dynamic
    assert np.linalg.norm(changes_of(half, clip_norm=0.1)) == pytest.approx(0.1, rel=0.01)


def test_labels_must_be_as_long_as_the_target(model):
    model.compile("sgd", SmoothedCrossEntropy())
    for length in (4, 5):  # after which the graph takes any length
        model.fit({name: ids[:, :length] for name, ids in INPUTS.items()}, LABELS[:, :length])
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be as long as the targ"):
        model.fit(INPUTS, LABELS[:, :-1], verbose=0)


@pytest.mark.parametrize("how", [{"run_eagerly": True}, {}, {"jit_compile": True}], ids=str)
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("source", {9: 11}, "source must be ids of a vocabulary of 11, padded with 0"),
        ("target", {9: -1}, "target must be ids of a vocabulary"),
        ("labels", {9: -100}, "labels must be ids of a vocabulary"),
        ("source", {9: 5.5}, "source must be whole numbers"),
        ("source", {6: 0}, "source has padding, 0, before a token"),
        ("labels", {6: 0}, "labels has padding, 0, before a token"),
        ("labels", {6: 2}, "labels have BOS, 2"),
        ("target", {2: 5}, "rows of target must begin with BOS, 2"),
    ],
)
def test_ids_in_the_wrong_layout_are_rejected(model, how, name, change, message):
    batch = {**INPUTS, "labels": LABELS}
    ((old, new),) = change.items()
    batch[name] = np.where(batch[name] == old, new, batch[name])
    labels = batch.pop("labels")
    # Nothing but the check is traced, and XLA compiles nothing.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transformer, "_update", lambda model, data: {"loss": tf.constant(0.0)})
        patch.setattr(Transformer, "_loss_and_metrics", lambda *arguments, **options: None)
        model.compile("sgd", SmoothedCrossEntropy(), **how)
        for run in (model.train_on_batch, model.test_on_batch):
            with pytest.raises((InputError, tf.errors.InvalidArgumentError), match=message):
                run(batch, labels)


def test_rows_longer_than_learned_positions_are_rejected():
    model = Transformer(CONFIG.replace(positions="learned", max_positions=5))
    model.compile("sgd", SmoothedCrossEntropy(), run_eagerly=True)
    with pytest.raises(InputError, match="source has a row of more tokens than"):
        model.fit(INPUTS, LABELS, verbose=0)
    fitting = {name: ids[1:] for name, ids in INPUTS.items()}  # of two tokens, padded to six
    model.fit(fitting, LABELS[1:], verbose=0)


class WithUnusedLayer(Transformer):
    """Has a layer that the loss does not reach."""

    def build(self, input_shape=None):
        super().build(input_shape)
        self.unused = keras.layers.Dense(3)
        self.unused.build((None, 8))


@pytest.mark.parametrize("options", [{}, {"accumulation_steps": 2, "clip_norm": 1.0}], ids=str)
def test_weights_without_gradient_are_reported_and_not_decayed(options):
    model = WithUnusedLayer(CONFIG)
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    model.compile(optimizer, SmoothedCrossEntropy(), run_eagerly=True, **options)
    before = model.unused.kernel.numpy()
    table = model.source_embedding.table.numpy()
    with pytest.warns(UserWarning, match="Gradients do not exist for variables.*kernel"):
        model.train_on_batch(INPUTS, LABELS)
    np.testing.assert_array_equal(model.unused.kernel, before)
    assert np.all(model.source_embedding.table.numpy() != table)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_pure_precisions_train_with_clipping_and_16_bits_are_warned_of(dtype):
    model = build_model(UniversalConfig(**SIZES, num_steps=2), dtype=dtype)
    optimizer = FusedAdam(0.01, beta_2=0.98)
    warns = pytest.warns(UserWarning, match="make it with the policy mixed_bfloat16")
    with warns if dtype == "bfloat16" else contextlib.nullcontext():
        model.compile(optimizer, SmoothedCrossEntropy(), clip_norm=1.0, run_eagerly=True)
    losses = [model.train_on_batch(INPUTS, LABELS, return_dict=True)["loss"] for _ in range(4)]
    assert losses[-1] < losses[0]
    assert int(model.bad_steps) == 0
    assert model.source_embedding.table.dtype == dtype


def test_xla_program_holds_the_whole_update_of_one_device(model):
    metrics = [TokenAccuracy(), Perplexity()]
    model.compile(
        FusedAdam(0.1), SmoothedCrossEntropy(), metrics=metrics, clip_norm=1.0, jit_compile=True
    )
    ids = tf.TensorSpec([None, None], tf.int32)
    traced = tf.function(model.train_step, autograph=False).get_concrete_function(
        ({"source": ids, "target": ids}, ids)
    )
    outside = [
        operation.type
        for operation in traced.graph.get_operations()
        if "CPU:0" not in operation.device  # of the check of the batch
        and operation.type not in ("Const", "Placeholder", "NoOp", "Identity")
    ]
    assert outside.count("StatefulPartitionedCall") == 1
    assert len(outside) <= 8, outside
    (call,) = [each for each in traced.graph.get_operations() if "PartitionedCall" in each.type]
    definition = traced.graph._get_function(call.get_attr("f").name).cached_definition
    assert definition.attr["_XlaMustCompile"].b
    assert {"L2Loss", "IsFinite"} <= {node.op for node in definition.node_def}


def test_xla_program_neither_branches_nor_draws_random_numbers():
    # The host of a GPU waits for the condition of a branch; random numbers go through memory.
    model = Transformer(dataclasses.replace(CONFIG, dropout=0.1))
    model.compile(FusedAdam(0.1), SmoothedCrossEntropy(), metrics=[TokenAccuracy()], clip_norm=1.0)
    model.optimizer.build(model.trainable_variables)
    model.uses_xla = True
    step = tf.function(lambda: model.update((INPUTS, LABELS)), jit_compile=True, autograph=False)
    program = step.experimental_get_compiler_ir()(stage="hlo")
    assert "is-finite" in program
    assert "conditional" not in program
    assert "rng" not in program


@pytest.mark.slow
def test_compiled_updates_equal_those_of_the_graph_before_and_after_a_file(tmp_path):
    models = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(1)
        model = Transformer(CONFIG)
        options = dict(clip_norm=0.5, accumulation_steps=2, jit_compile=jit_compile)
        model.compile(
            FusedAdam(0.01), SmoothedCrossEntropy(0.1), metrics=[TokenAccuracy()], **options
        )
        model.train_on_batch(INPUTS, LABELS)
        models.append(model)
    models[1].save(tmp_path / "model.keras")
    models[1] = loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (loaded.accumulation_steps, loaded.clip_norm, loaded.uses_xla) == (2, 0.5, True)
    for model in models:
        for _ in range(2):
            model.train_on_batch(INPUTS, LABELS)
    for plain, compiled in zip(*(model.get_weights() for model in models), strict=True):
        # Weights move by 0.03; where a gradient is near 0, Adam enlarges its rounding.
        np.testing.assert_allclose(compiled, plain, atol=3e-6)


SUMMED, APART, WEIGHTED = (
    keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    for reduction in ("sum", "none", "mean_with_sample_weight")
)


@pytest.mark.parametrize(
    ("options", "labels", "message"),
    [
        (dict(accumulation_steps=0), LABELS, "at least 1 and clip_norm above 0, got"),
        (dict(clip_norm=0.0), LABELS, "at least 1 and clip_norm above 0, got"),
        (dict(loss=SUMMED, accumulation_steps=2), LABELS, "got the reduction sum"),
        (dict(loss=APART, accumulation_steps=2), LABELS, "got the reduction none"),
        (dict(loss=WEIGHTED, accumulation_steps=2), LABELS, "got the reduction mean_with_sample_w"),
        ({}, None, "one array of ids .* got none"),
        ({}, {"ids": LABELS}, "one array of ids .* got a dict"),
        (dict(loss=[SUMMED], accumulation_steps=2), LABELS, "got the reduction sum"),
        (dict(loss_weights=[2.0]), LABELS, "the model has one loss"),
        (dict(loss="sparse_categorical_crossentropy"), LABELS, "takes probabilities"),
        (dict(loss=keras.losses.SparseCategoricalCrossentropy()), LABELS, "takes probabilities"),
        (dict(class_weight={5: 2.0}), LABELS, r"give sample_weight \[B, T\]"),
    ],
)
def test_impossible_options_losses_and_labels_are_rejected(model, options, labels, message):
    options = dict(loss=SmoothedCrossEntropy(), run_eagerly=True) | options
    class_weight = options.pop("class_weight", None)
    with pytest.raises(InputError, match=message):
        model.compile("sgd", **options)
        model.fit(INPUTS, labels, class_weight=class_weight, verbose=0)


@pytest.mark.parametrize("trainable", [True, False])
def test_batch_of_padding_and_frozen_model_change_nothing(model, trainable):
    start = model.get_weights()
    labels = np.zeros_like(LABELS) if trainable else LABELS
    model.trainable = trainable
    model.compile(keras.optimizers.SGD(1.0), SmoothedCrossEntropy(), run_eagerly=True, clip_norm=1)
    warns = pytest.warns(UserWarning, match="no trainable weights")
    with contextlib.nullcontext() if trainable else warns:
        model.train_on_batch({"source": LABELS, "target": INPUTS["target"] * (labels != 0)}, labels)
    model.trainable = True
    for weight, expected in zip(model.get_weights(), start, strict=True):
        np.testing.assert_array_equal(weight, expected)


@pytest.mark.parametrize(
    "options",
    [dict(run_eagerly=True), {}, pytest.param(dict(jit_compile=True), marks=pytest.mark.slow)],
    ids=["eager", "graph", "xla"],
)
def test_non_finite_updates_are_skipped_and_counted(model, options):
    model.compile(keras.optimizers.Adam(0.1), SmoothedCrossEntropy(), **options)
    model.optimizer.build(model.trainable_variables)
    start = model.get_weights()
    table = model.source_embedding.table
    spoiled = start[0].copy()
    spoiled[5, 0] = np.inf  # a token of the first sentence alone
    table.assign(spoiled)
    model.train_on_batch(INPUTS, LABELS)
    model.train_on_batch(INPUTS, LABELS)
    np.testing.assert_array_equal(table, spoiled)
    for old, new in zip(start[1:], model.get_weights()[1:], strict=True):
        np.testing.assert_array_equal(old, new)
    assert all(not np.any(slot) for slot in model.optimizer.variables[2:])  # moments
    assert (int(model.bad_steps), int(model.bad_steps_in_a_row)) == (2, 2)
    table.assign(start[0])
    model.train_on_batch(INPUTS, LABELS)
    assert (int(model.bad_steps), int(model.bad_steps_in_a_row)) == (2, 0)
    assert np.abs(np.asarray(table) - start[0]).max() > 0.01
    model.set_weights(start)


def test_each_epoch_is_one_pass_under_a_strategy():
    """Batches that another pass shuffles anew would come in another order than on one device."""
    passes = []

    def batches():
        passes.append("begun")
        yield INPUTS, LABELS

    ids = tf.TensorSpec([None, None], tf.int32)
    data = tf.data.Dataset.from_generator(
        batches, output_signature=({"source": ids, "target": ids}, ids)
    )
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = Transformer(CONFIG)
        model.compile("sgd", SmoothedCrossEntropy(), metrics=[TokenAccuracy()])
    model.fit(data, epochs=2, verbose=0)
    assert passes == ["begun"] * 2


def test_metrics_of_a_single_worker_are_numbers():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # of the only process
    with strategy.scope():
        model = Transformer(CONFIG)
        model.compile("sgd", SmoothedCrossEntropy(), metrics=[TokenAccuracy()])
    values = model.test_on_batch(INPUTS, LABELS, return_dict=True)
    assert [np.shape(values[name]) for name in ("loss", "accuracy")] == [(), ()]
