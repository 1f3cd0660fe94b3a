"""The MarianMT folder: the import reads the same model, and transformers computes the same."""

import functools
import importlib.util
import json
import pathlib
import random

import keras
import numpy as np
import opus_big
import pytest
import tensorflow as tf
from samples import make_model, some_ids

from keras_transformer import Translator
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, SearchConfig, TransformerConfig
from keras_transformer.data import pad_ids
from keras_transformer.errors import InputError
from keras_transformer.interop import read_model
from keras_transformer.interop.transformers import export_transformers
from keras_transformer.models import Transformer
from keras_transformer.text import learn_vocabulary

SMALL = TransformerConfig(
    vocabulary_size=30, num_layers=2, model_dim=16, feed_forward_dim=24, num_heads=4,
    norm_epsilon=1e-5,
)  # fmt: skip
CONFIGS = {
    "as in the paper": SMALL,
    "positions in halves": SMALL.replace(positions="halves"),
    "shared target embedding": SMALL.replace(share_embeddings="target", activation="gelu"),
    "nothing shared": SMALL.replace(share_embeddings="none", activation="gelu_tanh"),
    "biases": SMALL.replace(attention_bias=True, output_bias=True, activation="swish"),
    "one decoder layer": SMALL.replace(decoder_layers=1, activation="gelu_sigmoid"),
    "embeddings are not scaled": SMALL.replace(scale_embeddings=False),
    "default epsilon": SMALL.replace(norm_epsilon=1e-6),
}
_ASK = pathlib.Path(__file__).with_name("ask_transformers.py")


SOURCE = pad_ids([[*ids, EOS_ID] for ids in some_ids(3, 20, 11, 1)])
TARGET = pad_ids([[BOS_ID, *ids] for ids in some_ids(5, 25, 1, 9)])


def log_probs_of(model):
    return tf.nn.log_softmax(model({"source": SOURCE, "target": TARGET})).numpy()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_imported_exports_have_equal_log_probs(config, vocabulary, tmp_path):
    model = make_model(config)
    folder = export_transformers(model, vocabulary, vocabulary, tmp_path / "exported")
    again = read_model(folder)
    found, expected = log_probs_of(again.to_model()), log_probs_of(model)
    assert np.ptp(expected) > 5
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert again.notes == []
    assert again.search == {
        "beam_size": 4, "length_penalty": 1.0, "length_penalty_form": "power", "max_length": 510,
        "max_extra_length": 510, "max_source_length": 511, "min_length": 1, "early_stop": "current",
    }  # fmt: skip


UNSUPPORTED = {
    "norm_position": "pre", "positions": "learned", "first_position": 1,
    "key_dim": 8, "value_dim": 3, "encoder_attention_window": 3, "decoder_attention_window": 5,
    "embedding_norm": True, "source_eos": False, "norm_epsilon": 0.01,
}  # fmt: skip


LIMITS = "MarianMT of transformers does not support "


