"""BLEU in the logs of `fit`."""

import keras
import pytest

from keras_transformer import (
    Seq2SeqPreprocessor,
    SmoothedCrossEntropy,
    Transformer,
    TransformerConfig,
    Translator,
    learn_vocabulary,
)
from keras_transformer.callbacks import TranslationMetrics
from keras_transformer.errors import InputError
from keras_transformer.tasks import TranslationTask

ENGLISH = ["a dog and a cat", "a cat and a dog", "the dog and the cat", "the cat and a dog"]
GERMAN = [
    "ein Hund und eine Katze", "eine Katze und ein Hund",
    "der Hund und die Katze", "die Katze und ein Hund",
]  # fmt: skip
PAIRS = list(zip(ENGLISH, GERMAN, strict=True))
SEARCH = dict(beam_size=1, max_extra_length=3)


@pytest.fixture(scope="module")
def vocabulary():
    return learn_vocabulary(ENGLISH + GERMAN, kind="word")


@pytest.fixture
def fit(vocabulary):
    """Trains a new model and returns it with its history."""

    def fit(*callbacks, learning_rate=0.0, epochs=3, repeats=1, **options):
        keras.utils.set_random_seed(1)
        sizes = dict(num_layers=1, model_dim=32, feed_forward_dim=32, num_heads=2, dropout=0.0)
        model = Transformer(
            TransformerConfig.preset("tiny", vocabulary_size=vocabulary.size, **sizes)
        )
        model.compile(keras.optimizers.Adam(learning_rate), SmoothedCrossEntropy(0.1))
        batches = Seq2SeqPreprocessor(vocabulary).batches(PAIRS * repeats, batch_tokens=32)
        options = dict(verbose=0) | options
        history = model.fit(batches, epochs=epochs, callbacks=list(callbacks), **options)
        return model, history.history

    return fit


@pytest.mark.slow
def test_metrics_are_those_of_the_translator(fit, vocabulary, capsys):
    metrics = TranslationMetrics(PAIRS, vocabulary, **SEARCH)
    model, history = fit(metrics, learning_rate=3e-3, epochs=8, repeats=40, verbose=2)
    outputs = map(str, Translator(model, vocabulary, vocabulary).translate(ENGLISH))
    results = TranslationTask().evaluate(list(outputs), GERMAN, ENGLISH)
    assert history["val_bleu"][-1] == pytest.approx(results["bleu"])
    assert history["val_chrf"][-1] == pytest.approx(results["chrf"])
    assert history["val_bleu"][0] < history["val_bleu"][-1] == pytest.approx(100)
    assert "val_bleu: 100.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda vocabulary: TranslationMetrics([], vocabulary), "there are no pairs"),
        (lambda vocabulary: TranslationMetrics(PAIRS, vocabulary, beams=3), "no field beams"),
        (
            lambda vocabulary: TranslationMetrics(PAIRS, learn_vocabulary(["a"], kind="word")),
            "source tokens, the vocabulary 5; give",
        ),
    ],
)
def test_mistakes_are_reported_before_training(fit, vocabulary, make, message):
    with pytest.raises(InputError, match=message):
        fit(make(vocabulary))
