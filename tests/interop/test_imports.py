"""Imported models compute, search, export and train as in their own toolkits."""

import dataclasses
import functools
import importlib.util
import json
import pathlib
import shutil

import numpy as np
import opus_base
import pytest
import samples
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from keras_transformer import Translator
from keras_transformer.config import BOS_ID, PAD_ID, DataConfig, SearchConfig, TrainingConfig
from keras_transformer.data import ParallelText
from keras_transformer.inference.generate import search_translations
from keras_transformer.interop import fairseq, import_run, opennmt_tf, read_model
from keras_transformer.interop.ctranslate2 import export_ctranslate2
from keras_transformer.interop.foreign import ImportOptions
from keras_transformer.interop.reading import Tensors, read_pytorch
from keras_transformer.interop.transformers import export_transformers
from keras_transformer.interop.vocabularies import word_vocabulary
from keras_transformer.text import Tokenizer
from keras_transformer.training.prepare import tokenize
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs
from keras_transformer.training.trainer import train

SEARCHED = sorted(set(samples.NAMES) - {"marian_pre_relu"})  # whose own decoder is wrong


@pytest.fixture(scope="module")
def load(sample_model):
    """Gives a sample and the model that it becomes, read once.

    The numbers of the samples of transformers are those of a softmax over padding, too.
    """

    @functools.cache
    def load(name: str):
        sample = samples.read_sample(sample_model, name)
        model = sample.model.to_model()
        if name.startswith("hf_"):
            model.output_bias[PAD_ID].assign(0.0)
        return sample, model

    return load


@pytest.fixture
def copy(sample_model, tmp_path):
    return lambda name: pathlib.Path(shutil.copytree(sample_model(name), tmp_path / name))


def log_probs_of(model, source, target):
    """Returns the log-probabilities of each row's target tokens, EOS last."""
    labels = samples.pad(target)
    shifted = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)
    logits = model({"source": samples.pad(source), "target": shifted})
    found = -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits).numpy()
    return [row[: len(ids)] for row, ids in zip(found, target, strict=True)]


@pytest.mark.parametrize("name", samples.NAMES)
def test_forced_targets_have_the_toolkits_log_probs(name, load):
    sample, model = load(name)
    found = log_probs_of(model, sample.our_ids("source"), sample.our_ids("target"))
    for row, entry in zip(found, sample.sentences, strict=True):
        np.testing.assert_allclose(row, entry["target_log_probs"], atol=2e-5)


@pytest.mark.parametrize("name", samples.NAMES)
def test_text_becomes_the_toolkits_tokens(name, load):
    sample, _ = load(name)
    for side, vocabulary in zip(("source", "target"), sample.model.vocabularies, strict=True):
        texts = [entry[side] for entry in sample.sentences]
        found = vocabulary.encode(texts)
        assert [[*ids, samples.EOS] for ids in found] == sample.our_ids(side)
        assert Tokenizer(vocabulary).tokenize(tf.constant(texts)).to_list() == found


