"""Imported models compute, search, export and train as in their own toolkits."""

import json

import numpy as np
import pytest
import samples
import tensorflow as tf
from samples import with_state, with_tensors, with_values

from keras_transformer.config import BOS_ID, PAD_ID, DataConfig, SearchConfig, TrainingConfig
from keras_transformer.data.corpus import ParallelText
from keras_transformer.interop import import_run, read_model
from keras_transformer.interop.foreign import ImportOptions
from keras_transformer.interop.transformers import export_transformers
from keras_transformer.search.model_search import number_settings, search_model
from keras_transformer.text import Tokenizer
from keras_transformer.training.prepare import tokenize
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.trainer import train

FAST = ("hf_marian", "fairseq_pre_gelu", "ct2_int8")


# Each sample against the outputs of its own toolkit


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
     for name in samples.SAMPLES],
)  # fmt: skip
def test_sample_is_as_in_its_toolkit(name, sample_model, tmp_path):
    check_format(name, sample_model, tmp_path)


def check_format(name, sample_model, tmp_path):
    if name in samples.NEEDS_TORCH:
        pytest.importorskip("torch", reason="needs the package torch")
    sample = samples.read_sample(sample_model, name)
    _, expected_search, toolkit = samples.SAMPLES[name]
    search = SearchConfig(**sample.model.search)
    assert [getattr(search, field) for field in samples.Search._fields] == list(expected_search)
    model = sample.model.to_model()
    check_tokens(sample)
    check_run(sample, model, tmp_path / "run")
    if toolkit is not None:
        check_export(sample, model, toolkit, tmp_path / "exported")
    if name.startswith("hf_"):  # their numbers are those of a softmax over padding, too
        model.output_bias[PAD_ID].assign(0.0)
    check_forced_targets(sample, model)
    if name != "marian_pre_relu":  # whose search is wrong in Marian itself
        check_hypotheses(sample, model)
        for beam_size in (1, 4):
            check_search(sample, model, beam_size)


def check_tokens(sample):
    """Text becomes the toolkit's tokens, in Python and in a graph."""
    for side, vocabulary in zip(("source", "target"), sample.model.vocabularies, strict=True):
        texts = [entry[side] for entry in sample.sentences]
        ids = vocabulary.encode(texts)
        assert [[*row, samples.EOS] for row in ids] == sample.our_ids(side)
        assert Tokenizer(vocabulary).tokenize(tf.constant(texts)).to_list() == ids


def check_run(sample, model, path):
    """The run directory of the model has its weights, vocabularies and search."""
    run = import_run(sample.model, path)
    samples.assert_equal_weights(run.load_model(), model)
    assert [each.fingerprint for each in run.vocabularies()] == [
        each.fingerprint for each in sample.model.vocabularies
    ]
    configs = run.configs()
    assert (configs.search, configs.origin) == (sample.model.search, sample.model.origin)
    assert configs.training_options is None


def check_export(sample, model, toolkit, path):
    """The import of an export of the model is the same model."""
    if toolkit == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="needs the package ctranslate2")
        from keras_transformer.interop.ctranslate2 import export_ctranslate2

        again = read_model(export_ctranslate2(model, *sample.model.vocabularies, path))
    else:
        again = read_model(export_transformers(model, *sample.model.vocabularies, path))
        # The softmax of an imported model has no padding.
        written = json.loads((path / "generation_config.json").read_text())
        assert written["renormalize_logits"] is True
    samples.assert_equal_weights(again.to_model(), model)
    for found, expected, side in zip(
        again.vocabularies, sample.model.vocabularies, ("source", "target"), strict=True
    ):
        texts = [entry[side] for entry in sample.sentences] + [">>deu<< 漢 </s>"]
        assert found.encode(texts) == expected.encode(texts)
        assert found.pieces(range(found.size)) == expected.pieces(range(expected.size))


def log_probs_of(model, source, target):
    """Returns the log-probabilities of each row's target tokens, EOS last."""
    labels = samples.pad(target)
    shifted = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)
    logits = model({"source": samples.pad(source), "target": shifted})
    found = -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits).numpy()
    return [row[: len(ids)] for row, ids in zip(found, target, strict=True)]


def check_forced_targets(sample, model):
    found = log_probs_of(model, sample.our_ids("source"), sample.our_ids("target"))
    for row, entry in zip(found, sample.sentences, strict=True):
        np.testing.assert_allclose(row, entry["target_log_probs"], atol=2e-5)


def check_hypotheses(sample, model):
    """The toolkit's hypotheses have its scores."""
    tolerance = 1e-3 if sample.name.startswith("marian") else 1e-4
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
        assert min(misses) < tolerance


