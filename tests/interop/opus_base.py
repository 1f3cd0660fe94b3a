"""Imports a made-up model of the size of an OPUS-MT one, translates with it, and exports it.

    python opus_base.py TOKENIZERS FOLDER [SENTENCES]

writes the model into FOLDER in the format of transformers, with the SentencePiece models and tokens
of the folder TOKENIZERS; prints the processor seconds of each part, the megabytes of the weights,
and those of memory at the peak of the import, without this program's own. With 0 sentences the
model is imported only.
"""

import json
import os
import pathlib
import re
import shutil
import sys

import numpy as np
from safetensors.numpy import save_file

from keras_transformer import Translator
from keras_transformer.interop import import_run, read_model
from keras_transformer.serving.export import export

LAYERS, DIM, INNER, TOKENS = 6, 512, 2048, 58_101  # of Helsinki-NLP/opus-mt-en-de
NUM_SENTENCES = 100
_STATUS = pathlib.Path("/proc/self/status")


def shapes(layers, dim, inner, tokens):
    """Yields the names and shapes of the tensors."""
    yield "model.shared.weight", (tokens, dim)
    yield "final_logits_bias", (1, tokens)
    for side in ("encoder", "decoder"):
        for layer in range(layers):
            start = f"model.{side}.layers.{layer}"
            for attention in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    yield f"{start}.{attention}.{name}.weight", (dim, dim)
                    yield f"{start}.{attention}.{name}.bias", (dim,)
                yield f"{start}.{attention}_layer_norm.weight", (dim,)
                yield f"{start}.{attention}_layer_norm.bias", (dim,)
            for name, shape in (("fc1", (inner, dim)), ("fc2", (dim, inner))):
                yield f"{start}.{name}.weight", shape
                yield f"{start}.{name}.bias", shape[:1]
            for kind in ("weight", "bias"):
                yield f"{start}.final_layer_norm.{kind}", (dim,)


def write(tokenizers, folder, *, layers=LAYERS, dim=DIM, inner=INNER, tokens=TOKENS):
    """Writes the model and returns the bytes of its weights; its tokens are never too few."""
    ids = json.loads((tokenizers / "vocab.json").read_text())
    ids |= {f"<more{id_}>": id_ for id_ in range(len(ids), tokens)}
    _write_files(tokenizers, folder, ids, layers, dim, inner, 8, activation_function="swish")
    generator = np.random.default_rng(1)
    tensors = {}
    for name, shape in shapes(layers, dim, inner, len(ids)):
        is_gain = name.endswith("norm.weight")
        tensors[name] = generator.normal(is_gain, 0.05, shape).astype("float32")
    save_file(tensors, folder / "model.safetensors")
    return sum(each.nbytes for each in tensors.values())


def write_ending(tokenizers, folder):
    """Writes a model of one layer with the width and vocabulary of opus-mt-tc-big.

    Its translations end after 3 to 16 tokens. Padding is its last token, and its row is zero.
    """
    dim, inner, tokens = 1024, 4096, 65_001
    names = json.loads((tokenizers / "vocab.json").read_text())
    names = sorted(names.keys() - {"<pad>"}, key=names.__getitem__)
    names += [f"<more{number}>" for number in range(len(names), tokens - 1)]
    ids = {name: id_ for id_, name in enumerate([*names, "<pad>"])}
    _write_files(tokenizers, folder, ids, 1, dim, inner, 16, activation_function="relu")
    pad, eos = ids["<pad>"], ids["</s>"]
    generation = {
        "decoder_start_token_id": pad, "eos_token_id": eos, "pad_token_id": pad,
        "forced_eos_token_id": eos, "max_length": 512, "num_beams": 4, "bad_words_ids": [[pad]],
        "renormalize_logits": True,
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation))
    generator = np.random.default_rng(1)
    tensors = {}
    for name, shape in shapes(1, dim, inner, tokens):
        # Large kernels, for an output that forgets its last token: it would repeat it.
        scale = 3.5 / shape[-1] ** 0.5 if len(shape) == 2 else 0.05
        scale = 0.05 if name == "model.shared.weight" else scale
        tensors[name] = generator.standard_normal(shape, np.float32) * np.float32(scale)
        tensors[name] += np.float32(name.endswith("norm.weight"))
    tensors["model.shared.weight"][pad] = 0
    tensors["model.shared.weight"][eos] *= 1.2
    tensors["final_logits_bias"][:] = 0
    tensors["final_logits_bias"][0, eos] = 3.3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _write_files(tokenizers, folder, ids, layers, dim, inner, heads, **options):
    """Writes all of a model but its weights."""
    folder.mkdir(parents=True)
    for side in ("source", "target"):
        shutil.copyfile(tokenizers / f"{side}.spm", folder / f"{side}.spm")
    (folder / "vocab.json").write_text(json.dumps(ids))
    config = {
        "model_type": "marian", "architectures": ["MarianMTModel"], "d_model": dim,
        "scale_embedding": True, "vocab_size": len(ids), "decoder_vocab_size": len(ids),
        "max_position_embeddings": 1024, "pad_token_id": ids["<pad>"], "num_beams": 4,
        "eos_token_id": ids["</s>"], "forced_eos_token_id": ids["</s>"], "bos_token_id": None,
        "decoder_start_token_id": ids["<pad>"],
    }  # fmt: skip
    for side in ("encoder", "decoder"):
        config |= {f"{side}_layers": layers, f"{side}_attention_heads": heads}
        config[f"{side}_ffn_dim"] = inner
    (folder / "config.json").write_text(json.dumps(config | options))
    options = {
        "tokenizer_class": "MarianTokenizer", "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(options))


def memory(name):
    """Returns the bytes that Linux reports; `getrusage` counts the peak of a parent as well."""
    (line,) = re.findall(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), flags=re.MULTILINE)
    return 1024 * int(line)


def main(tokenizers, folder, num_sentences=NUM_SENTENCES):
    size = write(tokenizers, folder / "model")
    found = {"weights_mb": size / 1e6}
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets the peak until here
    before, start = memory("VmRSS"), sum(os.times()[:4])

    def note(part):
        nonlocal start
        found[f"{part}_seconds"] = sum(os.times()[:4]) - start  # of child processes too
        start = sum(os.times()[:4])

    run = import_run(read_model(folder / "model"), folder / "run")
    note("import")
    found["import_peak_mb"] = (memory("VmHWM") - before) / 1e6
    with (tokenizers / "source.jsonl").open(encoding="utf-8") as file:
        sentences = [json.loads(next(file))["text"] for _ in range(int(num_sentences))]
    if sentences:
        search = run.configs().search_config({"max_extra_length": 0})
        translator = Translator(run.load_model(), *run.vocabularies(), search)
        note("load")
        found["translations"] = sum(bool(best.text) for best in translator.translate(sentences))
        note("translate")
        version = export(translator, folder / "exports", sentences=sentences[:1])
        note("export")
        files = [each for each in version.rglob("*") if each.is_file()]
        found["export_mb"] = sum(each.stat().st_size for each in files) / 1e6
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:3]), *sys.argv[3:])
