"""The CTranslate2 folder: CTranslate2, given nothing else, computes and translates what we do."""

import random
import sys

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from samples import make_model, some_ids

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, SearchConfig, TransformerConfig
from keras_transformer.data import pad_ids
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator
from keras_transformer.interop.ctranslate2 import export_ctranslate2
from keras_transformer.models import Transformer

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the package ctranslate2")

TOLERANCE = 1e-4  # of a log-probability: two engines add float32 numbers in different orders

SMALL = TransformerConfig(
    vocabulary_size=30, num_layers=2, model_dim=16, feed_forward_dim=24, num_heads=4
)
CONFIGS = {
    "as in the paper": SMALL,
    "tiny": TransformerConfig.preset("tiny", vocabulary_size=30),
    "base, one layer of it": TransformerConfig.preset("base", vocabulary_size=30, num_layers=1),
    "pre-norm": SMALL.replace(norm_position="pre"),
    "shared target embedding": SMALL.replace(share_embeddings="target"),
    "nothing shared": SMALL.replace(share_embeddings="none"),
    "biases": SMALL.replace(attention_bias=True, output_bias=True),
    "concatenated positions": SMALL.replace(positions="concatenated"),
    "learned positions": SMALL.replace(positions="learned", max_positions=40),
    "learned positions of each side": SMALL.replace(
        positions="learned", share_positions=False, max_positions=30
    ),
    "other first position": SMALL.replace(first_position=3),
    "large epsilon": SMALL.replace(norm_epsilon=1e-2),
    "no epsilon": SMALL.replace(norm_epsilon=0.0),
    "wide heads": SMALL.replace(key_dim=8, value_dim=8),
    "wide keys": SMALL.replace(key_dim=6, value_dim=3, attention_bias=True),
    "wide values": SMALL.replace(key_dim=3, value_dim=6, attention_bias=True),
    "an odd number of heads": SMALL.replace(num_heads=3, key_dim=5, value_dim=5),
    "other positions": SMALL.replace(positions="halves"),
    "other depths": SMALL.replace(decoder_layers=1, activation="swish"),
    "gelu": SMALL.replace(activation="gelu"),
    "its approximation by tanh": SMALL.replace(activation="gelu_tanh"),
    "its approximation by sigmoid": SMALL.replace(activation="gelu_sigmoid"),
    "embeddings are normalized": SMALL.replace(embedding_norm=True),
    "embeddings are not scaled": SMALL.replace(scale_embeddings=False),
    "source without EOS": SMALL.replace(source_eos=False),
    "all at once": SMALL.replace(
        norm_position="pre",
        share_embeddings="none",
        attention_bias=True,
        output_bias=True,
        positions="learned",
    ),
}


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
    """Translates text with what is in the folder: (text, score, number of pieces)."""
    encoder = sentencepiece.SentencePieceProcessor(str(folder / "source.model"))
    decoder = sentencepiece.SentencePieceProcessor(str(folder / "target.model"))
    results = ctranslate2.Translator(str(folder), intra_threads=1).translate_batch(
        encoder.encode(list(texts), out_type=str),
        min_decoding_length=1,
        return_scores=True,
        **{"length_penalty": 0} | options,
    )
    best = [result.hypotheses[0] for result in results]
    scores = [result.scores[0] for result in results]
    texts = [text.removeprefix(" ") for text in decoder.decode(best)]
    return list(zip(texts, scores, map(len, best), strict=True))


def compare(translator, folder, texts, limit=30):
    """Checks that our translator and CTranslate2 give the same; returns the different texts.

    What CTranslate2 cut at its limit is left out: ours does not cut, but ends there. With a
    minimum length it forbids EOS before the softmax, we after it: its first token has 1 / (1 -
    P(EOS)) times our probability.
    """
    search = translator.search
    source = translator.source_tokenizer.vocabulary.encode(texts)
    eos_log_probs = forced_log_probs(translator.model, source, [[]] * len(texts))
    options = {"beam_size": search.beam_size, "max_decoding_length": limit}
    if search.early_stop == "first":
        options["length_penalty"] = 1e-7  # with 0 it stops once the best hypothesis has finished
    theirs = translate_with_ctranslate2(folder, texts, **options)
    ours = translator.translate(texts)
    compared = set()
    for (best,), (text, score, length), (eos,) in zip(ours, theirs, eos_log_probs, strict=True):
        if length < limit:
            score += np.log1p(-np.exp(eos))
            assert best.score == pytest.approx(score, abs=TOLERANCE)  # of a tie, too
            assert best.text == text
            compared.add(text)
    return compared


@pytest.mark.slow
@pytest.mark.parametrize(("beam_size", "early_stop"), [(1, "exact"), (4, "first")])
def test_search_of_an_unsure_model_is_the_same(beam_size, early_stop, vocabulary, tmp_path):
    config = SMALL.replace(share_embeddings="none", output_bias=True)
    model = make_model(config, seed=44, scale=1.0, noise=0.1)
    # Our search never takes padding and start; CTranslate2's would. EOS must be likely enough.
    bias = np.where(np.isin(range(30), [PAD_ID, BOS_ID]), -1000.0, 0.0)
    bias[EOS_ID] = 1.0
    model.output_bias.assign(bias)
    search = SearchConfig(beam_size=beam_size, length_penalty=0.0, max_extra_length=40,
                          early_stop=early_stop, replace_unknowns=False)  # fmt: skip
    translator = Translator(model, vocabulary, vocabulary, search)
    texts = vocabulary.decode(some_ids(*range(1, 16)) + some_ids(*range(16, 1, -1)))
    found = compare(translator, export(translator, tmp_path / "model"), texts, limit=40)
    assert len(found) >= 20


