"""The CTranslate2 folder: CTranslate2, given nothing else, computes and translates what we do."""

import random
import sys

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from samples import make_model, some_ids

from keras_transformer.config import BOS_ID, EOS_ID, TransformerConfig
from keras_transformer.data import pad_ids
from keras_transformer.errors import InputError
from keras_transformer.interop.ctranslate2 import export_ctranslate2
from keras_transformer.models import Transformer

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the package ctranslate2")

TOLERANCE = 1e-4  # of a log-probability: two engines add float32 numbers in different orders

SMALL = TransformerConfig(
    vocabulary_size=30, num_layers=2, model_dim=16, feed_forward_dim=24, num_heads=4
)
CONFIGS = {
    "as in the paper": SMALL,
    "base, one layer of it": TransformerConfig.preset("base", vocabulary_size=30, num_layers=1),
    "pre-norm": SMALL.replace(norm_position="pre", activation="gelu"),
    "shared target embedding": SMALL.replace(share_embeddings="target", activation="gelu_tanh"),
    "nothing shared": SMALL.replace(share_embeddings="none", activation="gelu_sigmoid"),
    "biases": SMALL.replace(attention_bias=True, output_bias=True, norm_epsilon=0.0),
    "concatenated positions": SMALL.replace(positions="concatenated", norm_epsilon=1e-2),
    "positions in halves": SMALL.replace(positions="halves", decoder_layers=1, activation="swish"),
    "learned positions of each side": SMALL.replace(
        positions="learned", share_positions=False, max_positions=30
    ),
    "other first position": SMALL.replace(first_position=3, embedding_norm=True),
    "an odd number of heads": SMALL.replace(
        num_heads=3, key_dim=5, value_dim=5, scale_embeddings=False
    ),
    "all at once": SMALL.replace(
        norm_position="pre", share_embeddings="none", attention_bias=True, output_bias=True,
        positions="learned",
    ),
}  # fmt: skip


@pytest.fixture
def load(tmp_path):
    """Exports a model and gives CTranslate2's translator."""

    def load(model, source, target=None, **options):
        folder = export_ctranslate2(model, source, target or source, tmp_path / "model", **options)
        return ctranslate2.Translator(str(folder), intra_threads=1)

    return load


def forced_log_probs(model, source, target):
    """Gives the log-probability of each token of the target and of EOS: [B] lists."""
    source = pad_ids([[*ids, EOS_ID] for ids in source])
    shifted = pad_ids([[BOS_ID, *ids] for ids in target])
    log_probs = tf.nn.log_softmax(model({"source": source, "target": shifted})).numpy()
    return [
        [row[position, token] for position, token in enumerate([*ids, EOS_ID])]
        for row, ids in zip(log_probs, target, strict=True)
    ]


