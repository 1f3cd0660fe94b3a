"""What Keras expects of any layer, asked of every layer of the package."""

import doctest
import json
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer.layers
from keras_transformer.errors import InputError
from keras_transformer.layers import (
    LSTM,
    SSRU,
    CrossAttention,
    Decoder,
    DecoderLayer,
    Dropout,
    Encoder,
    EncoderLayer,
    FeedForward,
    KeysValues,
    LayerNormalization,
    LSTMState,
    PositionalEncoding,
    RecurrentDecoder,
    RecurrentEncoder,
    RecurrentMemory,
    SelfAttention,
    TokenEmbedding,
    UniversalDecoder,
    UniversalEncoder,
    WindowedSelfAttention,
)
from keras_transformer.layers.embedding import sinusoids

B, T, S, D, H, K, U = 2, 4, 3, 6, 2, 5, 3
RANDOM = np.random.default_rng(4)


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


X = normal(B, T, D)
IDS = np.array([[4, 5, 6, 3], [7, 3, 0, 0]], "int32")
MEMORY = KeysValues(normal(B, H, S, K), normal(B, H, S, U))
PADDING, MEMORY_PADDING = IDS != 0, IDS[:, :S] != 0
CAUSAL = np.tril(np.ones((B, T, T), bool))
BOTH = dict(mask=PADDING, memory_mask=MEMORY_PADDING)
ENCODED = normal(B, S, D)

ATTENTION = dict(num_heads=H, key_dim=K, value_dim=U, dropout=0.2, use_bias=True)
WINDOW = dict(window=3, max_relative_distance=2)
NORM = dict(norm_position="pre", norm_epsilon=1e-3)
SUBLAYERS = dict(
    num_heads=H, key_dim=K, value_dim=U, feed_forward_dim=7, dropout=0.1, attention_dropout=0.2,
    feed_forward_dropout=0.3, activation="gelu", attention_bias=True, **NORM,
)  # fmt: skip
# Of K units; the memory is twice as wide.
READ = RecurrentMemory(normal(B, S, 2 * K), normal(B, S, U), IDS[:, :S] != 0)
STATES = 2 * (LSTMState(normal(B, K), normal(B, K)),)
# A token halts at the step that no rounding changes: the last.
UNIVERSAL = dict(
    num_steps=2, adaptive_steps=True, halting_epsilon=1e-9, halting_bias=-1.0, **SUBLAYERS,
)  # fmt: skip
WINDOWS = dict(attention_window=3, max_relative_distance=2)


class Case(NamedTuple):
    """A layer with no argument at its default, and what it is called with."""

    layer: type[keras.layers.Layer]
    arguments: dict[str, Any]
    inputs: tuple[Any, ...]
    masks: dict[str, Any] = {}  # noqa: RUF012 (of a tuple that never changes it)

    def call(self, layer: Any) -> Any:
        return layer(*self.inputs, **self.masks)


LEARNED = dict(kind="learned", first_position=2, max_positions=9)
RELATIVE = {"max_relative_distance": 2, "key_dim": U}
DEEP = dict(num_layers=2, units=K, dropout=0.2)
CASES = [
    Case(TokenEmbedding, dict(vocabulary_size=11, model_dim=D, scale=False), (IDS,)),
    Case(PositionalEncoding, LEARNED | dict(model_dim=D, kind="concatenated"), (X,)),
    Case(PositionalEncoding, LEARNED | dict(model_dim=D), (X,)),
    Case(Dropout, dict(rate=0.2, noise_shape=(None, 1, D), seed=3), (X,)),
    Case(LayerNormalization, dict(epsilon=1e-3), (X,)),
    Case(FeedForward, dict(inner_dim=7, dropout=0.2, activation="gelu"), (X,)),
    Case(WindowedSelfAttention, ATTENTION | WINDOW, (X,), dict(mask=PADDING)),
    Case(SelfAttention, ATTENTION | RELATIVE, (X,), dict(attention_mask=CAUSAL)),
    Case(CrossAttention, ATTENTION, (X, ENCODED), dict(memory_mask=MEMORY_PADDING)),
    Case(CrossAttention, ATTENTION, (X, MEMORY), dict(memory_mask=MEMORY_PADDING)),
    Case(EncoderLayer, SUBLAYERS | WINDOWS, (X,), dict(mask=PADDING)),
    Case(DecoderLayer, SUBLAYERS, (X, ENCODED), dict(attention_mask=CAUSAL, mask=PADDING)),
    Case(SSRU, {}, (X,), dict(mask=PADDING)),
    Case(Decoder, dict(num_layers=2, mixer="ssru", **SUBLAYERS), (X, ENCODED), BOTH),
    Case(LSTM, dict(units=K, backwards=True), (X, IDS != 0)),
    Case(RecurrentEncoder, DEEP, (X, IDS != 0)),
    Case(RecurrentDecoder, DEEP | dict(attention_dim=U, intra_decoder=True), (X, READ, STATES)),
    Case(Encoder, dict(num_layers=2, **SUBLAYERS, **WINDOWS), (X,), dict(mask=PADDING)),
    Case(UniversalEncoder, UNIVERSAL, (X,), dict(mask=PADDING)),
    Case(UniversalDecoder, UNIVERSAL, (X, ENCODED), BOTH),
    Case(Decoder, dict(num_layers=2, **SUBLAYERS), (X, ENCODED), BOTH),
]


@pytest.fixture(params=CASES, ids=[case.layer.__name__ for case in CASES])
def case(request) -> Case:
    return request.param


