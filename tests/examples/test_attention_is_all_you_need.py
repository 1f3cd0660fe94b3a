"""The example in one file beside the package's Transformer: same weights, same numbers."""

import runpy

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import Seq2SeqPreprocessor
from keras_transformer.config import EOS_ID
from keras_transformer.data.corpus import pad_ids

WORDS = ["a", "b", "c", "d", "e", "f", "g"]


@pytest.fixture(scope="module")
def example(request):
    root = request.config.rootpath
    return runpy.run_path(str(root / "examples/attention_is_all_you_need.py"))


@pytest.fixture(scope="module")
def pairs():
    random = np.random.default_rng(1)
    rows = [random.choice(WORDS, random.integers(2, 7)) for _ in range(600)]
    return [(" ".join(row), " ".join(row[::-1])) for row in rows]


@pytest.fixture(scope="module")
def vocabulary(pairs):
    return kt.learn_vocabulary([text for pair in pairs for text in pair], kind="word")


@pytest.fixture(scope="module")
def model(example, pairs, vocabulary):
    """The example's model, which has learned a little: to reverse words."""
    keras.utils.set_random_seed(1)
    model = example["Transformer"](
        vocabulary.size, num_layers=2, model_dim=32, inner_dim=48, num_heads=4, dropout=0.0
    )
    schedule = example["Schedule"](model_dim=32, warmup_steps=60)
    model.compile(keras.optimizers.Adam(schedule), loss=example["smoothed_cross_entropy"])
    batches = Seq2SeqPreprocessor(vocabulary).batches(pairs, batch_tokens=600)
    history = model.fit(batches, epochs=12, shuffle=False, verbose=0).history["loss"]
    assert history[-1] < 0.8 * history[0]
    return model


@pytest.fixture(scope="module")
def same(model, vocabulary):
    """The package's Transformer with the weights of the example's."""
    sizes = dict(model_dim=32, feed_forward_dim=48, num_heads=4, num_layers=2, dropout=0.0)
    same = kt.Transformer(kt.TransformerConfig(vocabulary_size=vocabulary.size, **sizes))
    values = {"source_embedding/table": model.embedding.embeddings}
    for side in ("encoder", "decoder"):
        for number, layer in enumerate(getattr(model, side)):
            values |= {f"{side}/layer_{number}/{name}": value for name, value in weights_of(layer)}
    for weight in same.weights:
        weight.assign(values.pop(weight.path.partition("/")[2]))
    assert not values
    return same


def weights_of(layer):
    """Gives the weights of a layer of the example by their names in the package."""
    joined = lambda *parts: np.concatenate([part.kernel for part in parts], axis=1)  # noqa: E731
    attention, (inner, outer) = layer.attention, layer.feed_forward.layers
    sublayers = ["self_attention", "feed_forward"]
    all_three = joined(attention.query, attention.key, attention.value)
    yield "self_attention/query_key_value/kernel", all_three
    yield "self_attention/output/kernel", attention.output_projection.kernel
    if len(layer.add_and_norms) == 3:
        sublayers.insert(1, "cross_attention")
        cross = layer.cross_attention
        yield "cross_attention/query/kernel", cross.query.kernel
        yield "cross_attention/key_value/kernel", joined(cross.key, cross.value)
        yield "cross_attention/output/kernel", cross.output_projection.kernel
    for name, dense in (("inner", inner), ("outer", outer)):
        yield f"feed_forward/{name}/kernel", dense.kernel
        yield f"feed_forward/{name}/bias", dense.bias
    for name, add_and_norm in zip(sublayers, layer.add_and_norms, strict=True):
        yield f"{name}_norm/gain", add_and_norm.norm.gamma
        yield f"{name}_norm/bias", add_and_norm.norm.beta


def test_logits_and_loss_are_equal(example, model, same, pairs, vocabulary):
    inputs, labels = Seq2SeqPreprocessor(vocabulary)(*zip(*pairs[:20], strict=True))
    logits = model(inputs)
    np.testing.assert_allclose(logits, same(inputs), atol=1e-5)
    loss = example["smoothed_cross_entropy"](labels, logits)
    np.testing.assert_allclose(loss, kt.SmoothedCrossEntropy(0.1)(labels, logits), rtol=1e-6)


def test_translations_are_equal(example, model, same, pairs, vocabulary):
    texts = [source for source, _ in pairs[:40]]
    ids = pad_ids([[*row, EOS_ID] for row in vocabulary.encode(texts)])
    longest = 10  # tokens, without EOS: some outputs are cut there
    expected = []
    for beam_size in (1, 4):
        config = kt.SearchConfig(beam_size=beam_size, max_length=longest)
        translator = kt.Translator(same, vocabulary, search=config)
        expected.append([str(each) for each in translator.translate(texts)])
    greedy = example["greedy_search"](model, ids, longest)
    best = example["beam_search"](model, ids, longest + 1)
    found = [vocabulary.decode([[*map(int, row)] for row in rows]) for rows in (greedy, best)]
    assert found == expected
    assert found[0] != found[1]  # the beam is of use


@pytest.mark.slow
def test_names_of_numbers_are_learned(run_python):
    printed = run_python("examples/attention_is_all_you_need.py")
    right = int(printed.splitlines()[-1].split()[0])
    assert right > 120
