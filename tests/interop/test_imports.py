"""Imported models compute, search, export and train as in their own toolkits."""

import functools
import json
import pathlib
import shutil
from typing import NamedTuple

import numpy as np
import opus_base
import pytest
import samples
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from keras_transformer.config import BOS_ID, PAD_ID, DataConfig, SearchConfig, TrainingConfig
from keras_transformer.data import ParallelText
from keras_transformer.interop import import_run, read_model
from keras_transformer.interop.foreign import ImportOptions
from keras_transformer.interop.reading import read_pytorch
from keras_transformer.search.model_search import number_settings, search_model
from keras_transformer.text import Tokenizer
from keras_transformer.training.prepare import tokenize
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.trainer import train


class Case(NamedTuple):
    """How a sample is searched: the rule for the end, and the limits of `SearchConfig`."""

    early_stop: str
    min_length: int
    max_length: int
    max_extra_length: int
    max_source_length: int
    is_searched: bool = True


CASES = {
    "hf_marian": Case("current", 0, 0, 50, 511),
    "hf_marian_bin": Case("current", 0, 0, 50, 511),
    "hf_marian_separate": Case("current", 0, 0, 50, 511),
    "marian_post_swish_tied": Case("first", 0, 0, 50, 512),
    "marian_pre_relu": Case("first", 0, 0, 50, 512, is_searched=False),  # wrong in Marian itself
    "marian_embnorm_untied": Case("first", 0, 0, 50, 512),
    "fairseq_math": Case("first", 1, 200, 200, 1023),
    "fairseq_pre_gelu": Case("first", 1, 200, 200, 63),
    "opennmt_tf": Case("exact", 0, 250, 250, 512),
    "ct2_float32": Case("first", 1, 256, 256, 1023),
    "ct2_int8": Case("first", 1, 256, 256, 1024),
}
FAST = ("hf_marian", "fairseq_pre_gelu", "ct2_int8")


@pytest.fixture
def copy(sample_model, tmp_path):
    return lambda name: pathlib.Path(shutil.copytree(sample_model(name), tmp_path / name))


@functools.cache
def needs_torch():
    return pytest.importorskip("torch", reason="needs the package torch")


# Each sample against the answers of its own toolkit


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_sample_is_as_in_its_toolkit(name, sample_model, tmp_path):
    if name in ("hf_marian_bin", "fairseq_math", "fairseq_pre_gelu"):
        needs_torch()
    sample = samples.read_sample(sample_model, name)
    model = sample.model.to_model()
    check_tokens(sample)
    check_saved_run(sample, model, tmp_path / "run")
    if name.startswith("hf_"):  # their numbers are those of a softmax over padding, too
        model.output_bias[PAD_ID].assign(0.0)
    check_forced_targets(sample, model)
    check_search_options(sample, CASES[name])
    if CASES[name].is_searched:
        check_hypotheses(sample, model, 1e-3 if name.startswith("marian") else 1e-4)
        for beam_size in (1, 4):
            check_search(sample, model, beam_size, is_fairseq=name.startswith("fairseq"))


def check_tokens(sample):
    """Text becomes the toolkit's tokens, in Python and in a graph."""
    for side, vocabulary in zip(("source", "target"), sample.model.vocabularies, strict=True):
        texts = [entry[side] for entry in sample.sentences]
        ids = vocabulary.encode(texts)
        assert [[*row, samples.EOS] for row in ids] == sample.our_ids(side)
        assert Tokenizer(vocabulary).tokenize(tf.constant(texts)).to_list() == ids


def check_saved_run(sample, model, path):
    """The run directory of the model has its weights, vocabularies and search."""
    run = import_run(sample.model, path)
    for found, expected in zip(run.load_model().weights, model.weights, strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=expected.path)
    assert [each.fingerprint for each in run.vocabularies()] == [
        each.fingerprint for each in sample.model.vocabularies
    ]
    configs = run.configs()
    assert (configs.search, configs.origin) == (sample.model.search, sample.model.origin)
    assert configs.trained_with is None


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


def check_search_options(sample, case):
    search = SearchConfig(**sample.model.search)
    names = [name for name in Case._fields if name != "is_searched"]
    assert [getattr(search, name) for name in names] == list(case[: len(names)])


def check_hypotheses(sample, model, tolerance):
    """The toolkit's hypotheses have its scores."""
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