def build(case: Case, weights: list[np.ndarray] | None = None, **options: Any) -> Any:
    """Returns the layer, built by a first call, with random weights if none are given."""
    layer = case.layer(**case.arguments, **options)
    case.call(layer)
    layer.set_weights(weights or [normal(*w.shape) / 2 for w in layer.weights])
    return layer


def symbolic_case(case: Case) -> Case:
    """Returns the case with inputs of the functional API."""
    inputs = keras.tree.map_structure(
        lambda array: keras.Input(array.shape[1:], dtype=array.dtype.name), case[2:]
    )
    return Case(case.layer, case.arguments, *inputs)


def as_float32(tensor: Any) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def test_every_layer_of_the_package_is_here():
    exported = vars(keras_transformer.layers).values()
    layers = {
        each for each in exported if isinstance(each, type) and issubclass(each, keras.layers.Layer)
    }
    assert layers == {case.layer for case in CASES}


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", keras.DTypePolicy("mixed_bfloat16")])
def test_configuration_survives_the_round_trip(case, dtype):
    layer = case.layer(**case.arguments, name="some_name", dtype=dtype, trainable=False)
    text = json.dumps(keras.saving.serialize_keras_object(layer))
    copy = keras.saving.deserialize_keras_object(json.loads(text))
    assert type(copy) is case.layer
    assert copy.get_config() == layer.get_config()
    assert layer.get_config().items() >= case.arguments.items()
    found = (copy.name, copy.dtype_policy.name, copy.trainable)
    assert found == ("some_name", "mixed_bfloat16", False)
    name = f"keras_transformer>{case.layer.__name__}"
    assert keras.saving.get_registered_object(name) is case.layer


def test_compute_output_shape_is_the_shape_of_the_output(case):
    layer = build(case)
    shape = tuple(case.inputs[0].shape)
    result = case.call(layer)
    assert layer.compute_output_shape(shape) == tuple(result.shape)
    unknown = (None, None, *shape[2:])
    assert layer.compute_output_shape(unknown) == (None, None, *result.shape[2:])


def test_functional_model_equals_the_layer_also_from_a_file(case, tmp_path):
    symbolic = symbolic_case(case)
    layer = case.layer(**case.arguments)
    outputs = symbolic.call(layer)  # which builds it
    assert len({weight.path for weight in layer.weights}) == len(layer.weights)
    layer.set_weights([normal(*w.shape) / 2 for w in layer.weights])
    expected = case.call(layer)
    assert outputs.shape == (None, *expected.shape[1:])
    model = keras.Model(keras.tree.flatten(symbolic[2:]), outputs)
    arrays = keras.tree.flatten(case[2:])
    np.testing.assert_allclose(model(arrays), expected, rtol=1e-5, atol=1e-5)
    if not all(isinstance(each, np.ndarray) for each in case.inputs):
        return  # Keras's files make lists of named tuples
    layer.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(arrays), model(arrays))
    (copy,) = (part for part in loaded.layers if isinstance(part, case.layer))
    assert not copy.trainable_weights
    copy.trainable = True
    assert len(loaded.trainable_weights) == len(layer.weights)


@pytest.mark.parametrize(
    ("policy", "tolerance"),
    [("mixed_bfloat16", 2.0**-5), ("mixed_float16", 2.0**-8), ("float64", 2.0**-18)],
)
def test_other_precisions_are_finite_and_close_to_float32(case, policy, tolerance):
    layer = build(case)
    other = build(case, layer.get_weights(), dtype=policy)
    result = case.call(other)
    assert result.dtype == other.compute_dtype
    if policy != "float64":
        assert {weight.dtype for weight in other.weights} <= {"float32"}
    assert np.isfinite(as_float32(result)).all()
    real = case.masks.get("mask", np.ones(result.shape[:2], bool))  # of padding anything finite
    found, expected = as_float32(result)[real], as_float32(case.call(layer))[real]
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoids(np.arange(3), 4, "concat"), "layout must be one of sinusoidal, concat"),
        (lambda: PositionalEncoding(4, "sine"), "kind must be one of sinusoidal, .* got 'sine'"),
        (
            lambda: EncoderLayer(**SUBLAYERS | {"norm_position": "Pre"}),
            "must be one of post, pre, got",
        ),
        (lambda: WindowedSelfAttention(window=0, **ATTENTION), "odd and at least 1, got 0"),
        (lambda: WindowedSelfAttention(window=4, **ATTENTION), "window must be odd .*, got 4"),
        # Without the lines that Keras adds to errors within a layer.
        (lambda: SelfAttention(**ATTENTION)(X, attention_mask=X), "^attention_mask must be bool"),
        (lambda: SelfAttention(**ATTENTION)(X, mask=X[..., 0]), "^mask must be boolean, True"),
    ],
)
def test_wrong_arguments_are_rejected(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_numbers_of_numpy_are_saved(tmp_path):
    layer = TokenEmbedding(IDS.max() + 1, model_dim=np.int32(4), scale=np.bool_(False))
    model = keras.Sequential([layer])
    expected = model(IDS)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(IDS), expected)


@pytest.mark.parametrize("layer", dict.fromkeys(case.layer for case in CASES))
def test_docstring_examples_run(layer):
    names = {"np": np, **vars(keras_transformer.layers)}
    examples = doctest.DocTestFinder(recurse=True).find(layer, layer.__name__, globs=names)
    for example in examples:
        assert doctest.DocTestRunner(verbose=False).run(example).failed == 0
