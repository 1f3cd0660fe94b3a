"""Exports: the import reads the same model, and toolkits alone compute and translate as we do."""

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
import sentencepiece
import tensorflow as tf
from samples import make_model, opus_vocabulary, some_ids

from keras_transformer import Translator
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, SearchConfig, TransformerConfig
from keras_transformer.data.corpus import pad_ids
from keras_transformer.errors import InputError
from keras_transformer.interop import read_model
from keras_transformer.interop.ctranslate2 import export_ctranslate2
from keras_transformer.interop.transformers import export_transformers
from keras_transformer.interop.vocabularies import save_tokenizer, tokenizer_notes
from keras_transformer.models import Transformer
from keras_transformer.text import learn_vocabulary
from keras_transformer.training.run import RunDirectory

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
    "learned positions": SMALL.replace(positions="learned", max_positions=30),
    "other first position": SMALL.replace(first_position=3, embedding_norm=True),
    "an odd number of heads": SMALL.replace(num_heads=3, key_dim=5, value_dim=5),
    "all at once": SMALL.replace(
        norm_position="pre", share_embeddings="none", attention_bias=True, output_bias=True,
        positions="learned",
    ),
}  # fmt: skip
EXPORTS = {"ctranslate2": export_ctranslate2, "transformers": export_transformers}
SOURCE_IDS, TARGET_IDS = some_ids(3, 20, 11, 1), some_ids(5, 25, 1, 9)
SOURCE = pad_ids([[*ids, EOS_ID] for ids in SOURCE_IDS])
TARGET = pad_ids([[BOS_ID, *ids] for ids in TARGET_IDS])


def log_probs_of(model):
    return tf.nn.log_softmax(model({"source": SOURCE, "target": TARGET})).numpy()


# What cannot be exported


def quantized():
    model = make_model(SMALL)
    model.quantize("int8")
    return model


class OtherTransformer(Transformer):
    pass


REJECTED = {
    "quantized layers": quantized,
    "a model of class OtherTransformer": lambda: OtherTransformer(SMALL),
    "a model of class Sequential": keras.Sequential,
    "31 source tokens, the vocabulary 30": lambda: Transformer(SMALL.replace(vocabulary_size=31)),
    "positions relative": lambda: Transformer(SMALL.replace(positions="relative")),
    "decoder_attention_window 3": lambda: Transformer(SMALL.replace(decoder_attention_window=3)),
    "decoder_mixer ssru": lambda: Transformer(SMALL.replace(decoder_mixer="ssru")),
}
NOT_OF_TRANSFORMERS = {
    "norm_position": "pre", "positions": "learned", "first_position": 1,
    "key_dim": 8, "value_dim": 3, "encoder_attention_window": 3, "decoder_attention_window": 5,
    "embedding_norm": True, "source_eos": False, "norm_epsilon": 0.01,
}  # fmt: skip


@pytest.mark.parametrize("toolkit", EXPORTS)
def test_what_a_toolkit_lacks_is_listed_and_nothing_is_written(
    toolkit, vocabulary, tmp_path, monkeypatch
):
    export = EXPORTS[toolkit]
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").touch()
    for reason, make in REJECTED.items():
        with pytest.raises(InputError, match=reason):
            export(make(), vocabulary, vocabulary, tmp_path / "a")
    model = Transformer(SMALL)
    for folder, reason in (("taken", "taken exists already"), ("file/model", "cannot write the")):
        with pytest.raises(InputError, match=reason):
            export(model, vocabulary, vocabulary, tmp_path / folder)
    if toolkit == "transformers":
        names = ", ".join(f"{name} {value}" for name, value in NOT_OF_TRANSFORMERS.items())
        with pytest.raises(InputError, match=f"MarianMT of transformers does not support {names};"):
            other = Transformer(SMALL.replace(**NOT_OF_TRANSFORMERS))
            export(other, vocabulary, vocabulary, tmp_path / "a")
        with pytest.raises(InputError, match="support one table for two vocabularies;"):
            export(model, vocabulary, learn_vocabulary(["äöüß" * 9]), tmp_path / "a")
    else:
        for name in ("ctranslate2", "ctranslate2.specs"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InputError, match=r"run pip install '.\[ctranslate2\]' in"):
            export(model, vocabulary, vocabulary, tmp_path / "a")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["file", "taken"]


