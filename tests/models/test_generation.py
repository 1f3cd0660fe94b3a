"""`Seq2SeqModel.generate`: the same as the search by hand, with graphs that are kept."""

import numpy as np
import pytest
import tensorflow as tf
from model_cases import CONFIGS, SOURCE, random_model
from plain_search import Banned

from keras_transformer.errors import InputError
from keras_transformer.search import MinLength, beam_search, sample, sentence_seeds


@pytest.fixture(scope="module")
def model():
    return random_model(CONFIGS["transformer"])


def searched(model, source, max_length=6, **options):
    """The hypotheses of the search that `generate` replaces."""
    return beam_search(
        model.step,
        model.encode(tf.constant(source), num_hypotheses=options.get("beam_size", 4)),
        max_lengths=tf.fill([len(source)], max_length),
        **options,
    )


def assert_equal(result, expected):
    np.testing.assert_array_equal(result.ids, expected.ids)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5)


@pytest.mark.parametrize("name", ["transformer, window", "recurrent, all"])
def test_generate_equals_beam_search(name):
    model = random_model(CONFIGS[name])
    options = dict(beam_size=3, num_translations=2, length_penalty=0.9)
    result = model.generate(SOURCE, max_length=6, **options)
    assert_equal(result, searched(model, SOURCE, **options))


def test_longest_output_has_50_tokens_more_than_its_source(model):
    result = model.generate(SOURCE, constraints=[MinLength(tf.constant(99))])
    assert result.lengths[:, 0].numpy().tolist() == [4 + 50 + 1, 1 + 50 + 1, 3 + 50 + 1]
    result = model.generate(SOURCE, max_length=80, constraints=[MinLength(tf.constant(99))])
    assert result.lengths[:, 0].numpy().tolist() == [80 + 1] * 3


@pytest.mark.parametrize("length", [None, 30])
def test_learned_positions_bound_sources_and_outputs(length):
    model = random_model(CONFIGS["transformer, learned"])  # 20 positions, one of them for BOS
    longest = [MinLength(tf.constant(99))]
    result = model.generate([[5] * 19 + [3]], max_length=length, constraints=longest)
    assert result.lengths.numpy().tolist() == [[19 + 1]]
    with pytest.raises(InputError, match=r"source has a row of more .* 20 learned positions"):
        model.generate([[5] * 20 + [3]])
    with pytest.raises(InputError, match="min_length 20 is larger than max_length 19"):
        model.generate([[5, 3]], max_length=length, min_length=20)


def test_generate_equals_sampling(model):
    assert model.generate(SOURCE, method="sampling", max_length=2, seed=None).ids.shape[0] == 3
    options = dict(temperature=1.5, num_translations=3, length_penalty=0.0)
    result = model.generate(SOURCE, method="sampling", max_length=5, seed=7, **options)
    expected = sample(
        model.step,
        model.encode(tf.constant(SOURCE), num_hypotheses=3),
        max_lengths=tf.fill([3], 5),
        seed=sentence_seeds(7, tf.constant(SOURCE)),
        **options,
    )
    assert_equal(result, expected)


def test_generate_takes_lists_and_arrays_of_any_shape_and_traces_once(model):
    model.generation = None
    whole = model.generate(SOURCE, max_length=6)
    graph = next(iter(model.generation.graphs.values()))
    for rows in (SOURCE[1:2, :2].tolist(), SOURCE[1:2].astype("int64"), tf.constant(SOURCE[1:2])):
        ids = model.generate(rows, max_length=6).ids.numpy()
        np.testing.assert_array_equal(ids[0, 0], whole.ids[1, 0, : ids.shape[2]])
    assert model.generate(np.zeros((0, 4), "int32"), max_length=6).ids.shape[:2] == (0, 1)
    assert graph.experimental_get_tracing_count() == 1


def test_constraints_of_each_call_apply(model):
    (best,) = model.generate(SOURCE[:1], max_length=1).ids[0, 0, :1].numpy().tolist()
    banned = Banned([[best]])
    for _ in range(2):
        constrained = model.generate(SOURCE[:1], max_length=1, constraints=[banned]).ids
        assert constrained[0, 0, 0] != best
        assert model.generate(SOURCE[:1], max_length=1).ids[0, 0, 0] == best


def negate(model):
    model.set_weights([-weights for weights in model.get_weights()])


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [negate, lambda model: model.quantize("int8")], ids=["weights", "quantization"],
)  # fmt: skip
def test_generate_follows_changes_of_the_model(change):
    model = random_model(CONFIGS["transformer"])
    model.generate(SOURCE, max_length=6)
    change(model)
    assert_equal(model.generate(SOURCE, max_length=6), searched(model, SOURCE))
    model.trainable_weights[-1].assign_add(model.trainable_weights[-1] + 0.5)
    assert_equal(model.generate(SOURCE, max_length=6), searched(model, SOURCE))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (["a red cat"], {}, "got string .* takes text"),
        ([5, 3], {}, r"ids \[B, S\], got int32 of shape \(2,\)"),
        (np.array([5, 3]), {}, r"source must be ids \[B, T\], got the shape"),
        ([[5.0, 3.0]], {}, "got float32"),
        ([[99, 3]], {}, "source must be ids of a vocabulary"),
        ([[0, 5, 3]], {}, "source has padding, 0, before a token"),
        (SOURCE, {"num_translations": 9}, "raise beam_size"),
        (SOURCE, {"method": "greedy"}, "method must be one of"),
        (SOURCE, {"max_source_length": 9}, "max_source_length would have no effect on ids"),
    ],
)
def test_inputs_that_are_no_rows_of_ids_are_rejected(model, source, options, message):
    with pytest.raises(InputError, match=message):
        model.generate(source, **options)


def test_sources_without_eos_get_a_warning(model):
    with pytest.warns(UserWarning, match=r"no row of source has EOS \(3\)"):
        model.generate([[5, 6]])
