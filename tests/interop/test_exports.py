"""Exports: the import reads the same model, and toolkits alone compute and translate as we do."""

import functools
import importlib.util
import json
import pathlib
import random
import sys
import unicodedata

import keras
import numpy as np
import opus_base
import pytest
import samples
import sentencepiece
import tensorflow as tf
from samples import make_model, some_ids

from keras_transformer import Translator
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, SearchConfig, TransformerConfig
from keras_transformer.data import pad_ids
from keras_transformer.errors import InputError
from keras_transformer.interop import read_model
from keras_transformer.interop.ctranslate2 import export_ctranslate2
from keras_transformer.interop.transformers import export_transformers
from keras_transformer.interop.vocabularies import save_tokenizer, tokenizer_notes
from keras_transformer.layers import FeedForward
from keras_transformer.models import Transformer
from keras_transformer.pretrained import load_pretrained
from keras_transformer.text import learn_vocabulary

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the package ctranslate2")

SMALL = TransformerConfig(
    vocabulary_size=30, num_layers=2, model_dim=16, feed_forward_dim=24, num_heads=4,
    norm_epsilon=1e-5,
)  # fmt: skip
BOTH = {
    "as in the paper": SMALL,
    "positions in halves": SMALL.replace(positions="halves"),
    "shared target embedding": SMALL.replace(share_embeddings="target", activation="gelu"),
    "nothing shared": SMALL.replace(share_embeddings="none", activation="gelu_tanh"),
    "biases": SMALL.replace(attention_bias=True, output_bias=True, activation="swish"),
    "one decoder layer": SMALL.replace(decoder_layers=1, activation="gelu_sigmoid"),
    "embeddings are not scaled": SMALL.replace(scale_embeddings=False),
    "default epsilon": SMALL.replace(norm_epsilon=1e-6),
}
CTRANSLATE2 = {
    "pre-norm": SMALL.replace(norm_position="pre", norm_epsilon=1e-2),
    "concatenated positions": SMALL.replace(positions="concatenated"),
    "learned positions of each side": SMALL.replace(
        positions="learned", share_positions=False, max_positions=30
    ),
    "other first position": SMALL.replace(first_position=3, embedding_norm=True),
    "an odd number of heads": SMALL.replace(num_heads=3, key_dim=5, value_dim=5),
    "all at once": SMALL.replace(
        norm_position="pre", share_embeddings="none", attention_bias=True, output_bias=True,
        positions="learned",
    ),
}  # fmt: skip
EXPORTS = {"ctranslate2": export_ctranslate2, "transformers": export_transformers}
SOURCE = pad_ids([[*ids, EOS_ID] for ids in some_ids(3, 20, 11, 1)])
TARGET = pad_ids([[BOS_ID, *ids] for ids in some_ids(5, 25, 1, 9)])


def log_probs_of(model):
    return tf.nn.log_softmax(model({"source": SOURCE, "target": TARGET})).numpy()


@pytest.mark.parametrize("config", BOTH.values(), ids=BOTH)
def test_transformers_folder_is_imported_with_equal_log_probs(config, vocabulary, tmp_path):
    model = make_model(config)
    folder = export_transformers(model, vocabulary, vocabulary, tmp_path / "exported")
    again = read_model(folder)
    found, expected = log_probs_of(again.to_model()), log_probs_of(model)
    assert np.ptp(expected) > 5
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert again.notes == []
    usual = SearchConfig(
        beam_size=4, length_penalty=1.0, length_penalty_form="power", max_length=510,
        max_extra_length=510, max_source_length=511, min_length=1, early_stop="current",
    )  # fmt: skip
    assert SearchConfig(**again.search) == usual


