"""What cannot be imported is rejected in one line, and nothing is left of it."""

import os
import re
import sys

import numpy as np
import pytest
import samples
from samples import with_state, with_tensors, with_values

from keras_transformer.errors import InputError
from keras_transformer.interop import import_run, read_model
from keras_transformer.interop.foreign import ImportOptions

# Changes of a sample's folder


def as_it_is(folder):
    pass


def without(file):
    return lambda folder: (folder / file).unlink()


def with_text(file, text):
    return lambda folder: (folder / file).write_text(text)


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
    return with_state(lambda state: vars(state["args"]).update(changes))


class Hostile:
    """Makes a file where it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch ran",)


def with_hostile_pickle(folder):
    import torch

    torch.save({"model.shared.weight": Hostile()}, folder / "pytorch_model.bin")


def with_bytes_for_letters(folder):
    path = folder / "source_vocabulary.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"a"', '"Ġa"', 1), encoding="utf-8")


_NORM = "model.encoder.layers.0.final_layer_norm.weight"
_ROUTER = "model.encoder.router.weight"


def with_norm(values):
    return with_tensors(lambda tensors: tensors.update({_NORM: values}))


# A sample, what is done to its folder, and what the line says.
CASES = {
    # Files
    "a checkpoint without its data": (
        "opennmt_tf", without("ckpt-130.data-00000-of-00001"), "is missing; give"),
    "weights that git keeps elsewhere": (
        "hf_marian", with_text("model.safetensors", "version https://git-lfs.github.com/spec/v1"),
        "run git lfs pull"),
    "a model that is no list": (
        "marian_pre_relu", with_text("decoder.yml", "models: model.npz\n"), "option models of "),
    "no SentencePiece model": ("hf_marian", without("source.spm"), "source.spm is missing"),
    "files of two formats": (
        "hf_marian", with_text("model.bin", "1"), "has those of transformers and ctranslate2"),
    "files of no format": (
        "hf_marian", without("model.safetensors"), "and has those of none"),
    "a pickle that runs a program": (
        "hf_marian_bin", with_hostile_pickle, "is not a file of PyTorch, or a damaged one"),
    # Vocabularies
    "tokens that are pieces of no SentencePiece model": (
        "ct2_float32", as_it_is, "are pieces of a SentencePiece model, and there is none",
        ImportOptions()),
    "tokens that are pairs of bytes": (
        "ct2_int8", with_bytes_for_letters, "are pairs of bytes, which this package does not"),
    "no dictionary": ("fairseq_math", without("dict.sym.txt"), "not beside it; give"),
    "another vocabulary": (
        "opennmt_tf", with_text("v.src", "<blank>\n<s>\n</s>\na\nb\n"),
        "tokens and its vocabulary 6; give the vocabulary that it was trained with"),
    "a vocabulary without an end": (
        "opennmt_tf", with_text("v.src", "<blank>\n<s>\na\nb\n"), "lacks </s>"),
    "a start token beyond the vocabulary": (
        "hf_marian", with_values("generation_config.json", decoder_start_token_id=778),
        "the id of start is 778, of 778 tokens"),
    # Tensors
    "a tensor of another size": (
        "hf_marian", with_norm(np.ones(31, np.float32)), "is (31,) instead of (32,)"),
    "a tensor that is missing": (
        "hf_marian", with_tensors(lambda tensors: tensors.pop(_NORM)), f"lacks the tensor {_NORM}"),
    "a tensor that is left over": (
        "hf_marian", with_tensors(lambda tensors: tensors.update({_ROUTER: np.ones(3)})),
        f"tensors that this package does not support, such as {_ROUTER}"),
    "a tensor that is not finite": (
        "hf_marian", with_norm(np.full(32, np.nan)), "is not finite"),
    # Options
    "no heads": (
        "opennmt_tf", as_it_is, "give --num_heads (8", ImportOptions(vocabularies=("a", "b"))),
    "an option for other formats": (
        "ct2_int8", as_it_is, "num_heads are not for models of ctranslate2",
        ImportOptions(num_heads=4)),
    "another model of transformers": (
        "hf_marian", with_values("config.json", model_type="mbart"), "is 'mbart', and"),
    "norms elsewhere": (
        "hf_marian", with_values("config.json", normalize_before=True),
        "has normalize_before, which this package does not support; translate with the model's"),
    "an option of another kind": (
        "hf_marian", with_values("config.json", activation_function=["relu"]),
        "must be of type str"),
    "norms of Marian elsewhere": (
        "marian_pre_relu", with_marian_options(transformer_postprocess="dhn"),
        "transformer-postprocess dhn, norms 'n' before, 'hn' after and 'n' at the end"),
    "other models of Marian": (
        "marian_pre_relu", with_marian_options(type="amun", right_left="true"),
        "type amun, right-left true"),
    "other models of fairseq": (
        "fairseq_math", with_fairseq_options(arch="fconv_iwslt_de_en"), "arch fconv_iwslt_de_en"),
    "languages of fairseq": (
        "fairseq_math", with_fairseq_options(encoder_langtok="src", decoder_langtok=True),
        "encoder_langtok, decoder_langtok"),
    "a source that begins with BOS": (
        "ct2_int8", with_values("config.json", add_source_bos=True), "add_source_bos"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rejected_folders_leave_no_run(case, copy, tmp_path, monkeypatch):
    name, change, expected, *options = CASES[case]
    monkeypatch.chdir(tmp_path)
    folder = copy(name)
    change(folder)
    with pytest.raises(InputError) as caught:
        model = read_model(folder, None, *options or [samples.import_options(folder)])
        import_run(model, tmp_path / "run")
    assert expected in str(caught.value) and "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {name}


def test_missing_package_is_named(sample_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"needs the package torch; run pip install '.\[torch\]'"):
        read_model(sample_model("hf_marian_bin"))
