"""What cannot be imported is refused in one line, and nothing is left of it."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_transformer.errors import InputError
from keras_transformer.interop import ctranslate2, fairseq, marian, transformers
from keras_transformer.interop.marian import model_fields
from keras_transformer.interop.reading import Options, Tensors
from keras_transformer.interop.vocabularies import Symbols, word_vocabulary


@pytest.fixture
def copy(sample_model, tmp_path):
    """Gives a copy of a sample that a test may change."""

    def copy(name):
        folder = shutil.copytree(sample_model(name), tmp_path / name)
        (folder / "oracle.json").unlink()
        return folder

    return copy


# Changes of a sample's folder


def without(file):
    return lambda folder: (folder / file).unlink()


def with_text(file, text):
    return lambda folder: (folder / file).write_text(text)


def cut(file):
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-100])


def renamed(file, to):
    return lambda folder: (folder / file).rename(folder / to)


def with_values(file, **changes):
    def change(folder):
        values = json.loads((folder / file).read_text(encoding="utf-8")) | changes
        (folder / file).write_text(json.dumps(values), encoding="utf-8")

    return change


def with_tensors(**changes):
    """Replaces tensors of a sample of transformers, or removes those that are None."""

    def change(folder):
        tensors = load_file(folder / "model.safetensors") | changes
        kept = {name: value for name, value in tensors.items() if value is not None}
        save_file(kept, folder / "model.safetensors")

    return change


_NORM = "model.encoder.layers.0.final_layer_norm.weight"
_VOCABULARIES = "--source_vocabulary={folder}/v.src --target_vocabulary={folder}/v.tgt"
_OPENNMT_TF = f"{_VOCABULARIES} --num_heads=4"
# Of a sample: what is done to its folder, what the line says, and the flags that it needs.
CASES = {
    "weights cut short": ("hf_marian", cut("model.safetensors"), "is not a safetensors file"),
    "arrays cut short": ("marian_pre_relu", cut("model.npz"), "is not an .npz file"),
    "a checkpoint without its data": (
        "opennmt_tf", without("ckpt-130.data-00000-of-00001"), "is missing; give", _OPENNMT_TF),
    "foreign weights": (
        "ct2_int8", with_text("model.bin", "a text"), "is not a CTranslate2 model"),
    "weights that git keeps elsewhere": (
        "hf_marian", with_text("model.safetensors", "version https://git-lfs.github.com/spec/v1"),
        "run git lfs pull"),
    "weights of several files": (
        "hf_marian", renamed("model.safetensors", "model.safetensors.index.json"),
        "its weights in several files; join them with transform"),
    "a model that is no list": (
        "marian_pre_relu", with_text("decoder.yml", "models: model.npz\n"),
        "decoder.yml is not a list of files; write"),
    "an empty file": ("hf_marian", with_text("vocab.json", ""), "cannot read"),
    "a configuration that is none": (
        "hf_marian", with_text("config.json", "{"), "is not a JSON file, or a"),
    "no vocabulary": ("hf_marian", without("vocab.json"), "vocab.json is missing"),
    "no SentencePiece model": ("hf_marian", without("source.spm"), "source.spm is missing"),
    "tokens that are pieces of no SentencePiece model": (
        "ct2_float32", lambda folder: None,
        "are pieces of a SentencePiece model, and there is none"),
    "no dictionary": ("fairseq_math", without("dict.sym.txt"), "dict.sym.txt is missing; name"),
    "another vocabulary": (
        "opennmt_tf", with_text("v.src", "<blank>\n<s>\n</s>\na\nb\n"),
        "tokens and its vocabulary 6; give the vocabulary that it was trained with", _OPENNMT_TF),
    "a vocabulary without an end": (
        "opennmt_tf", with_text("v.src", "<blank>\n<s>\na\nb\n"), "lacks </s>", _OPENNMT_TF),
    "a vocabulary without a start": (
        "ct2_int8", with_values("config.json", decoder_start_token=None, unk_token=None),
        "config.json names no unk_token, decoder_start_t"),
    "a factored vocabulary": (
        "marian_pre_relu", renamed("vocab.src.yml", "v.fsv"),
        "factored and other vocabularies cannot be imported",
        "--source_vocabulary={folder}/v.fsv --target_vocabulary={folder}/vocab.trg.yml"),
    "a tensor of another size": (
        "hf_marian", with_tensors(**{_NORM: np.ones(31)}), "is 31 instead of 32"),
    "a tensor that is missing": (
        "hf_marian", with_tensors(**{_NORM: None}), f"lacks the tensor {_NORM}"),
    "a tensor that is left over": (
        "hf_marian", with_tensors(**{"model.encoder.router.weight": np.ones(3)}),
        "has tensors that this package does not support: model.encoder.router.weight"),
    "a tensor that is not finite": (
        "hf_marian", with_tensors(**{_NORM: np.full(32, np.nan)}), "is not finite"),
    "heads that do not divide the width": (
        "hf_marian",
        with_values("config.json", encoder_attention_heads=7, decoder_attention_heads=7),
        "num_heads"),
    "heads of the sides differ": (
        "hf_marian", with_values("config.json", encoder_attention_heads=2), "heads (2"),
    "no heads": (
        "opennmt_tf", lambda folder: None, "--num_heads of keras-transformer import_model (8",
        _VOCABULARIES),
    "another model of transformers": (
        "hf_marian", with_values("config.json", model_type="mbart"), "is 'mbart', and"),
    "norms elsewhere": (
        "hf_marian", with_values("config.json", normalize_before=True),
        "the model has normalize_before, which this package does not support; translate with the "
        "model's own toolkit, or train a model here on its translations"),
    "an option of another kind": (
        "hf_marian", with_values("config.json", activation_function=["relu"]),
        "must be of type str"),
    "files of two formats": (
        "hf_marian", with_text("model.bin", "1"),
        "has files of several formats: transformers, ctranslate2; remove the others"),
    "files of no format": ("hf_marian", without("model.safetensors"), "has files of none of the"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rejected_folders_leave_no_run(case, copy, call, tmp_path):
    name, change, expected, *flags = CASES[case]
    folder = copy(name)
    change(folder)
    flags = " ".join(flags).format(folder=folder).split()
    result = call("import_model.py", f"--model={folder}", f"--run_dir={tmp_path}/run", *flags)
    assert result.code == 1, result.out
    (line,) = result.err.splitlines()
    assert expected in line
    assert {path.name for path in tmp_path.iterdir()} == {name}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        *((flag, f"{flag.partition('=')[0]} is for ") for flag in
          ("--num_heads=4", "--source_vocabulary=a --target_vocabulary=b")),
        ("--source_vocabulary=a", "--source_vocabulary and --target_vocabulary go together"),
        ("--model=x", "x does not exist; give the folder of a model, or its file"),
        ("--run_dir=a,b", "a,b has a comma, which separates runs; give another path"),
    ],
)  # fmt: skip
def test_flags_that_do_not_fit_are_rejected(flags, message, copy, call, tmp_path):
    own = (f"--model={copy('ct2_int8')}", f"--run_dir={tmp_path}/run")
    error = call("import_model.py", *own, *flags.split()).err
    assert message in error
    assert "is for" not in message or "a model of ctranslate2 has its own: remove it" in error


def options(values):
    return Options(values, "config")


# Models that are no plain Transformers, by their options

MARIAN = {
    "type": "transformer", "enc-depth": "2", "dec-depth": "2", "transformer-heads": "4",
    "transformer-preprocess": "", "transformer-postprocess": "dan",
}  # fmt: skip
FAIRSEQ = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"layers": 2, "attention_heads": 4, "normalize_before": False}.items()
} | {"arch": "transformer_iwslt_de_en"}
CTRANSLATE2 = {
    "decoder/embeddings/weight": np.zeros([5, 8], np.float32),
    **{f"{side}/num_heads": np.int32(2) for side in ("encoder", "decoder")},
    "encoder/layer_0/self_attention/queries_scale": np.float32(0.5),
}
# The options of each format, as a function of those that are changed.
READ = {
    "marian": lambda changes: model_fields(MARIAN | changes),
    "fairseq": lambda changes: fairseq._config_fields(options(FAIRSEQ | changes)),
    "ctranslate2": lambda changes: ctranslate2._options(
        Tensors(CTRANSLATE2 | changes, "model.bin"), {}
    ),
}
UNSUPPORTED = [  # one for each way in which a format tells
    ("marian", {"transformer-postprocess": "dhn"}, "transformer-postprocess dhn"),
    ("marian", {"input-types": ["sequence", "class"]}, "input-types ['sequence', 'class']"),
    ("marian", {"type": "amun", "ulr": "true", "right-left": "true"},
     "type amun, ulr true, right-left true"),
    ("fairseq", {"arch": "fconv_iwslt_de_en"}, "arch fconv_iwslt_de_en"),
    ("fairseq", {"encoder_normalize_before": True}, "normalize_before True and False"),
    ("fairseq", {"encoder_langtok": "src", "decoder_langtok": True},
     "encoder_langtok, decoder_langtok"),
    ("ctranslate2", {"decoder/layer_0/attention/queries_scale": np.float32(0.3)},
     "queries_scale of another head_dim"),
    ("ctranslate2", {f"{side}/scale_embeddings": np.float32(scale)
                     for side, scale in (("encoder", 1), ("decoder", 3))},
     "scale_embeddings 1 and 3"),
]  # fmt: skip


@pytest.mark.parametrize(("format_name", "changes", "expected"), UNSUPPORTED)
def test_unsupported_options_are_named(format_name, changes, expected):
    READ[format_name]({})
    with pytest.raises(InputError, match="translate with the model's own toolkit") as error:
        READ[format_name](changes)
    assert f"the model has {expected}, which" in str(error.value)


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {}),
        ({"normalize": "1", "beam-size": "6"}, {"length_penalty": 1.0, "beam_size": 6}),
        ({"allow-unk": "true"}, {"forbid_unknown": False}),
        ({"allow-unk": "false"}, {}),
    ],
)
def test_marian_search_options_are_taken_over(options, changes):
    usual = {"beam_size": 12, "length_penalty_form": "power", "length_penalty": 0.0}
    usual |= {"forbid_unknown": True, "min_length": 0, "early_stop": "first"}
    assert marian.search_fields(options)[0] == usual | changes


@pytest.mark.parametrize(
    ("scale", "is_scaled"),
    [(None, True), (np.int8(1), True), (np.int8(0), False), (np.float32(8**0.5), True),
     (np.float32(1), False)],
)  # fmt: skip
def test_embedding_scale_of_ctranslate2_is_a_flag_or_the_factor(scale, is_scaled):
    sides = {} if scale is None else dict.fromkeys(("encoder", "decoder"), scale)
    changes = {f"{side}/scale_embeddings": value for side, value in sides.items()}
    assert READ["ctranslate2"](changes)["scale_embeddings"] is is_scaled


def test_vocabulary_of_pairs_of_bytes_is_rejected():
    symbols = Symbols(["<s>", "<pad>", "</s>", "<unk>", "the", "Ġdog"], unk=3, eos=2)
    with pytest.raises(InputError, match="the tokens of here are pairs of bytes, which this pack"):
        word_vocabulary(symbols, "here")


def test_marianmt_start_token_is_read(tmp_path):
    tokens = {"</s>": 0, "<unk>": 1, "<pad>": 2, "a": 3}
    (tmp_path / "vocab.json").write_text(json.dumps(tokens))
    zero = {"decoder_start_token_id": 0}
    for config, generation, start in (({}, {}, 2), (zero, {}, 0), ({}, zero, 0)):
        found, _ = transformers._symbols(tmp_path, options(config), options(generation))
        assert (found.start, found.order) == (start, [2, 1, start, 0, 3])
    for start in (-1, 4):
        with pytest.raises(InputError, match=f"the id of start is {start}, of 4 tokens"):
            given = options({"decoder_start_token_id": start})
            transformers._symbols(tmp_path, given, options({}))