@pytest.mark.slow
@pytest.mark.parametrize(("beam_size", "early_stop"), [(1, "exact"), (4, "exact"), (4, "first")])
def test_search_of_a_trained_model_is_the_same(
    beam_size, early_stop, make_translator, words, tmp_path
):
    translator = make_translator(
        beam_size=beam_size, early_stop=early_stop, length_penalty=0.0, max_extra_length=30
    )
    generator = random.Random(4)
    texts = [" ".join(generator.choices([*words, "zebra"], k=index % 6 + 1)) for index in range(60)]
    assert len(compare(translator, export(translator, tmp_path / "model"), texts)) >= 20


def sentences_of(words):
    generator = random.Random(3)
    return [" ".join(generator.choices(list(words), k=1 + index % 4)) for index in range(40)]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_folder_alone_translates_text(beam_size, separate_translator, words, tmp_path):
    folder = export(separate_translator, tmp_path / "model")
    assert {file.name for file in folder.iterdir()} == {
        "model.bin", "config.json", "source_vocabulary.json", "target_vocabulary.json",
        "source.model", "target.model",
    }  # fmt: skip
    texts = sentences_of(words)
    translations = translate_with_ctranslate2(folder, texts, beam_size=beam_size)
    expected = [" ".join(words[word] for word in text.split()) for text in texts]
    assert [text for text, *_ in translations] == expected


def export(translator, folder, **options):
    """Writes the model and vocabularies of one of our translators."""
    source, target = translator.source_tokenizer, translator.target_tokenizer
    return export_ctranslate2(
        translator.model, source.vocabulary, target.vocabulary, folder, **options
    )


def test_unknown_words_translate_as_in_translator(make_translator, tmp_path):
    translator = make_translator(beam_size=1, length_penalty=0.0, replace_unknowns=False)
    texts = ["hello zebra", "</s> tree", "sun  cat", "two two two", "<pad>"]
    folder = export(translator, tmp_path / "model")
    theirs = translate_with_ctranslate2(folder, texts, beam_size=1, max_decoding_length=8)
    ours = [best.text for best, *_ in translator.translate(texts)]
    assert [text for text, *_ in theirs] == ours


@pytest.mark.parametrize("quantization", ["int8", "int16", "float16"])
def test_quantized_model_is_smaller_and_translates(
    quantization, separate_translator, words, tmp_path
):
    before = [variable.numpy() for variable in separate_translator.model.variables]
    full = export(separate_translator, tmp_path / "full")
    folder = export(separate_translator, tmp_path / "small", quantization=quantization)
    assert (folder / "model.bin").stat().st_size < (full / "model.bin").stat().st_size
    ((text, *_),) = translate_with_ctranslate2(folder, ["sun cat"], beam_size=4)
    assert text == f"{words['sun']} {words['cat']}"
    after = [variable.numpy() for variable in separate_translator.model.variables]
    for old, new in zip(before, after, strict=True):
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


def refuse(reason, model, vocabulary, folder, **options):
    """Exports, which must fail and leave nothing behind."""
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(InputError, match=reason):
        export_ctranslate2(model, vocabulary, vocabulary, folder, **options)
    assert sorted(folder.parent.rglob("*")) == before


def test_inexpressible_models_are_rejected(vocabulary, tmp_path):
    model = Transformer(SMALL.replace(norm_form="sigma"))
    refuse("not support norm_form sigma; export", model, vocabulary, tmp_path / "model")
    for name, value in {"positions": "rotary", "decoder_attention_window": 3}.items():
        model = Transformer(SMALL.replace(**{name: value}))
        refuse(f"not support {name} {value}; export", model, vocabulary, tmp_path / "model")
    model = make_model(SMALL)
    model.quantize("int8")
    refuse("export the model before `quantize`", model, vocabulary, tmp_path / "model")
    model = keras.Sequential()
    refuse("single Transformer, got Sequential", model, vocabulary, tmp_path / "model")


def test_vocabularies_of_another_model_are_rejected(vocabulary, tmp_path):
    larger = Transformer(SMALL.replace(vocabulary_size=31))
    refuse("31 source tokens and the source vocabulary 30", larger, vocabulary, tmp_path / "model")
    larger = Transformer(SMALL.replace(target_vocabulary_size=33, share_embeddings="none"))
    refuse("33 target tokens and the target vocabulary 30", larger, vocabulary, tmp_path / "model")


def test_unknown_quantization_is_rejected(vocabulary, tmp_path):
    model = Transformer(SMALL)
    reason = "quantization 'int4' cannot be used .*int8"
    refuse(reason, model, vocabulary, tmp_path / "model", quantization="int4")


def test_unusable_folder_is_rejected(vocabulary, tmp_path):
    model = Transformer(SMALL)
    (tmp_path / "taken").mkdir()
    refuse("taken exists already", model, vocabulary, tmp_path / "taken")
    (tmp_path / "file").touch()
    refuse("cannot write the export to .*model", model, vocabulary, tmp_path / "file" / "model")


def test_missing_package_error_says_how_to_install_it(vocabulary, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    reason = r"run pip install '.\[ctranslate2\]' in"
    refuse(reason, Transformer(SMALL), vocabulary, tmp_path / "model")