def check_search(sample, model, beam_size):
    """The search finds the toolkit's best; fairseq ends at source + 21 tokens, others later."""
    is_fairseq = sample.name.startswith("fairseq")
    limit = 20 + is_fairseq
    changes = {"beam_size": beam_size, "length_penalty": 0.0, "max_extra_length": limit}
    search = SearchConfig(**sample.model.search | changes)
    sentences = sample.sentences[:4] if sample.name == "fairseq_math" else sample.sentences
    source = samples.pad(sample.our_ids("source")[: len(sentences)])
    run_search = tf.function(
        lambda ids: search_model(model, ids, search, number_settings(search)), autograph=False
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


# The softmax of Marian has no padding token; after the conversion to transformers its logit is 0.


def test_imported_marian_model_gives_no_probability_to_padding(sample_model):
    """The sample of CTranslate2 is the same model, and its converter drops padding."""
    expected = samples.read_sample(sample_model, "ct2_float32")
    sample = samples.read_sample(sample_model, "hf_marian")
    check_forced_targets(sample._replace(sentences=expected.sentences), sample.model.to_model())


@pytest.mark.parametrize(
    ("generation", "is_row_zero", "is_used"),
    [({}, True, False), ({}, False, True), ({"renormalize_logits": True}, False, False),
     ({"bad_words_ids": [[1], [777]]}, False, False), ({"bad_words_ids": [[1]]}, False, True)],
)  # fmt: skip
def test_padding_is_in_the_softmax_only_of_models_trained_with_it(
    generation, is_row_zero, is_used, copy
):
    folder = copy("hf_marian")
    with_tensors(lambda tensors: tensors[SHARED][777].fill(0.0 if is_row_zero else 0.1))(folder)
    generation = {"decoder_start_token_id": 777} | generation
    (folder / "generation_config.json").write_text(json.dumps(generation))
    model = read_model(folder).to_model()
    assert model.output_bias[PAD_ID].numpy() == (0.0 if is_used else -100.0)


# Files that no sample has: each is a change that leaves the model as it is


def with_table_named(name):
    return with_tensors(lambda tensors: tensors.update({name: tensors.pop(SHARED)}))


def join_projections(state):
    """As older versions of fairseq store them."""
    import torch

    model = state["model"]
    for name in [name for name in model if "_attn.q_proj." in name]:
        parts = [model.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        model[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)


def leave_task_options(state):
    """A task's options are those that the model's leave out, and no others."""
    state["cfg"]["model"].source_lang = state["cfg"]["model"].target_lang = None
    task = {"source_lang": "en", "target_lang": "de", "encoder_layers": 6}
    state["cfg"]["task"] = task


def with_lines_of_windows(folder):
    for path in folder.glob("dict.*.txt"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


SHARED = "model.shared.weight"
VARIANTS = {
    "table of the projection": ("hf_marian", with_table_named("lm_head.weight")),
    "table of the encoder": ("hf_marian", with_table_named("model.encoder.embed_tokens.weight")),
    "table of the decoder": ("hf_marian", with_table_named("model.decoder.embed_tokens.weight")),
    "line ends of Windows": ("fairseq_pre_gelu", with_lines_of_windows),
    "one matrix of query, key and value": ("fairseq_pre_gelu", with_state(join_projections)),
    "options of the task": ("fairseq_pre_gelu", with_state(leave_task_options)),
    "older checkpoint": ("opennmt_tf", lambda folder: (folder / "ckpt-90.index").touch()),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_of_the_files_is_the_same_model(variant, copy):
    name, change = VARIANTS[variant]
    folder = copy(name)
    options = samples.import_options(folder)
    expected = read_model(folder, None, options)
    change(folder)
    if change is VARIANTS["options of the task"][1]:
        options = ImportOptions()
    found = read_model(folder, None, options)
    assert (found.source, found.target) == (expected.source, expected.target)
    samples.assert_equal_weights(found.to_model(), expected.to_model())


def test_bias_of_the_logits_may_be_missing(copy):
    folder = copy("hf_marian")
    with_tensors(lambda tensors: tensors.pop("final_logits_bias"))(folder)
    bias = read_model(folder).to_model().output_bias.numpy()
    assert set(bias[BOS_ID + 1 :]) == {0.0}


@pytest.mark.parametrize(("is_full", "unk"), [(False, "<unk>"), (True, "<oov>")])
def test_opennmt_tf_vocabulary_may_list_the_unknown_token(is_full, unk, copy):
    """It follows the tokens of the file, unless the table has no row for it."""
    folder = copy("opennmt_tf")
    path = folder / "v.src"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = [*lines[:-1], "<unk>"] if is_full else [*lines, "<unk>"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    model = read_model(folder, None, samples.import_options(folder))
    assert model.source.tokens[model.source.unk] == unk
    model.to_model()


# Search options and notes

MARIAN, HF = "marian_pre_relu", "hf_marian"


# Search options in the files, the fields that they become, and the beginning of the note on others.
SEARCH = [
    (HF, None, {"min_length": 0, "beam_size": 4}, ""),  # as config.json says
    (HF, {}, {"min_length": 0, "beam_size": 1}, ""),
    (HF, {"min_length": 5, "max_length": 20},
     {"min_length": 4, "max_length": 18, "max_extra_length": 18}, ""),
    (HF, {"num_beams": 6, "early_stopping": False, "do_sample": False, "num_beam_groups": None},
     {"beam_size": 6, "early_stop": "current"}, ""),
    (HF, {"early_stopping": "never"}, {"early_stop": "exact"}, ""),
    (HF, {"max_new_tokens": 7, "min_new_tokens": 2}, {"min_length": 2, "max_length": 6}, ""),
    (HF, {"no_repeat_ngram_size": 3, "repetition_penalty": 1.2, "early_stopping": True},
     {"no_repeat_ngram": 3, "repetition_penalty": 1.2, "early_stop": "first"}, ""),
    (HF, {"repetition_penalty": 1.2, "num_beams": 4}, {}, "repetition_penalty changes logits"),
    (HF, {"bad_words_ids": [[777], [1]]}, {"forbid_unknown": True}, ""),
    (HF, {"bad_words_ids": [[777], [9, 8]]}, {}, "bad_words_ids [[9, 8]]"),
    (HF, {"do_sample": True}, {}, "do_sample True"),
    (HF, {"eos_token_id": [5, 0]}, {}, "eos_token_id [5, 0], but 0"),
    (HF, {"eos_token_id": 5}, {}, "eos_token_id 5, but 0"),
    (HF, {"eos_token_id": [0]}, {}, ""),
    (HF, {"diversity_penalty": 0.5}, {}, "diversity_penalty 0.5"),
    (MARIAN, {}, {"beam_size": 12, "length_penalty": 0.0, "forbid_unknown": True}, ""),
    (MARIAN, {"normalize": 1, "beam-size": 6, "word-penalty": 0},
     {"length_penalty": 1.0, "beam_size": 6}, ""),
    (MARIAN, {"allow-unk": "true"}, {"forbid_unknown": False}, ""),
    (MARIAN, {"allow-unk": "Yes"}, {"forbid_unknown": False}, ""),
    (MARIAN, {"output-sampling": ["full"], "max-length-factor": 2}, {},
     "max-length-factor 2, output-sampling"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "search", "noted"), SEARCH)
def test_search_options_are_taken_over_or_noted(name, options, search, noted, copy):
    folder = copy(name)
    if name == MARIAN:
        files = {"models": ["model.npz"], "vocabs": ["vocab.src.yml", "vocab.trg.yml"]}
        (folder / "decoder.yml").write_text(json.dumps(files | options))  # which is YAML, too
    elif options is not None:
        (folder / "generation_config.json").write_text(json.dumps(options))
    else:
        (folder / "generation_config.json").unlink()
        with_values("config.json", num_beams=4)(folder)
    model = read_model(folder)
    assert model.search.items() >= search.items()
    notes = [each for each in model.notes if not each.startswith(("Begin a sentence", "The text"))]
    assert [noted in note for note in notes] == [True] * bool(noted)


CODES = "Begin a sentence with the code of a language: >>deu<<, >>nld<<."


def test_language_codes_are_noted_in_any_format(sample_model):
    assert samples.read_sample(sample_model, "ct2_float32").model.notes == [CODES]


def test_language_codes_are_noted_and_the_start_token_is_read(copy):
    folder = copy("hf_marian")
    with_values("generation_config.json", decoder_start_token_id=12)(folder)
    model = read_model(folder)
    assert model.notes == [CODES]
    assert (model.source.start, model.source.order[:4]) == (12, [777, 1, 12, 0])


# Whole runs


@pytest.mark.slow
def test_fine_tuning_starts_at_the_toolkits_loss(sample_model, tmp_path):
    sample = samples.read_sample(sample_model, "marian_post_swish_tied")
    origin, entries = import_run(sample.model, tmp_path / "origin"), sample.sentences
    text = ParallelText([each["source"] for each in entries], [each["target"] for each in entries])
    data = DataConfig(train_source="oracle", train_target="oracle")
    training = TrainingConfig(
        train_steps=60, checkpoint_steps=60, batch_tokens=1000, learning_rate=2e-3,
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