@pytest.mark.parametrize("name", SEARCHED)
def test_the_toolkits_hypotheses_have_its_scores(name, load):
    sample, model = load(name)
    pairs = [
        (source, each)
        for source, entry in zip(sample.our_ids("source"), sample.sentences, strict=True)
        for each in [entry["greedy"], *entry["beam4"]]
        if not each.get("inconsistent")
    ]
    labels = [sample.ours(each["ids"], "target") for _, each in pairs]
    found = log_probs_of(model, [source for source, _ in pairs], labels)
    for row, (_, each) in zip(found, pairs, strict=True):
        # Of a hypothesis that may have been cut, the score may be without EOS.
        misses = [abs(each["score"] - row.sum()), abs(each["score"] - row[:-1].sum())]
        assert min(misses) < (1e-3 if name.startswith("marian") else 1e-4)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize(
    "name",
    [name if name in ("hf_marian", "fairseq_math") else pytest.param(name, marks=pytest.mark.slow)
     for name in SEARCHED],
)  # fmt: skip
def test_search_as_imported_finds_the_toolkits_best(name, beam_size, load):
    sample, model = load(name)
    is_fairseq = name.startswith("fairseq")  # ends at source + 21 tokens, others later
    changes = {"beam_size": beam_size, "length_penalty": 0.0, "max_extra_length": 20 + is_fairseq}
    run = RunConfigs(model.config, None, TrainingConfig(), search=sample.model.search)
    search = run.search_config(changes)
    sentences = sample.sentences[: 4 if name == "fairseq_math" else None]  # long ones
    source = samples.pad(sample.our_ids("source")[: len(sentences)])
    vocabulary = sample.model.vocabularies[1]
    run_search = tf.function(
        lambda ids: search_translations(model, ids, search, vocabulary), autograph=False
    )
    found = run_search(tf.constant(source, tf.int32))
    equal = finished = 0
    for row, ids, value, entry in zip(
        source, found.ids[:, 0], found.scores[:, 0], sentences, strict=True
    ):
        best = entry["greedy"] if beam_size == 1 else entry["beam4"][0]
        ours = [id_ for id_ in ids.numpy().tolist() if id_ != PAD_ID]
        theirs = sample.ours(best["ids"], "target")
        if not is_fairseq and len(theirs) > min(np.count_nonzero(row) + 19, 32):
            continue  # one of the two limits cut it
        finished += 1
        equal += ours == theirs
        # Theirs may have stopped early, or considered other candidates for the end.
        assert ours == theirs or (beam_size > 1 and float(value) >= best["score"] - 2e-3)
    assert finished >= 4
    assert equal >= 0.9 * finished


@pytest.mark.parametrize(
    ("name", "export"),
    [*((name, export_transformers) for name in ("hf_marian", "hf_marian_bin",
                                                "hf_marian_separate")),
     *((name, export_ctranslate2) for name in ("marian_post_swish_tied", "marian_embnorm_untied"))],
)  # fmt: skip
def test_exports_are_imported_unchanged(name, export, load, tmp_path):
    sample, _ = load(name)
    first = sample.model.to_model()
    config = first.config
    if export is export_ctranslate2:
        pytest.importorskip("ctranslate2", reason="needs the package ctranslate2")
        config = config.replace(dropout=0.1)  # not in its format
    again = read_model(export(first, *sample.model.vocabularies, tmp_path / "exported"))
    assert again.config == config
    for found, expected in zip(again.to_model().weights, first.weights, strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=expected.path)
    for found, expected, side in zip(
        again.vocabularies, sample.model.vocabularies, ("source", "target"), strict=True
    ):
        texts = [entry[side] for entry in sample.sentences] + [">>deu<< 漢 </s>"]
        assert found.encode(texts) == expected.encode(texts)
        assert found.pieces(range(found.size)) == expected.pieces(range(expected.size))


# The softmax of Marian has no padding token; after the conversion to transformers its logit is 0.


def rewrite_marian(folder, *, generation=None, change=None):
    """Changes the generation options and the tensors of a model of transformers."""
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    if change is not None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return read_model(folder)


def test_imported_marian_model_gives_no_probability_to_padding(sample_model):
    """The sample of CTranslate2 is the same model, and its converter drops padding."""
    expected = samples.read_sample(sample_model, "ct2_float32")
    sample = samples.read_sample(sample_model, "hf_marian")
    found = log_probs_of(
        sample.model.to_model(), sample.our_ids("source"), sample.our_ids("target")
    )
    for row, entry in zip(found, expected.sentences, strict=True):
        np.testing.assert_allclose(row, entry["target_log_probs"], atol=2e-5)