def assert_same_log_probs(model, translator, vocabulary):
    source, target = some_ids(3, 20, 11, 1), some_ids(5, 25, 1, 0)
    scores = translator.score_batch(
        [vocabulary.pieces(ids) for ids in source], [vocabulary.pieces(ids) for ids in target]
    )
    expected = forced_log_probs(model, source, target)
    assert np.ptp(expected[1]) > 1
    for score, log_probs in zip(scores, expected, strict=True):
        np.testing.assert_allclose(score.log_probs, log_probs, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_forced_targets_have_equal_log_probs(config, load, vocabulary):
    model = make_model(config)
    assert_same_log_probs(model, load(model, vocabulary), vocabulary)


def test_mixed_precision_models_are_written_in_float32(load, vocabulary, tmp_path):
    model = make_model(SMALL, dtype=keras.DTypePolicy("mixed_bfloat16"))
    full = make_model(SMALL)
    assert_same_log_probs(full, load(model, vocabulary), vocabulary)
    assert (tmp_path / "model" / "shared_vocabulary.json").exists()


def translate_with_ctranslate2(folder, texts, **options):
    """Translates text with nothing but what is in the folder."""
    encoder = sentencepiece.SentencePieceProcessor(str(folder / "source.model"))
    decoder = sentencepiece.SentencePieceProcessor(str(folder / "target.model"))
    results = ctranslate2.Translator(str(folder), intra_threads=1).translate_batch(
        encoder.encode(texts, out_type=str), min_decoding_length=1, length_penalty=0, **options
    )
    best = decoder.decode([result.hypotheses[0] for result in results])
    return [text.removeprefix(" ") for text in best]


def test_unknown_words_translate_as_in_translator(make_translator, trained, tmp_path):
    translator = make_translator(beam_size=1, length_penalty=0.0, replace_unknowns=False)
    texts = ["hello zebra", "</s> tree", "sun  cat", "two two two", "<pad>"]
    folder = export_ctranslate2(*trained, tmp_path / "model")
    ours = [best.text for best in translator.translate(texts)]
    theirs = translate_with_ctranslate2(folder, texts, beam_size=1, max_decoding_length=8)
    assert theirs == ours


@pytest.mark.parametrize("quantization", [None, "int8", "int16", "float16"])
def test_folder_alone_translates_text(quantization, trained, words, tmp_path):
    before = trained[0].get_weights()
    full = export_ctranslate2(*trained, tmp_path / "full")
    folder = export_ctranslate2(*trained, tmp_path / "model", quantization=quantization)
    assert {file.name for file in folder.iterdir()} == {
        "model.bin", "config.json", "source_vocabulary.json", "target_vocabulary.json",
        "source.model", "target.model",
    }  # fmt: skip
    size, full_size = ((each / "model.bin").stat().st_size for each in (folder, full))
    assert size < full_size or quantization is None
    generator = random.Random(3)
    texts = [" ".join(generator.choices([*words], k=1 + index % 4)) for index in range(40)]
    expected = [" ".join(words[word] for word in text.split()) for text in texts]
    assert translate_with_ctranslate2(folder, texts, beam_size=4) == expected
    for old, new in zip(before, trained[0].get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_attention_is_the_mean_of_the_last_layers_heads(load, vocabulary):
    model = make_model(SMALL)
    (ids,) = some_ids(6)
    (result,) = load(model, vocabulary).translate_batch(
        [vocabulary.pieces(ids)], beam_size=1, return_attention=True, max_decoding_length=1
    )
    expected = model.attention(
        {"source": np.array([[*ids, EOS_ID]]), "target": np.array([[BOS_ID]])}
    )
    np.testing.assert_allclose(result.attention[0][0], expected[0, 0, :-1], atol=TOLERANCE)


def quantized():
    model = make_model(SMALL)
    model.quantize("int8")
    return model


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        *((SMALL.replace(**{name: value}), {}, f"not support {name} {value}; export it as")
          for name, value in (("positions", "rotary"), ("decoder_attention_window", 3))),
        (SMALL.replace(key_dim=6, value_dim=3), {}, "not support key_dim 6 and value_dim 3; "),
        (quantized, {}, "not support quantized layers; export it .* before `quantize`"),
        (keras.Sequential, {}, "not support a model of class Sequential; export it"),
        (SMALL.replace(vocabulary_size=31), {}, "31 source tokens and the source vocabulary 30"),
        (SMALL.replace(target_vocabulary_size=33, share_embeddings="none"), {},
         "33 target tokens and the target vocabulary 30"),
        (SMALL, {"quantization": "int4"}, "quantization 'int4' cannot be used .*int8"),
        (SMALL, {"folder": "taken"}, "taken exists already"),
        (SMALL, {"folder": "file/model"}, "cannot write the export to .*model"),
        (SMALL, {"package": None}, r"run pip install '.\[ctranslate2\]' in"),
    ],
)  # fmt: skip
def test_impossible_exports_are_rejected_and_leave_nothing(
    model, options, reason, vocabulary, tmp_path, monkeypatch
):
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    if "package" in options:
        for name in ("ctranslate2", "ctranslate2.specs"):
            monkeypatch.setitem(sys.modules, name, None)
    model = model() if callable(model) else Transformer(model)
    folder = tmp_path / options.get("folder", "model")
    quantization = options.get("quantization")
    with pytest.raises(InputError, match=reason):
        export_ctranslate2(model, vocabulary, vocabulary, folder, quantization=quantization)
    assert sorted(tmp_path.rglob("*")) == before
