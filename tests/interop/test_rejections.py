"""What cannot be imported is refused in one line, and nothing is left of it."""

import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_transformer.errors import InputError
from keras_transformer.interop import read_model
from keras_transformer.interop.reading import read_pytorch


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


def change_text(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


class Hostile:
    """Makes a file where it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch ran",)


def with_hostile_pickle(folder):
    torch = pytest.importorskip("torch", reason="needs the package torch")
    torch.save({"model.shared.weight": Hostile()}, folder / "pytorch_model.bin")


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
        "marian_pre_relu", with_text("decoder.yml", "models: model.npz\n"), "must be a list of"),
    "an empty file": ("hf_marian", with_text("vocab.json", ""), "cannot read"),
    "a configuration that is none": (
        "hf_marian", with_text("config.json", "{"), "is not a JSON file, or a"),
    "no SentencePiece model": ("hf_marian", without("source.spm"), "source.spm is missing"),
    "tokens that are pieces of no SentencePiece model": (
        "ct2_float32", lambda folder: None,
        "are pieces of a SentencePiece model, and there is none"),
    "tokens that are pairs of bytes": (
        "ct2_int8", lambda folder: change_text(folder / "source_vocabulary.json", '"a"', '"Ġa"'),
        "are pairs of bytes, which this package does not"),
    "no dictionary": ("fairseq_math", without("dict.sym.txt"), "not beside it; give"),
    "another vocabulary": (
        "opennmt_tf", with_text("v.src", "<blank>\n<s>\n</s>\na\nb\n"),
        "tokens and its vocabulary 6; give the vocabulary that it was trained with", _OPENNMT_TF),
    "a vocabulary without an end": (
        "opennmt_tf", with_text("v.src", "<blank>\n<s>\na\nb\n"), "lacks </s>", _OPENNMT_TF),
    "no token that starts a translation": (
        "ct2_int8", with_values("config.json", decoder_start_token=None),
        "no decoder_start_token"),
    "a start token beyond the vocabulary": (
        "hf_marian", with_values("generation_config.json", decoder_start_token_id=778),
        "the id of start is 778, of 778 tokens"),
    "a factored vocabulary": (
        "marian_pre_relu", renamed("vocab.src.yml", "v.fsv"), "must be .yml, .json or .spm",
        "--source_vocabulary={folder}/v.fsv --target_vocabulary={folder}/vocab.trg.yml"),
    "a tensor of another size": (
        "hf_marian", with_tensors(**{_NORM: np.ones(31)}), "is (31,) instead of (32,)"),
    "a tensor that is missing": (
        "hf_marian", with_tensors(**{_NORM: None}), f"lacks the tensor {_NORM}"),
    "a tensor that is left over": (
        "hf_marian", with_tensors(**{"model.encoder.router.weight": np.ones(3)}),
        "has 1 tensors that this package does not support, such as model.encoder.router.weight"),
    "a tensor that is not finite": (
        "hf_marian", with_tensors(**{_NORM: np.full(32, np.nan)}), "is not finite"),
    "heads that do not divide the width": (
        "hf_marian",
        with_values("config.json", encoder_attention_heads=7, decoder_attention_heads=7),
        "num_heads"),
    "heads of the sides differ": (
        "hf_marian", with_values("config.json", encoder_attention_heads=2), "heads (2"),
    "no heads": ("opennmt_tf", lambda folder: None, "give --num_heads (8", _VOCABULARIES),
    "an option for other formats": (
        "ct2_int8", lambda folder: None, "num_heads are not for models of ctranslate2",
        "--num_heads=4"),
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
        "hf_marian", with_text("model.bin", "1"), "has those of transformers and ctranslate2"),
    "files of no format": (
        "hf_marian", without("model.safetensors"), "and has those of none"),
    "a pickle that runs a program": (
        "hf_marian_bin", with_hostile_pickle, "is not a file of PyTorch, or a damaged one"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rejected_folders_leave_no_run(case, copy, call, tmp_path, monkeypatch):
    name, change, expected, *flags = CASES[case]
    if name == "fairseq_math":
        pytest.importorskip("torch", reason="needs the package torch")
    monkeypatch.chdir(tmp_path)
    folder = copy(name)
    change(folder)
    flags = " ".join(flags).format(folder=folder).split()
    result = call("import_model.py", f"--model={folder}", f"--run_dir={tmp_path}/run", *flags)
    assert result.code == 1, result.out
    (line,) = result.err.splitlines()
    assert expected in line
    assert {path.name for path in tmp_path.iterdir()} == {name}


def test_missing_package_is_named(sample_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"needs the package torch; run pip install '.\[torch\]'"):
        read_model(sample_model("hf_marian_bin"))


# Models that are no plain Transformers, by their options: one for each way in which a format tells


def with_marian_options(**changes):
    def change(folder):
        with np.load(folder / "model.npz") as arrays:
            tensors = dict(arrays)
        text = tensors["special:model.yml"].tobytes().decode().strip("\0")
        for name, value in changes.items():
            name = name.replace("_", "-")
            text = re.sub(rf"(?m)^{name}:.*\n( .*\n)*", "", text) + f"\n{name}: {value}\n"
        options = np.frombuffer(text.encode(), "i1")
        np.savez(folder / "model.npz", **tensors | {"special:model.yml": options})

    return change


def with_fairseq_options(**changes):
    def change(folder):
        torch = pytest.importorskip("torch", reason="needs the package torch")
        state = read_pytorch(folder / "checkpoint_best.pt")
        vars(state["args"]).update(changes)
        torch.save(state, folder / "checkpoint_best.pt")

    return change


UNSUPPORTED = [
    ("marian_pre_relu", with_marian_options(transformer_postprocess="dhn"),
     "transformer-postprocess dhn, norms 'n' before, 'hn' after and 'n' at the end"),
    ("marian_pre_relu", with_marian_options(input_types="[sequence, class]"),
     r"input-types \['sequence', 'class'\]"),
    ("marian_pre_relu", with_marian_options(type="amun", ulr="true", right_left="true"),
     "type amun, ulr true, right-left true"),
    ("fairseq_math", with_fairseq_options(arch="fconv_iwslt_de_en"), "arch fconv_iwslt_de_en"),
    ("fairseq_math", with_fairseq_options(encoder_normalize_before=True),
     "normalize_before True and False"),
    ("fairseq_math", with_fairseq_options(encoder_langtok="src", decoder_langtok=True),
     "encoder_langtok, decoder_langtok"),
    ("ct2_int8", with_values("config.json", add_source_bos=True), "add_source_bos"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "expected"), UNSUPPORTED)
def test_unsupported_options_are_named(name, change, expected, copy):
    folder = copy(name)
    if name == "fairseq_math":
        pytest.importorskip("torch", reason="needs the package torch")
    read_model(folder)
    change(folder)
    with pytest.raises(InputError, match=f"the model has {expected}, which.*own toolkit"):
        read_model(folder)


def test_start_token_of_marianmt_is_read(copy):
    folder = copy("hf_marian")
    change_text(folder / "generation_config.json", "777", "12")
    model = read_model(folder)
    assert (model.source.start, model.source.order[:4]) == (12, [777, 1, 12, 0])