@pytest.mark.slow
def test_logit_of_padding_changes_no_translation_score_or_export(copy, tmp_path):
    def translate(model):
        translator = Translator(
            model.to_model(), *model.vocabularies, SearchConfig(**model.search, max_extra_length=9)
        )
        texts = ["A man in a blue shirt.", ">>deu<< Two dogs play in the snow.", "The girl sings"]
        translations = translator.translate(texts)
        scores = translator.score(texts, [best.text for best in translations])
        return (
            [best.text for best in translations],
            np.array([[best.score, sum(pair.token_scores)]
                      for best, pair in zip(translations, scores, strict=True)]),
        )  # fmt: skip

    def lower_all_but_padding(tensors):
        tensors["final_logits_bias"][:, :777] -= 10

    folder = copy("hf_marian")
    texts, scores = translate(read_model(folder))
    generation = {
        "decoder_start_token_id": 777,
        "bad_words_ids": [[777]],
        "renormalize_logits": True,
    }
    model = rewrite_marian(folder, generation=generation, change=lower_all_but_padding)
    folders = [folder, export_transformers(model.to_model(), *model.vocabularies, tmp_path / "hf")]
    written = json.loads((folders[1] / "generation_config.json").read_text())
    assert written["renormalize_logits"] is True
    if importlib.util.find_spec("ctranslate2") is not None:
        export = export_ctranslate2(model.to_model(), *model.vocabularies, tmp_path / "ct2")
        folders.append(export)
    for each in folders:
        again = dataclasses.replace(read_model(each), search=model.search)
        found, found_scores = translate(again)
        assert found == texts
        np.testing.assert_allclose(found_scores, scores, atol=1e-5)


def rename(tensors, names):
    for old, new in names.items():
        tensors[new] = tensors.pop(old)


SHARED = "model.shared.weight"


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: rename(tensors, {SHARED: "lm_head.weight"}),
        lambda tensors: rename(tensors, {SHARED: "model.encoder.embed_tokens.weight"}),
        lambda tensors: rename(tensors, {SHARED: "model.decoder.embed_tokens.weight"}),
        lambda tensors: (
            tensors.pop("final_logits_bias"),
            rename(tensors, {name: name.removeprefix("model.") for name in [*tensors]}),
        ),
    ],
    ids=["lm_head", "encoder", "decoder", "base model"],
)
def test_tables_are_found_under_each_name_of_transformers(change, copy, tmp_path):
    shutil.copytree(copy("hf_marian"), tmp_path / "without_bias")
    expected = rewrite_marian(
        tmp_path / "without_bias", change=lambda tensors: tensors["final_logits_bias"].fill(0)
    )
    found = rewrite_marian(
        tmp_path / "hf_marian",
        change=lambda tensors: (tensors["final_logits_bias"].fill(0), change(tensors)),
    )
    assert (found.config, found.notes) == (expected.config, expected.notes)
    for weight, other in zip(found.to_model().weights, expected.to_model().weights, strict=True):
        np.testing.assert_array_equal(weight, other, err_msg=other.path)


@pytest.mark.parametrize("row", [0.0, 0.1])
def test_table_may_have_more_rows_than_the_vocabulary_has_tokens(row, copy):
    def add_rows(tensors):
        table, bias = tensors["model.shared.weight"], tensors["final_logits_bias"]
        tensors["model.shared.weight"] = np.pad(table, [(0, 6), (0, 0)], constant_values=row)
        tensors["final_logits_bias"] = np.pad(bias, [(0, 0), (0, 6)])

    folder = copy("hf_marian")
    old = read_model(folder)
    before, new = old.to_model(), rewrite_marian(folder, change=add_rows)
    found = new.to_model()
    size = before.config.vocabulary_size
    assert found.config.vocabulary_size == size + 6
    np.testing.assert_array_equal(
        found.source_embedding.table.numpy()[:size], before.source_embedding.table
    )
    # Rows of zeros were never trained; others count in the softmax of transformers as well.
    assert set(found.output_bias.numpy()[size:]) == {0.0 if row else -100.0}
    texts = ["Two dogs"]
    assert new.vocabularies[0].encode(texts) == old.vocabularies[0].encode(texts)


@pytest.mark.parametrize(
    ("generation", "is_row_zero", "is_used"),
    [({}, True, False), ({}, False, True), ({"renormalize_logits": True}, False, False),
     ({"bad_words_ids": [[1], [777]]}, False, False), ({"bad_words_ids": [[1]]}, False, True)],
)  # fmt: skip
def test_padding_is_in_the_softmax_only_of_models_trained_with_it(
    generation, is_row_zero, is_used, copy
):
    def train_padding(tensors):
        tensors["model.shared.weight"][777] = 0.0 if is_row_zero else 0.1

    generation = {"decoder_start_token_id": 777} | generation
    model = rewrite_marian(copy("hf_marian"), generation=generation, change=train_padding)
    assert model.to_model().output_bias[PAD_ID].numpy() == (0.0 if is_used else -100.0)


