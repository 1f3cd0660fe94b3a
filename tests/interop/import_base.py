"""Imports a made-up model of the size of the paper's base, and prints what that takes.

    python import_base.py FOLDER

writes the model there in eole's format, imports it in this process, and prints the megabytes of its
weights and of memory at the peak, those of this program left out, and the seconds.
"""

import json
import pathlib
import re
import struct
import sys
import time

import numpy as np

from keras_transformer.interop import import_run, read_model

LAYERS, DIM, INNER, TOKENS = 6, 512, 2048, 12_000
VOCABULARY = ["<unk>", "<blank>", "<s>", "</s>", *(f"token{n}" for n in range(4, TOKENS))]
_STATUS = pathlib.Path("/proc/self/status")
ATTENTION = ("linear_query", "linear_keys", "linear_values", "final_linear")


def shapes():
    """Yields the names and shapes of the tensors."""
    tables = ("src_emb.embeddings.weight", "tgt_emb.embeddings.weight", "generator.weight")
    yield from ((name, (TOKENS, DIM)) for name in tables)
    for side in ("encoder", "decoder"):
        is_decoder = side == "decoder"
        for layer in range(LAYERS):
            start = f"{side}.transformer_layers.{layer}"
            for kind in ("self_attn", "context_attn")[: 1 + is_decoder]:
                yield from ((f"{start}.{kind}.{name}.weight", (DIM, DIM)) for name in ATTENTION)
            for name, shape in (("gate_up_proj", (INNER, DIM)), ("down_proj", (DIM, INNER))):
                yield f"{start}.mlp.{name}.weight", shape
                yield f"{start}.mlp.{name}.bias", shape[:1]
            norms = ["input_layernorm", "post_attention_layernorm"]
            for name in norms + ["precontext_layernorm"] * is_decoder:
                yield from ((f"{start}.{name}.{kind}", (DIM,)) for kind in ("weight", "bias"))
        yield from ((f"{side}.layer_norm.{kind}", (DIM,)) for kind in ("weight", "bias"))


def write(folder):
    """Writes the model and returns the bytes of its weights."""
    folder.mkdir()
    sides = {side: {f"{side}_type": "transformer", "layers": LAYERS}
             for side in ("encoder", "decoder")}  # fmt: skip
    model = sides | {"heads": 8, "position_encoding_type": "SinusoidalInterleaved"}
    (folder / "config.json").write_text(json.dumps({"model": model}))
    (folder / "vocab.json").write_text(json.dumps({"src": VOCABULARY, "tgt": VOCABULARY}))
    header, end = {}, 0
    for name, shape in shapes():
        offsets = [end, end := end + 4 * int(np.prod(shape))]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    text, generator = json.dumps(header).encode(), np.random.default_rng(1)
    with (folder / "model.00.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in shapes():
            file.write(generator.normal(size=shape, scale=0.05).astype("<f4").tobytes())
    return end


def memory(name):
    """Returns the bytes that Linux reports; `getrusage` counts the peak of a parent as well."""
    (line,) = re.findall(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), flags=re.MULTILINE)
    return 1024 * int(line)


def main(folder):
    size = write(folder / "model")
    before = memory("VmRSS")
    start, cpu_start = time.perf_counter(), time.process_time()
    import_run(read_model(folder / "model"), folder / "run", {})
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    found = {"weights_mb": size / 1e6, "peak_mb": (memory("VmHWM") - before) / 1e6}
    print(json.dumps(found | {"seconds": seconds, "cpu_seconds": cpu_seconds}))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