def check_search(sample, model, beam_size, is_fairseq):
    """The search finds the toolkit's best; fairseq ends at source + 21 tokens, others later."""
    limit = 20 + is_fairseq
    changes = {"beam_size": beam_size, "length_penalty": 0.0, "max_extra_length": limit}
    search = SearchConfig(**sample.model.search | changes)
    sentences = sample.sentences[:4] if sample.is_long else sample.sentences
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
        lambda tensors: tensors.pop("final_logits_bias"),
    ],
    ids=["lm_head", "encoder", "decoder", "no bias"],
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


def test_language_codes_are_noted(sample_model):
    notes = read_model(sample_model("hf_marian")).notes
    assert notes == ["Begin a sentence with the code of a language: >>deu<<, >>nld<<."]


@pytest.mark.slow
def test_fine_tuning_starts_at_the_toolkits_loss(sample_model, tmp_path):
    sample = samples.read_sample(sample_model, "marian_post_swish_tied")
    origin, entries = import_run(sample.model, tmp_path / "origin"), sample.sentences
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
    assert found["import_peak_mb"] < 3 * found["weights_mb"]  # of which a checkpoint takes one
    assert found["translations"] == 10
    assert found["export_mb"] < 1.6 * found["weights_mb"]


# Files that no sample has


@pytest.mark.parametrize(("rows", "unk"), [(None, "<unk>"), (1, "<oov>")])
def test_opennmt_tf_vocabulary_may_list_the_unknown_token(rows, unk, copy):
    """It follows the tokens of the file, unless the table has no row for it."""
    folder = copy("opennmt_tf")
    path = folder / "v.src"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = [*lines[:-1], "<unk>"] if rows else [*lines, "<unk>"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    model = read_model(folder, None, samples.given(folder))
    assert model.source.tokens[model.source.unk] == unk
    model.to_model()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_dictionary_may_have_the_line_ends_of_windows(end, copy):
    needs_torch()
    folder = copy("fairseq_math")
    before = read_model(folder).source
    for path in folder.glob("dict.*.txt"):
        path.write_bytes(path.read_bytes().replace(b"\n", end.encode()))
    assert read_model(folder).source == before


def join_projections(state, torch):
    """As older versions of fairseq store them."""
    model = state["model"]
    for name in [name for name in model if "_attn.q_proj." in name]:
        parts = [model.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        model[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)


def leave_task_options(state, torch):
    """A task's options are those that the model's leave out, and no others."""
    state["cfg"]["model"].source_lang = state["cfg"]["model"].target_lang = None
    task = {"source_lang": "en", "target_lang": "de", "encoder_layers": 6}
    state["cfg"]["task"] = task


def fairseq_sample(folder, change, given=None):
    """Reads a checkpoint of fairseq after a change."""
    torch, path = needs_torch(), folder / "checkpoint_last.pt"
    state = read_pytorch(path)
    change(state, torch)
    torch.save(state, path)
    return read_model(folder, None, given or samples.given(folder)).to_model()


@pytest.mark.parametrize(
    ("change", "given"), [(join_projections, None), (leave_task_options, ImportOptions())]
)
def test_other_checkpoints_of_fairseq_hold_the_same_model(change, given, copy, tmp_path):
    folder = copy("fairseq_pre_gelu")
    expected = fairseq_sample(folder, lambda state, torch: None)
    found = fairseq_sample(folder, change, given)
    for ours, theirs in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_fairseq_learned_positions_are_those_of_each_side(copy):
    tables = {
        side: np.random.default_rng(rows).normal(size=(rows, 32)).astype("f4")
        for side, rows in (("encoder", 12), ("decoder", 10))
    }

    def learn(state, torch):
        for side, table in tables.items():
            state["model"][f"{side}.embed_positions.weight"] = torch.from_numpy(table)
            setattr(state["cfg"]["model"], f"{side}_learned_pos", True)

    model = fairseq_sample(copy("fairseq_pre_gelu"), learn)
    assert (model.config.max_positions, model.config.share_positions) == (10, False)
    places = np.arange(10)
    for layer, table in ((model.positions, tables["encoder"]),
                         (model.target_positions, tables["decoder"])):  # fmt: skip
        rows = np.minimum(places + 2, len(table) - 1)
        np.testing.assert_array_equal(layer.encode(places), table[rows])


def change_npz(folder, **changes):
    """Changes arrays of a model of Marian, and returns it."""
    with np.load(folder / "model.npz") as arrays:
        tensors = dict(arrays)
    np.savez(folder / "model.npz", **tensors | changes)
    return read_model(folder)


def test_marian_learned_positions_leave_embeddings_unscaled(copy, sample_model):
    table = np.random.default_rng(1).normal(size=(9, 32)).astype("f4")
    model = change_npz(copy("marian_pre_relu"), Wpos=table).to_model()
    assert not model.config.scale_embeddings
    np.testing.assert_array_equal(model.positions.encode(np.arange(9)), table)
    # The option of Marian's command line alone makes no table: positions stay sinusoidal.
    assert read_model(sample_model("marian_embnorm_untied")).config.scale_embeddings


# Search options

MARIAN, HF = "marian_pre_relu", "hf_marian"


@pytest.mark.parametrize(
    ("name", "options", "search", "ignored"),
    [
        (HF, None, {"min_length": 0, "beam_size": 4}, ""),  # as config.json says
        (HF, {}, {"min_length": 0, "beam_size": 1}, ""),
        (HF, {"num_beams": 6}, {"beam_size": 6}, ""),
        (HF, {"min_length": 5, "max_length": 20},
         {"min_length": 4, "max_length": 18, "max_extra_length": 18}, ""),
        (HF, {"num_beams": 4, "early_stopping": False}, {"early_stop": "current"}, ""),
        (HF, {"num_beams": 4, "early_stopping": "never"}, {"early_stop": "exact"}, ""),
        (HF, {"max_new_tokens": 7, "min_new_tokens": 2}, {"min_length": 2, "max_length": 6}, ""),
        (HF, {"no_repeat_ngram_size": 3, "early_stopping": True},
         {"no_repeat_ngram": 3, "early_stop": "first"}, ""),
        (HF, {"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}, ""),
        (HF, {"repetition_penalty": 1.2, "num_beams": 4}, {"repetition_penalty": 1.2},
         "repetition_penalty"),
        (HF, {"do_sample": True, "temperature": 0.7, "top_k": 5},
         {"method": "sampling", "temperature": 0.7, "top_k": 5, "top_p": 1.0}, ""),
        (HF, {"do_sample": True, "num_beams": 4}, {"method": "sampling"},
         "num_beams 4 with do_sample"),
        (HF, {"eos_token_id": [0, 5]}, {}, "eos_token_id [0, 5], but the first"),
        (HF, {"forced_bos_token_id": 3, "typical_p": 0.9}, {},
         "forced_bos_token_id 3, typical_p 0.9"),
        (HF, {"max_time": 3.5, "use_cache": True}, {}, "max_time 3.5"),
        (HF, {"bad_words_ids": [[777], [1]]}, {"forbid_unknown": True}, ""),
        (HF, {"bad_words_ids": [[12, 1]]}, {}, "bad_words_ids [12, 1]"),
        (MARIAN, {}, {"beam_size": 12, "length_penalty": 0.0, "forbid_unknown": True}, ""),
        (MARIAN, {"normalize": 1, "beam-size": 6}, {"length_penalty": 1.0, "beam_size": 6}, ""),
        (MARIAN, {"allow-unk": "true"}, {"forbid_unknown": False}, ""),
    ],
)  # fmt: skip
def test_search_options_are_taken_over_or_listed(name, options, search, ignored, copy):
    folder = copy(name)
    if name == MARIAN:
        files = {"models": ["model.npz"], "vocabs": ["vocab.src.yml", "vocab.trg.yml"]}
        (folder / "decoder.yml").write_text(json.dumps(files | options))  # which is YAML, too
    elif options is not None:
        (folder / "generation_config.json").write_text(json.dumps(options))
    else:
        (folder / "generation_config.json").unlink()
        config = json.loads((folder / "config.json").read_text()) | {"num_beams": 4}
        (folder / "config.json").write_text(json.dumps(config))
    found = read_model(folder)
    assert found.search.items() >= search.items()
    notes = [note for note in found.notes if not note.startswith(("Begin a", "The text must"))]
    assert len(notes) == bool(ignored)
    assert all(ignored in note for note in notes)


@pytest.mark.parametrize(
    ("content", "longest"),
    [('{"model_max_length": 300}', 299), ('{"model_max_length": 1e30}', 511)],
)
def test_source_is_as_long_as_marian_tokenizer_reads(content, longest, copy):
    folder = copy("hf_marian")
    (folder / "tokenizer_config.json").write_text(content)
    assert read_model(folder).search["max_source_length"] == longest