@pytest.mark.parametrize(
    ("name", "toolkit"),
    [("hf_marian", "transformers"), ("hf_marian_separate", "transformers"),
     ("marian_post_swish_tied", "ctranslate2"), ("marian_embnorm_untied", "ctranslate2")],
)  # fmt: skip
def test_exports_are_imported_unchanged(name, toolkit, sample_model, tmp_path):
    sample = samples.read_sample(sample_model, name)
    first = sample.model.to_model()
    folder = EXPORTS[toolkit](first, *sample.model.vocabularies, tmp_path / "exported")
    again = read_model(folder)
    assert again.config.replace(dropout=first.config.dropout) == first.config
    for found, expected in zip(again.to_model().weights, first.weights, strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=expected.path)
    for found, expected, side in zip(
        again.vocabularies, sample.model.vocabularies, ("source", "target"), strict=True
    ):
        texts = [entry[side] for entry in sample.sentences] + [">>deu<< 漢 </s>"]
        assert found.encode(texts) == expected.encode(texts)
        assert found.pieces(range(found.size)) == expected.pieces(range(expected.size))
    if toolkit == "transformers":  # the softmax of an imported model has no padding
        written = json.loads((folder / "generation_config.json").read_text())
        assert written["renormalize_logits"] is True


def test_mixed_precision_is_written_in_float32_and_lora_is_merged(vocabulary, tmp_path):
    model, mixed = make_model(SMALL), make_model(SMALL, dtype=keras.DTypePolicy("mixed_bfloat16"))
    before = log_probs_of(model)
    export_transformers(mixed, vocabulary, vocabulary, tmp_path / "mixed")
    dense = model.encoder.layers[0].feed_forward.inner
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(np.ones_like(dense.lora_kernel_b))
    export_transformers(model, vocabulary, vocabulary, tmp_path / "lora")
    assert np.abs(log_probs_of(model) - before).max() > 0.1
    for name, expected in (("mixed", before), ("lora", log_probs_of(model))):
        again = read_model(tmp_path / name).to_model()
        np.testing.assert_allclose(log_probs_of(again), expected, atol=1e-4)


# The tokenizer of an export


@pytest.mark.parametrize("name", ["hf_marian", "opus_tokenizers", "en-de", "learned"])
def test_exported_tokenizer_reads_as_the_vocabulary_does(name, sample_model, tmp_path):
    """Spaces and invisible characters as well; its notes tell what it reads otherwise."""
    if name == "opus_tokenizers":
        opus_base.write(sample_model(name), tmp_path / "opus", layers=1, dim=16, inner=16, tokens=0)
        vocabulary = read_model(tmp_path / "opus").vocabularies[0]
    elif name == "hf_marian":
        vocabulary = read_model(sample_model(name)).vocabularies[0]
    elif name == "en-de":
        vocabulary = load_pretrained(name).source
    else:
        vocabulary = learn_vocabulary(["e\u0301in Hund, zwei \u05d1\u05b0\u05bc"] * 9, size=40)
    texts = ["\ufeffWhere is the station?", "I like dogs\ufe0f.", "a\u2028b\u200bc \U000e0061",
             "\xa0two\u3000men\x07", "C++ and i++; 北京", "caf\u00e9 \u2063x\u034f"]  # fmt: skip
    save_tokenizer(vocabulary, tmp_path / "source.spm")
    processor = sentencepiece.SentencePieceProcessor(str(tmp_path / "source.spm"))
    ids = {piece: id_ for id_, piece in enumerate(vocabulary.pieces(range(vocabulary.size)))}
    for text in texts:
        found = [ids.get(piece, 1) for piece in processor.encode(text, out_type=str)]
        assert [found] == vocabulary.encode([text]), text
    notes = " ".join(tokenizer_notes(vocabulary))
    assert (">>deu<<" in vocabulary.language_codes) == ("language code" in notes)
    disordered = "\u05d1\u05bc\u05b0"
    composed = unicodedata.normalize("NFC", disordered)
    if vocabulary.encode([disordered]) == vocabulary.encode([composed]) and name == "learned":
        assert "form C" in notes


# What cannot be exported

UNSUPPORTED = {
    "norm_position": "pre", "positions": "learned", "first_position": 1,
    "key_dim": 8, "value_dim": 3, "encoder_attention_window": 3, "decoder_attention_window": 5,
    "embedding_norm": True, "source_eos": False, "norm_epsilon": 0.01,
}  # fmt: skip


def quantized():
    model = make_model(SMALL)
    model.quantize("int8")
    return model


class GatedFeedForward(FeedForward):
    """Computes something else in a layer of the same weights."""

    def call(self, inputs, *arguments, **options):
        return 2 * super().call(inputs, *arguments, **options)