def test_language_codes_are_noted(load):
    assert load("hf_marian")[0].model.notes == (
        ["Begin a sentence with the code of a language: >>deu<<, >>nld<<."]
    )


@pytest.mark.slow
def test_fine_tuning_starts_at_the_toolkits_loss(sample_model, tmp_path):
    sample = samples.read_sample(sample_model, "marian_post_swish_tied")
    origin, entries = import_run(sample.model, tmp_path / "origin", {}), sample.sentences
    text = ParallelText([each["source"] for each in entries], [each["target"] for each in entries])
    data = DataConfig(train_source="oracle", train_target="oracle")
    training = TrainingConfig(
        train_steps=200, checkpoint_steps=200, batch_tokens=1000, learning_rate=1e-3,
        warmup_steps=20, label_smoothing=0.0, validation_time_share=0.0,
    )  # fmt: skip
    configs = origin.configs()._replace(data=data, training=training)
    run, vocabularies = RunDirectory(tmp_path / "run"), origin.vocabularies()
    run.write(configs, *vocabularies, origin.load_model())
    train(run, tokenize(text, vocabularies), text, show=False)
    first, *_, last = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
    scored = np.concatenate([each["target_log_probs"] for each in entries])
    assert first["step"] == 0
    assert first["val_loss"] == pytest.approx(-scored.mean(), abs=2e-5)
    assert last["val_loss"] < first["val_loss"] - 0.1


@pytest.mark.slow
def test_model_of_opus_size_is_imported_translates_and_is_exported(
    sample_model, tmp_path, run_python
):
    tokenizers = sample_model("opus_tokenizers")
    found = json.loads(run_python(opus_base.__file__, tokenizers, tmp_path, 10).splitlines()[-1])
    assert 290 < found["weights_mb"] < 300
    assert found["import_peak_mb"] < 3 * found["weights_mb"]
    assert found["translations"] == 10
    assert found["export_mb"] < 1.6 * found["weights_mb"]


# Options of toolkits that no sample has


@pytest.mark.parametrize("side", ["features", "labels"])
def test_opennmt_tf_shared_table_is_stored_once(side, sample_model, monkeypatch):
    read, folder = opennmt_tf._read_checkpoint, sample_model("opennmt_tf")
    table = "model/examples_inputter/{}_inputter/embedding"
    absent = [table.format(each) for each in ("features", "labels")]
    absent.append("model/decoder/output_layer/kernel")

    def read_shared(index):
        tensors = read(index)
        kept = {name: tensors.get(name) for name in tensors if name not in absent}
        kept[table.format(side)] = tensors.get(table.format("labels"))
        return Tensors(kept, str(index))

    expected = read_model(folder, None, samples.given(folder)).target_table
    monkeypatch.setattr(opennmt_tf, "_read_checkpoint", read_shared)
    one = ImportOptions(vocabularies=(folder / "v.tgt", folder / "v.tgt"), num_heads=4)
    found = read_model(folder, None, one)
    assert found.config.share_embeddings == "all"
    np.testing.assert_array_equal(found.target_table, expected)
    found.to_model()


@pytest.mark.parametrize(("rows", "unk"), [(5, 3), (6, 5)])
def test_opennmt_tf_vocabulary_may_list_the_unknown_token(rows, unk, tmp_path):
    tokens = ["<blank>", "<s>", "</s>", "<unk>", "a"]
    (tmp_path / "v").write_text("\n".join(tokens) + "\n")
    found = opennmt_tf._read_vocabulary(tmp_path / "v", rows)
    assert (len(found.tokens), found.unk) == (rows, unk)
    word_vocabulary(found, "v")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_dictionary_may_have_the_line_ends_of_windows(tmp_path, end):
    (tmp_path / "dict.txt").write_bytes(f"ein 7{end}Hund@@ 3{end}".encode())
    symbols = fairseq._read_dictionary(tmp_path / "dict.txt")
    assert list(symbols.tokens)[-2:] == ["ein", "Hund@@"]


