"""A made-up model of one layer with the width and vocabulary of opus-mt-tc-big."""

import json
import shutil

import numpy as np
from safetensors.numpy import save_file

DIM, INNER, TOKENS, HEADS = 1024, 4096, 65_001, 16


def shapes():
    """Yields the names and shapes of the tensors; the order decides the random numbers."""
    yield "model.shared.weight", (TOKENS, DIM)
    yield "final_logits_bias", (1, TOKENS)
    for side in ("encoder", "decoder"):
        start = f"model.{side}.layers.0"
        for attention in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                yield f"{start}.{attention}.{name}.weight", (DIM, DIM)
                yield f"{start}.{attention}.{name}.bias", (DIM,)
            yield f"{start}.{attention}_layer_norm.weight", (DIM,)
            yield f"{start}.{attention}_layer_norm.bias", (DIM,)
        for name, shape in (("fc1", (INNER, DIM)), ("fc2", (DIM, INNER))):
            yield f"{start}.{name}.weight", shape
            yield f"{start}.{name}.bias", shape[:1]
        for kind in ("weight", "bias"):
            yield f"{start}.final_layer_norm.{kind}", (DIM,)


def write(tokenizers, folder):
    """Writes the model in the format of transformers, with the tokenizers of another folder.

    Its translations end after 3 to 16 tokens. Padding is its last token, and its row is zero.
    """
    names = json.loads((tokenizers / "vocab.json").read_text())
    names = sorted(names.keys() - {"<pad>"}, key=names.__getitem__)
    names += [f"<more{number}>" for number in range(len(names), TOKENS - 1)]
    ids = {name: id_ for id_, name in enumerate([*names, "<pad>"])}
    pad, eos = ids["<pad>"], ids["</s>"]
    shared = {
        "decoder_start_token_id": pad, "eos_token_id": eos, "pad_token_id": pad,
        "forced_eos_token_id": eos, "num_beams": 4,
    }  # fmt: skip
    config = shared | {
        "model_type": "marian", "architectures": ["MarianMTModel"], "d_model": DIM,
        "scale_embedding": True, "vocab_size": TOKENS, "decoder_vocab_size": TOKENS,
        "max_position_embeddings": 1024, "bos_token_id": None, "activation_function": "relu",
    }  # fmt: skip
    for side in ("encoder", "decoder"):
        config |= {f"{side}_layers": 1, f"{side}_attention_heads": HEADS, f"{side}_ffn_dim": INNER}
    files = {
        "vocab.json": ids,
        "config.json": config,
        "generation_config.json": shared
        | {"max_length": 512, "bad_words_ids": [[pad]], "renormalize_logits": True},
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer", "model_max_length": 512,
            "clean_up_tokenization_spaces": False,
        },
    }  # fmt: skip
    folder.mkdir(parents=True)
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    for side in ("source", "target"):
        shutil.copyfile(tokenizers / f"{side}.spm", folder / f"{side}.spm")
    generator = np.random.default_rng(1)
    tensors = {}
    for name, shape in shapes():
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