def with_changed_layer():
    model = make_model(SMALL)
    model.decoder.layers[1].feed_forward.__class__ = GatedFeedForward
    return model


class OtherTransformer(Transformer):
    pass


@pytest.mark.parametrize("toolkit", EXPORTS)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (quantized, "quantized layers"),
        (with_changed_layer, "layers of class GatedFeedForward"),
        (lambda: OtherTransformer(SMALL), "a model of class OtherTransformer"),
        (keras.Sequential, "a model of class Sequential"),
        (lambda: Transformer(SMALL.replace(vocabulary_size=31)),
         "31 source tokens and the source vocabulary 30"),
        (lambda: Transformer(SMALL.replace(target_vocabulary_size=33, share_embeddings="none")),
         "33 target tokens and the target vocabulary 30"),
        *((functools.partial(Transformer, SMALL.replace(**{name: value})), f"{name} {value}")
          for name, value in (("positions", "relative"), ("positions", "rotary"),
                              ("decoder_attention_window", 3), ("decoder_mixer", "ssru"))),
    ],
)  # fmt: skip
def test_what_a_toolkit_lacks_is_listed_and_nothing_is_written(
    toolkit, make, reason, vocabulary, tmp_path
):
    with pytest.raises(InputError, match=reason):
        EXPORTS[toolkit](make(), vocabulary, vocabulary, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_all_obstacles_of_transformers_are_listed(vocabulary, tmp_path):
    names = ", ".join(f"{name} {value}" for name, value in UNSUPPORTED.items())
    model, other = Transformer(SMALL.replace(**UNSUPPORTED)), learn_vocabulary(["äöüß" * 9])
    with pytest.raises(InputError, match=f"MarianMT of transformers does not support {names};"):
        export_transformers(model, vocabulary, vocabulary, tmp_path / "a")
    with pytest.raises(InputError, match="support one table for two vocabularies;"):
        export_transformers(Transformer(SMALL), vocabulary, other, tmp_path / "a")


@pytest.mark.parametrize(
    ("folder", "options", "reason"),
    [("a", {"quantization": "int4"}, "quantization 'int4' cannot be used .*int8"),
     ("taken", {}, "taken exists already"),
     ("file/model", {}, "cannot write the export to .*model"),
     ("a", {"package": None}, r"run pip install '.\[ctranslate2\]' in")],
)  # fmt: skip
def test_failed_exports_to_ctranslate2_leave_nothing(
    folder, options, reason, vocabulary, tmp_path, monkeypatch
):
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    if "package" in options:
        for name in ("ctranslate2", "ctranslate2.specs"):
            monkeypatch.setitem(sys.modules, name, None)
        options = {}
    with pytest.raises(InputError, match=reason):
        export_ctranslate2(Transformer(SMALL), vocabulary, vocabulary, tmp_path / folder, **options)
    assert sorted(tmp_path.rglob("*")) == before


# What CTranslate2 computes with a folder


@pytest.mark.slow
@pytest.mark.parametrize("config", (BOTH | CTRANSLATE2).values(), ids=BOTH | CTRANSLATE2)
def test_ctranslate2_computes_our_log_probs(config, vocabulary, tmp_path):
    model, source, target = make_model(config), some_ids(3, 20, 11, 1), some_ids(5, 25, 1, 0)
    folder = export_ctranslate2(model, vocabulary, vocabulary, tmp_path / "model")
    scores = ctranslate2.Translator(str(folder), intra_threads=1).score_batch(
        [vocabulary.pieces(ids) for ids in source], [vocabulary.pieces(ids) for ids in target]
    )
    shifted = pad_ids([[BOS_ID, *ids] for ids in target])
    source = pad_ids([[*ids, EOS_ID] for ids in source])
    log_probs = tf.nn.log_softmax(model({"source": source, "target": shifted})).numpy()
    for score, row, ids in zip(scores, log_probs, target, strict=True):
        expected = [row[position, token] for position, token in enumerate([*ids, EOS_ID])]
        np.testing.assert_allclose(score.log_probs, expected, atol=1e-4)


def translate_with_ctranslate2(folder, texts, **options):
    """Translates text with nothing but what is in the folder."""
    encoder = sentencepiece.SentencePieceProcessor(str(folder / "source.model"))
    decoder = sentencepiece.SentencePieceProcessor(str(folder / "target.model"))
    results = ctranslate2.Translator(str(folder), intra_threads=1).translate_batch(
        encoder.encode(texts, out_type=str), min_decoding_length=1, length_penalty=0, **options
    )
    best = decoder.decode([result.hypotheses[0] for result in results])
    return [text.removeprefix(" ") for text in best]


def test_unknown_words_translate_in_ctranslate2_as_in_translator(
    make_translator, trained, tmp_path
):
    translator = make_translator(beam_size=1, length_penalty=0.0, replace_unknowns=False)
    texts = ["hello zebra", "</s> tree", "sun  cat", "two two two", "<pad>", "\ufefftwo\u2028cat"]
    folder = export_ctranslate2(*trained, tmp_path / "model")
    ours = [best.text for best in translator.translate(texts)]
    theirs = translate_with_ctranslate2(folder, texts, beam_size=1, max_decoding_length=8)
    assert theirs == ours


@pytest.mark.parametrize("quantization", [None, "int8", "int16", "float16"])
def test_ctranslate2_folder_alone_translates_text(quantization, trained, words, tmp_path):
    before = trained[0].get_weights()
    full = export_ctranslate2(*trained, tmp_path / "full")
    folder = export_ctranslate2(*trained, tmp_path / "model", quantization=quantization)
    size, full_size = ((each / "model.bin").stat().st_size for each in (folder, full))
    assert size < full_size or quantization is None
    generator = random.Random(3)
    texts = [" ".join(generator.choices([*words], k=1 + index % 4)) for index in range(40)]
    expected = [" ".join(words[word] for word in text.split()) for text in texts]
    assert translate_with_ctranslate2(folder, texts, beam_size=4) == expected
    for old, new in zip(before, trained[0].get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_attention_of_ctranslate2_is_the_mean_of_the_last_layers_heads(vocabulary, tmp_path):
    model, (ids,) = make_model(SMALL), some_ids(6)
    folder = export_ctranslate2(model, vocabulary, vocabulary, tmp_path / "model")
    (result,) = ctranslate2.Translator(str(folder), intra_threads=1).translate_batch(
        [vocabulary.pieces(ids)], beam_size=1, return_attention=True, max_decoding_length=1
    )
    expected = model.attention(
        {"source": np.array([[*ids, EOS_ID]]), "target": np.array([[BOS_ID]])}
    )
    np.testing.assert_allclose(result.attention[0][0], expected[0, 0, :-1], atol=1e-4)


# What transformers computes with a folder


@pytest.fixture(scope="module")
def ask(run_python):
    """Puts questions to transformers in another process, where it gets along with TensorFlow."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs the package transformers")

    def ask(*questions):
        questions = json.dumps(questions, default=str)
        script = pathlib.Path(__file__).with_name("ask_transformers.py")
        output = run_python(script, stdin=questions, HF_HUB_OFFLINE="1")
        return json.loads(output.splitlines()[-1])

    return ask


@pytest.mark.slow
def test_transformers_computes_our_log_probs(ask, vocabulary, tmp_path):
    models = [make_model(config) for config in BOTH.values()]
    for index, model in enumerate(models):
        export_transformers(model, vocabulary, vocabulary, tmp_path / str(index))
    is_real = TARGET != PAD_ID
    ids = {"source": SOURCE.tolist(), "target": TARGET.tolist()}
    answers = ask(*({"folder": tmp_path / str(index)} | ids for index in range(len(models))))
    for answer, model, name in zip(answers, models, BOTH, strict=True):
        assert answer["left_over"] == []
        found, expected = np.array(answer["log_probs"])[is_real], log_probs_of(model)[is_real]
        np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_model_with_65001_tokens_is_searched_as_in_transformers(ask, sample_model, tmp_path):
    """With the length penalty and the rule for the end of a sentence that OPUS-MT models have."""
    tokenizers, folder, longest = sample_model("opus_tokenizers"), tmp_path / "big", 40
    opus_base.write_ending(tokenizers, folder)
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
    texts += ["\ufefftwo cat", "two\u2028cat"]
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
