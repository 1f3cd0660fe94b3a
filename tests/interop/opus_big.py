"""Writes a made-up model of the width and vocabulary of opus-mt-tc-big whose translations end.

It has fewer layers. Its weights are random; translations end after 3 to 16 tokens.
"""

import json
import shutil

import numpy as np
from opus_base import shapes
from safetensors.numpy import save_file

TOKENS, DIM, INNER, HEADS = 65_001, 1024, 4096, 16
# Large kernels, for an output that forgets its last token: it would repeat it.
_KERNELS, _ROWS, _END_ROW, _END_BIAS = 3.5, 0.05, 0.06, 3.3


def write(tokenizers, folder, *, layers=1):
    """Writes the model; padding is its last token, and its row is zero."""
    folder.mkdir(parents=True)
    for side in ("source", "target"):
        shutil.copyfile(tokenizers / f"{side}.spm", folder / f"{side}.spm")
    names = json.loads((tokenizers / "vocab.json").read_text())
    names = sorted(names.keys() - {"<pad>"}, key=names.__getitem__)
    names += [f"<more{number}>" for number in range(len(names), TOKENS - 1)]
    ids = {name: id_ for id_, name in enumerate([*names, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    pad, eos = ids["<pad>"], ids["</s>"]
    sides = ("encoder", "decoder")
    config = {
        "model_type": "marian", "architectures": ["MarianMTModel"], "d_model": DIM,
        "activation_function": "relu", "scale_embedding": True, "vocab_size": TOKENS,
        "decoder_vocab_size": TOKENS, "max_position_embeddings": 1024, "pad_token_id": pad,
        "eos_token_id": eos, "decoder_start_token_id": pad, "is_encoder_decoder": True,
        "static_position_embeddings": True, "forced_eos_token_id": eos, "bos_token_id": None,
    }  # fmt: skip
    for side in sides:
        config |= {f"{side}_layers": layers, f"{side}_attention_heads": HEADS}
        config |= {f"{side}_ffn_dim": INNER}
    (folder / "config.json").write_text(json.dumps(config))
    generation = {
        "decoder_start_token_id": pad, "eos_token_id": eos, "pad_token_id": pad,
        "forced_eos_token_id": eos, "max_length": 512, "num_beams": 4, "bad_words_ids": [[pad]],
        "renormalize_logits": True,
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation))
    options = {
        "tokenizer_class": "MarianTokenizer", "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    generator = np.random.default_rng(1)
    tensors = {}
    for name, shape in shapes(layers, DIM, INNER, TOKENS):
        is_gain = name.endswith("norm.weight")
        scale = _KERNELS / shape[-1] ** 0.5 if len(shape) == 2 else 0.05
        scale = _ROWS if name == "model.shared.weight" else scale
        tensors[name] = generator.standard_normal(shape, np.float32) * np.float32(scale)
        tensors[name] += np.float32(is_gain)
    table = tensors["model.shared.weight"]
    table[pad] = 0
    table[eos] *= _END_ROW / _ROWS
    tensors["final_logits_bias"][:] = 0
    tensors["final_logits_bias"][0, eos] = _END_BIAS
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