# The tokenizer of an export


@pytest.mark.parametrize("name", ["hf_marian", "opus_tokenizers", "en-de", "learned"])
def test_exported_tokenizer_reads_as_the_vocabulary_does(name, sample_model, tmp_path):
    """Spaces and invisible characters as well; its notes tell what it reads otherwise."""
    if name == "opus_tokenizers":
        vocabulary, _ = opus_vocabulary(sample_model(name), "source")
    elif name == "hf_marian":
        vocabulary = read_model(sample_model(name)).vocabularies[0]
    elif name == "en-de":
        vocabulary = RunDirectory.of_checkpoint(name)[0].vocabularies()[0]
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


# What CTranslate2 computes with a folder


@pytest.mark.parametrize("config", (BOTH | CTRANSLATE2).values(), ids=BOTH | CTRANSLATE2)
def test_ctranslate2_computes_our_log_probs(config, vocabulary, tmp_path):
    model = make_model(config)
    folder = export_ctranslate2(model, vocabulary, vocabulary, tmp_path / "model")
    source, target = map(vocabulary.pieces, SOURCE_IDS), map(vocabulary.pieces, TARGET_IDS)
    scores = ctranslate2.Translator(str(folder), intra_threads=1).score_batch(
        list(source), list(target)
    )
    log_probs = log_probs_of(model)
    assert np.ptp(log_probs) > 5
    for score, row, ids in zip(scores, log_probs, TARGET_IDS, strict=True):
        expected = [row[position, token] for position, token in enumerate([*ids, EOS_ID])]
        np.testing.assert_allclose(score.log_probs, expected, atol=1e-4)
    if config.positions == "learned":
        with pytest.raises(InputError, match="the model has learned positions, which"):
            read_model(folder)


def translate_with_ctranslate2(folder, texts, compute_type="default", **options):
    """Translates text with nothing but what is in the folder."""
    encoder = sentencepiece.SentencePieceProcessor(str(folder / "source.model"))
    decoder = sentencepiece.SentencePieceProcessor(str(folder / "target.model"))
    translator = ctranslate2.Translator(str(folder), intra_threads=1, compute_type=compute_type)
    results = translator.translate_batch(
        encoder.encode(texts, out_type=str), min_decoding_length=1, length_penalty=0, **options
    )
    best = decoder.decode([result.hypotheses[0] for result in results])
    return [text.removeprefix(" ") for text in best]


def test_ctranslate2_folder_alone_translates_text(trained, words, make_translator, tmp_path):
    folder = export_ctranslate2(*trained, tmp_path / "model")
    generator = random.Random(3)
    texts = [" ".join(generator.choices([*words], k=1 + index % 4)) for index in range(40)]
    expected = [" ".join(words[word] for word in text.split()) for text in texts]
    for compute_type in ("default", "int8"):
        assert translate_with_ctranslate2(folder, texts, compute_type, beam_size=4) == expected
    # Unknown words and names of special tokens as well.
    translator = make_translator(beam_size=1, length_penalty=0.0, replace_unknowns=False)
    texts = ["hello zebra", "</s> tree", "sun  cat", "two two two", "<pad>"]
    theirs = translate_with_ctranslate2(folder, texts, beam_size=1, max_decoding_length=8)
    assert theirs == [best.text for best in translator.translate(texts)]


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