def fairseq_sample(sample_model, tmp_path, change):
    """Reads a sample whose checkpoint is changed."""
    torch = pytest.importorskip("torch")
    folder = pathlib.Path(shutil.copytree(sample_model("fairseq_pre_gelu"), tmp_path / "changed"))
    path = folder / "checkpoint_last.pt"
    state = read_pytorch(path)
    change(state, torch)
    torch.save(state, path)
    given = ImportOptions(vocabularies=(folder / "dict.en.txt", folder / "dict.de.txt"))
    return read_model(folder, None, given).to_model()


def test_fairseq_joined_projections_are_split(sample_model, tmp_path):
    def join(state, torch):
        model = state["model"]
        for name in [name for name in model if "_attn.q_proj." in name]:
            parts = [model.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
            model[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)

    expected = fairseq_sample(sample_model, tmp_path / "same", lambda state, torch: None)
    found = fairseq_sample(sample_model, tmp_path, join)
    for ours, theirs in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_fairseq_learned_positions_are_those_of_each_side(sample_model, tmp_path):
    sizes = {"encoder": 12, "decoder": 10}
    tables = {side: np.random.default_rng(rows).normal(size=(rows, 32)).astype("f4")
              for side, rows in sizes.items()}  # fmt: skip

    def learn(state, torch):
        for side, table in tables.items():
            state["model"][f"{side}.embed_positions.weight"] = torch.from_numpy(table)
            setattr(state["cfg"]["model"], f"{side}_learned_pos", True)

    model = fairseq_sample(sample_model, tmp_path, learn)
    assert (model.config.max_positions, model.config.share_positions) == (10, False)
    places = np.arange(10)
    for layer, table in ((model.positions, tables["encoder"]),
                         (model.target_positions, tables["decoder"])):  # fmt: skip
        rows = np.minimum(places + 2, len(table) - 1)
        np.testing.assert_array_equal(layer.encode(places), table[rows])


def test_marian_learned_positions_leave_embeddings_unscaled(copy):
    folder = copy("marian_pre_relu")
    with np.load(folder / "model.npz") as arrays:
        tensors = dict(arrays)
    table = np.random.default_rng(1).normal(size=(9, 32)).astype("f4")
    np.savez(folder / "model.npz", **tensors, Wpos=table)
    model = read_model(folder).to_model()
    ids = np.array([[4, 5, 6, 3]])
    expected = model.source_embedding.table.numpy()[ids] + table[:4]
    np.testing.assert_allclose(model._embed("source", ids), expected, atol=1e-6)
    # The option of Marian's command line alone makes no table: positions stay sinusoidal.
    assert read_model(copy("marian_embnorm_untied")).config.scale_embeddings


def test_marian_accepts_the_special_tokens_of_nematus(copy):
    folder = copy("marian_pre_relu")
    expected, path = read_model(folder), folder / "vocab.src.yml"
    text = path.read_text().replace("</s>: 0", "eos: 0").replace("<unk>: 1", "UNK: 1")
    path.write_text(text)
    assert read_model(folder).source == expected.source


@pytest.mark.parametrize("rows", [590, 605])
def test_marian_table_may_have_more_or_fewer_rows_than_the_vocabulary(rows, copy):
    """As trained with --dim-vocabs."""
    folder = copy("marian_pre_relu")
    with np.load(folder / "model.npz") as arrays:
        tensors = dict(arrays)
    table = np.resize(tensors["encoder_Wemb"], (rows, 32))
    np.savez(folder / "model.npz", **tensors | {"encoder_Wemb": table})
    found = read_model(folder)
    source, _ = found.vocabularies
    assert source.size == rows + 2  # PAD and BOS besides
    (last,) = source.encode(["flower goggles"])  # of 600 tokens the 596th and the last
    assert last == ([597, 601] if rows > 600 else [1, 1])
    model = found.to_model()
    np.testing.assert_array_equal(model.source_embedding.table.numpy()[-1], table[-1])
    assert found.notes[0].startswith(f"The model has {rows} tokens and vocab.src.yml 600: right")


@pytest.mark.parametrize(
    ("generation", "search", "ignored"),
    [
        (None, {"min_length": 0, "beam_size": 4}, ""),  # as config.json says
        ({}, {"min_length": 0, "beam_size": 1}, ""),
        ({"num_beams": 6}, {"beam_size": 6}, ""),
        ({"min_length": 5, "max_length": 20},
         {"min_length": 4, "max_length": 18, "max_extra_length": 18}, ""),
        ({"num_beams": 4}, {"early_stop": "current"}, ""),
        ({"num_beams": 4, "early_stopping": False}, {"early_stop": "current"}, ""),
        ({"num_beams": 4, "early_stopping": "never"}, {"early_stop": "exact"}, ""),
        ({"max_new_tokens": 7, "min_new_tokens": 2}, {"min_length": 2, "max_length": 6}, ""),
        ({"no_repeat_ngram_size": 3, "repetition_penalty": 1.2, "early_stopping": True},
         {"no_repeat_ngram": 3, "repetition_penalty": 1.2, "early_stop": "first"}, ""),
        ({"do_sample": True, "temperature": 0.7, "top_k": 5},
         {"method": "sampling", "temperature": 0.7, "top_k": 5, "top_p": 1.0}, ""),
        ({"forced_bos_token_id": 3, "typical_p": 0.9}, {}, "forced_bos_token_id 3, typical_p 0.9"),
        ({"watermarking_config": {"bias": 2}, "max_time": 3.5, "use_cache": True}, {},
         "max_time 3.5, watermarking_config {'bias': 2}"),
        ({"bad_words_ids": [[719], [1]]}, {"forbid_unknown": True}, ""),
        ({"bad_words_ids": [[644]]}, {"banned_phrases": ("Mann",)}, ""),
        ({"bad_words_ids": [[12, 1]]}, {}, "bad_words_ids [12, 1]"),
        ({"bad_words_ids": [[[1]]]}, {}, "bad_words_ids [[1]]"),
    ],
)  # fmt: skip
def test_generation_options_are_taken_over_or_listed(generation, search, ignored, copy):
    folder = copy("hf_marian_bin")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    found = read_model(folder)
    assert found.search.items() >= search.items()
    start = "Search options that this package does not have: "
    assert [note for note in found.notes if note.startswith(start)] == (
        [f"{start}{ignored}."] if ignored else []
    )


@pytest.mark.parametrize(
    ("name", "early_stop", "lengths"),
    [("marian_post_swish_tied", "first", (0, 0, 50, 512)),
     ("fairseq_math", "first", (1, 200, 200, 1023)),
     ("opennmt_tf", "exact", (0, 250, 250, 512)), ("ct2_int8", "first", (1, 256, 256, 1024)),
     ("ct2_float32", "first", (1, 256, 256, 1023)), ("hf_marian", "current", (0, 0, 50, 511))],
)  # fmt: skip
def test_search_ends_as_in_the_toolkit(name, early_stop, lengths, load):
    search = SearchConfig(**load(name)[0].model.search)
    assert search.early_stop == early_stop
    names = ("min_length", "max_length", "max_extra_length", "max_source_length")
    assert tuple(getattr(search, name) for name in names) == lengths


@pytest.mark.parametrize(
    ("content", "longest"),
    [('{"model_max_length": 300}', 299), ('{"model_max_length": 1e30}', 511)],
)
def test_source_is_as_long_as_marian_tokenizer_reads(content, longest, copy):
    folder = copy("hf_marian")
    (folder / "tokenizer_config.json").write_text(content)
    assert read_model(folder).search["max_source_length"] == longest


def test_fairseq_task_options_do_not_replace_model_options(tmp_path):
    model = {"_name": "transformer_iwslt_de_en", "encoder_layers": 2, "source_lang": None}
    task = {"_name": "translation", "source_lang": "de", "encoder_layers": 6}
    state = {"cfg": {"model": model, "task": task}}
    options = fairseq._training_options(state, tmp_path / "checkpoint_best.pt")
    assert options.get("_name", str, "") == "transformer_iwslt_de_en"
    assert options.get("source_lang", str, "") == "de"
    assert options.get("encoder_layers", int, 0) == 2