def quantized():
    model = make_model(SMALL)
    model.quantize("int8")
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Transformer(SMALL.replace(**UNSUPPORTED)),
         LIMITS + ", ".join(f"{name} {value}" for name, value in UNSUPPORTED.items()) + "; train"),
        (quantized, f"{LIMITS}quantized layers;"),
        (keras.Sequential, f"{LIMITS}a model of class Sequential;"),
        *((functools.partial(Transformer, SMALL.replace(positions=positions)),
           f"{LIMITS}positions {positions};") for positions in
          ("concatenated", "relative", "rotary")),
        (lambda: Transformer(SMALL.replace(vocabulary_size=31)),
         "31 source tokens and the source vocabulary 30"),
    ],
)  # fmt: skip
def test_all_obstacles_are_listed_and_nothing_is_written(make, reason, vocabulary, tmp_path):
    with pytest.raises(InputError, match=reason):
        export_transformers(make(), vocabulary, vocabulary, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_other_vocabularies_and_folders_are_rejected(vocabulary, tmp_path):
    model, other = Transformer(SMALL), learn_vocabulary(["äöüß" * 9], size=30, kind="char")
    with pytest.raises(InputError, match="support one table for two vocabularies;"):
        export_transformers(model, vocabulary, other, tmp_path / "a")
    with pytest.raises(InputError, match="exists already"):
        export_transformers(model, vocabulary, vocabulary, tmp_path)


# What transformers itself computes with the folder


@pytest.fixture(scope="module")
def ask(run_python):
    """Puts questions to transformers in another process, where it gets along with TensorFlow."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs the package transformers")

    def ask(*questions):
        questions = json.dumps(questions, default=str)
        output = run_python(_ASK, stdin=questions, HF_HUB_OFFLINE="1")
        return json.loads(output.splitlines()[-1])

    return ask


@pytest.mark.slow
def test_transformers_computes_our_log_probs(ask, vocabulary, tmp_path):
    models = [make_model(config) for config in CONFIGS.values()]
    for index, model in enumerate(models):
        export_transformers(model, vocabulary, vocabulary, tmp_path / str(index))
    is_real = TARGET != PAD_ID
    ids = {"source": SOURCE.tolist(), "target": TARGET.tolist()}
    answers = ask(*({"folder": tmp_path / str(index)} | ids for index in range(len(models))))
    for answer, model, name in zip(answers, models, CONFIGS, strict=True):
        assert answer["left_over"] == []
        np.testing.assert_allclose(
            np.array(answer["log_probs"])[is_real], log_probs_of(model)[is_real], atol=1e-4,
            err_msg=name,
        )  # fmt: skip


@pytest.mark.slow
def test_model_with_65001_tokens_is_searched_as_in_transformers(ask, sample_model, tmp_path):
    """With the length penalty and the rule for the end of a sentence that OPUS-MT models have."""
    tokenizers, folder, longest = sample_model("opus_tokenizers"), tmp_path / "big", 40
    opus_big.write(tokenizers, folder)
    lines = (tokenizers / "source.jsonl").read_text(encoding="utf-8").splitlines()[:40]
    texts = [text for line in lines if len(text := json.loads(line)["text"]) < 60][:4]
    foreign = read_model(folder)
    assert foreign.search["length_penalty"] == 1.0 and foreign.search["early_stop"] == "current"
    model, questions, expected, lengths = foreign.to_model(), [], [], []
    for num_beams in (1, 4, 6):
        limits = {"max_length": longest, "max_extra_length": longest, "beam_size": num_beams}
        search = SearchConfig(**foreign.search | limits | {"replace_unknowns": False})
        translator = Translator(model, *foreign.vocabularies, search)
        expected.append(translator.translate(texts, details=True))
        lengths += [len(best.tokens) for best in expected[-1]]
        options = {"num_beams": num_beams, "max_length": longest + 2}  # the start and the end
        questions.append({"folder": folder, "source": texts, "search": options})
    assert sum(3 < length <= longest for length in lengths) >= 4, lengths  # ended by themselves
    for answer, translations in zip(ask(*questions), expected, strict=True):
        assert answer["left_over"] == []
        assert answer["texts"] == [best.text for best in translations]
        if answer["scores"] is not None:
            ended = [len(best.tokens) <= longest for best in translations]
            scores = np.array([best.score for best in translations])
            np.testing.assert_allclose(np.array(answer["scores"])[ended], scores[ended], atol=1e-4)


@pytest.mark.slow
def test_transformers_translates_as_we_do(ask, trained, words, tmp_path):
    generator = random.Random(3)
    texts = [" ".join(generator.choices([*words, "zebra"], k=1 + index % 4)) for index in range(24)]
    questions, expected = [], []
    folder = export_transformers(*trained, tmp_path / "exported")
    for num_beams in (1, 4):
        search = {"num_beams": num_beams, "length_penalty": 0.0}
        questions.append({"folder": folder, "source": texts, "search": search})
        search = SearchConfig(beam_size=num_beams, length_penalty=0.0, max_extra_length=20,
                              replace_unknowns=False)  # fmt: skip
        translations = Translator(*trained, search).translate(texts)
        expected.append((trained[1].encode(texts), translations))
    for answer, (source_ids, translations) in zip(ask(*questions), expected, strict=True):
        assert [row[: row.index(EOS_ID)] for row in answer["source_ids"]] == source_ids
        assert answer["texts"] == [best.text for best in translations]
        if answer["scores"] is not None:
            scores = [best.score for best in translations]
            np.testing.assert_allclose(answer["scores"], scores, atol=1e-4)