def first_hypotheses(translator, texts):
    """Returns of each text the best translation and its score."""
    functions = translator.functions
    source = functions.read(tf.constant(texts))
    hypotheses = functions.search_ids(source.ids)
    translations = functions.finish(hypotheses.ids, source)[:, 0].numpy()
    return [text.decode() for text in translations], hypotheses.scores[:, 0].numpy()


@pytest.mark.slow
def test_transformers_and_the_import_compute_our_log_probs(ask, vocabulary, tmp_path):
    usual = SearchConfig(
        beam_size=4, length_penalty=1.0, length_penalty_form="power", max_length=510,
        max_extra_length=510, max_source_length=511, min_length=1, early_stop="current",
    )  # fmt: skip
    models = [make_model(config) for config in BOTH.values()]
    for index, model in enumerate(models):
        export_transformers(model, vocabulary, vocabulary, tmp_path / str(index))
    is_real = TARGET != PAD_ID
    ids = {"source": SOURCE.tolist(), "target": TARGET.tolist()}
    answers = ask(*({"folder": tmp_path / str(index)} | ids for index in range(len(models))))
    for index, (answer, model, name) in enumerate(zip(answers, models, BOTH, strict=True)):
        assert answer["left_over"] == []
        again, expected = read_model(tmp_path / str(index)), log_probs_of(model)[is_real]
        for found in (np.array(answer["log_probs"]), log_probs_of(again.to_model())):
            np.testing.assert_allclose(found[is_real], expected, atol=1e-4, err_msg=name)
        assert (SearchConfig(**again.search), again.notes) == (usual, [])


@pytest.mark.slow
def test_transformers_translates_as_we_do(ask, trained, words, tmp_path):
    """Without a length penalty, and with OPUS-MT's penalty and rule for the end of a sentence."""
    generator = random.Random(3)
    texts = [" ".join(generator.choices([*words, "zebra"], k=1 + index % 4)) for index in range(24)]
    folder = export_transformers(*trained, tmp_path / "model")
    opus_search = read_model(folder).search
    assert opus_search["length_penalty"] == 1.0 and opus_search["early_stop"] == "current"
    questions, expected = [], []
    for search in (opus_search, {"length_penalty": 0.0}):
        for beam_size in (1, 4):
            changes = dict(beam_size=beam_size, max_extra_length=20, replace_unknowns=False)
            translator = Translator(*trained, SearchConfig(**search | changes))
            expected.append(first_hypotheses(translator, texts))
            options = {"num_beams": beam_size, "length_penalty": search["length_penalty"]}
            questions.append({"folder": folder, "source": texts, "search": options})
    for answer, (translations, scores) in zip(ask(*questions), expected, strict=True):
        assert (answer["left_over"], answer["texts"]) == ([], translations)
        if answer["scores"] is not None:
            np.testing.assert_allclose(answer["scores"], scores, atol=1e-4)


@pytest.mark.slow
def test_a_model_of_the_size_opus_search_translates_as_in_transformers(ask, sample_model, tmp_path):
    tokenizers, longest = sample_model("opus_tokenizers"), 40
    opus_base.write(tokenizers, tmp_path / "model")
    lines = (tokenizers / "source.jsonl").read_text(encoding="utf-8").splitlines()[:40]
    texts = [text for line in lines if len(text := json.loads(line)["text"]) < 60][:4]
    foreign = read_model(tmp_path / "model")
    limits = dict(max_length=longest, max_extra_length=longest, replace_unknowns=False)
    search = SearchConfig(**foreign.search | limits)
    translations, _ = first_hypotheses(
        Translator(foreign.to_model(), *foreign.vocabularies, search), texts
    )
    options = {"num_beams": 4, "max_length": longest + 2}  # the start and the end
    (answer,) = ask({"folder": tmp_path / "model", "source": texts, "search": options})
    assert (answer["left_over"], answer["texts"]) == ([], translations)
    lengths = map(len, foreign.vocabularies[1].encode(translations))
    assert sum(2 < length < longest for length in lengths) >= 2  # ended by themselves
