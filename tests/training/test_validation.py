"""The metric of the dev set: the search's own translations, evaluated as the task says."""

import numpy as np
import pytest
import tiny_run

from keras_transformer import Translator
from keras_transformer.config import SearchConfig
from keras_transformer.data.batches import MAX_SHAPES
from keras_transformer.data.corpus import ParallelText
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer
from keras_transformer.tasks import TranslationTask
from keras_transformer.text import learn_vocabulary
from keras_transformer.training.optimizer import compile_for_training
from keras_transformer.training.settings import RunConfigs
from keras_transformer.training.validation import DevMetric, Validation, check_validation

WORDS = "a b c d e f g h"
LINES = ["a c b", "h g f e d c b a h", "e", "b b d f a g", "c d e f", ""]
TEXT = ParallelText(LINES, [*LINES[:-1], "a"])
SEARCH = SearchConfig(max_extra_length=4)


def make_model(vocabulary, seed=1):
    """Gives a model whose weights are large enough to say something."""
    model = Transformer(tiny_run.model_config(vocabulary_size=vocabulary.size))
    generator = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(generator.normal(size=weight.shape))
    return model


def make_vocabulary():
    return learn_vocabulary([WORDS], size=100, kind="word")


def make_bleu(model, text, search=SEARCH, **changes):
    """Gives the metric of a dev set, by default with time for all of the text."""
    vocabularies = (make_vocabulary(), make_vocabulary())
    training = tiny_run.training_config(
        **{"checkpoint_steps": 1000, "batch_tokens": 2000} | changes
    )
    return DevMetric(model, text, vocabularies, TranslationTask(), training, search)


@pytest.fixture(scope="module")
def vocabulary():
    return make_vocabulary()


# The score


def test_dev_translations_are_the_translators(vocabulary):
    lines = [*LINES, "a Anna c Bob", "Владимир"]  # with words that the vocabulary does not know
    model = make_model(vocabulary, seed=3)
    bleu = make_bleu(model, ParallelText(lines, ["a", *lines[1:]]))
    translator = Translator(model, vocabulary, vocabulary, SEARCH)
    translator.batch_size = 1
    alone = [best.text for best in translator.translate(lines)]
    assert bleu.num_sentences == len(lines)
    assert bleu.translate() == alone
    assert len(set(alone)) > 3
    assert alone[5] == ""  # of a blank sentence
    assert "Anna" in alone[6] and "⁇" not in alone[6]


def test_dev_bleu_is_sacrebleu_of_current_weights(vocabulary):
    model, sources = make_model(vocabulary), LINES[:5]
    bleu = make_bleu(model, ParallelText(sources, sources))
    translations = bleu.translate()
    assert bleu() == (TranslationTask().evaluate(translations, sources, sources)["bleu"] or 0.0)
    itself = make_bleu(model, ParallelText(sources, translations))
    assert itself() == pytest.approx(100)
    for weight, other in zip(model.weights, make_model(vocabulary, seed=2).weights, strict=True):
        weight.assign(other)
    assert bleu.translate() != translations  # without being traced again


# How much is translated


@pytest.mark.parametrize(
    ("time_share", "count"),
    [(0.1, 0.1 * 100 * 2000 / 8 / 10), (0.1999, 499), (0.01, 128), (1.0, 1000)],  # at least a batch
)
def test_number_of_dev_sentences_follows_config(vocabulary, time_share, count):
    lines = [" ".join(["a"] * 9)] * 1000  # 10 tokens with the end
    text = ParallelText([f"a {number}" for number in range(1000)], lines)
    options = dict(checkpoint_steps=100, validation_time_share=time_share)
    assert make_bleu(make_model(vocabulary), text, **options).num_sentences == count


def test_dev_sentences_are_taken_evenly_with_all_their_references(vocabulary):
    # Sorted by length, as Tatoeba is; the second half repeats the sources with other references.
    sources = [" ".join(["a"] * length) for length in range(1, 301)]
    text = ParallelText(sources * 2, ["a b"] * 300 + ["c d"] * 300)
    bleu = make_bleu(make_model(vocabulary), text, validation_time_share=0.001)
    assert (bleu.num_sentences, bleu.num_all) == (128, 300)
    sources, references = zip(*bleu._pairs, strict=True)
    lengths = [len(sentence.split()) for sentence in sources[:128]]
    assert np.mean(lengths) == pytest.approx(150.5, abs=1)
    assert {np.diff(lengths).min(), np.diff(lengths).max()} == {2, 3}
    assert sources == sources[:128] * 2
    assert references == ("a b",) * 128 + ("c d",) * 128


# What a run goes by


@pytest.mark.parametrize(
    ("name", "value"),
    [("stop_metric", "bleu"), ("average_best", 1)],
)
def test_options_of_validation_need_a_dev_set(name, value):
    training = tiny_run.training_config(**{name: value})
    check_validation(training, TEXT)
    with pytest.raises(InputError, match=f"^{name} needs a dev set, and there is none; give dev_f"):
        check_validation(training, None)


def make_validation(text, **changes):
    """Gives what validates a run."""
    configs = RunConfigs(tiny_run.model_config(), tiny_run.DATA, tiny_run.training_config())
    configs = configs._replace(**changes)
    model, vocabulary = Transformer(configs.model), tiny_run.make_vocabulary()
    compile_for_training(model, configs.training)
    return Validation(model, text, (vocabulary, vocabulary), configs, MAX_SHAPES)


def test_overlong_dev_pairs_are_dropped_from_dev_loss():
    text = ParallelText(["abc", "a" * 5000, "cba"], ["abc", "abc", "cba"])
    parts = tiny_run.training_config(accumulation_steps=64)  # of one token each
    found = make_validation(text, data=tiny_run.DATA.replace(max_length=8), training=parts)
    rows = [row for inputs, *_ in found.batches for row in inputs["source"].numpy() if row.any()]
    assert len(rows) == 2
    assert max(row.size for row in rows) <= 8
    with pytest.raises(InputError, match="no pair of sentences is left of 3 in the dev set"):
        make_validation(text, data=tiny_run.DATA.replace(max_length=2))
