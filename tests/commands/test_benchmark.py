"""scripts/benchmark.py: a small run of each benchmark; no figures."""

import importlib.util
import json
import os
import pathlib
import sys

import numpy as np
import pytest

from keras_transformer import config
from keras_transformer.config import BOS_ID, TrainingConfig, TransformerConfig

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(_SCRIPTS))

import benchmark  # noqa: E402

from benchmarks import gpu_program, hlo  # noqa: E402

_SMALL = ["--presets", "tiny", "--rounds=1", "--vocabulary_size=90"]
_ENGINES = ["--device=cpu", "--threads=1", "--round_seconds=0"]

slow = pytest.mark.slow


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Runs one of the benchmarks with a small model, and gives the rows of its log by name."""
    presets = config.TransformerConfig.PRESETS
    monkeypatch.setitem(presets, "tiny", presets["tiny"] | {"num_layers": 1})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # which it sets

    def measure(*arguments):
        path = tmp_path / "log.json"
        benchmark.main([*arguments, f"--json={path}"])
        log = json.loads(path.read_text())
        assert {"machine", "versions", "commit", "date", "command"} <= log.keys()
        return log["rows"]

    return measure


@pytest.mark.parametrize(
    "arguments",
    ["", "layers", "train --presets huge", "train --batch 128", "start --batch 1 1",
     "train --device=gpu", "decode --run_dir=none"],
)  # fmt: skip
def test_wrong_arguments_end_it_with_a_line(arguments, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark, "NVIDIA_DRIVER", tmp_path / "none")
    with pytest.raises(SystemExit) as error:
        benchmark.main(arguments.split())
    assert error.value.code not in (None, 0)


def _installed(module, *engines):
    return list(engines) if importlib.util.find_spec(module) else []


_TRAINED = ["ours", *_installed("torch", "pytorch", "pytorch_kept")]
_DECODED = ["ours", "ours_xla", "ours_default", "ours_bfloat16",
            *_installed("ctranslate2", "ctranslate2", "ctranslate2_int8")]  # fmt: skip


@slow
@pytest.mark.parametrize(
    ("arguments", "names", "value"),
    [
        (["train", *_ENGINES, "--precisions=float32", "--batch", "2", "4"],
         [f"{engine}/tiny/float32/2x4" for engine in _TRAINED], "tokens_per_second"),
        (["decode", *_ENGINES, "--batch", "4", "5"],
         [f"{engine}/1x1/tiny/5-forced/{batch}" for engine in _DECODED for batch in (4, 1)],
         "latency_p50_ms"),
        (["start"], ["run/tiny", "export/tiny"], "translation_seconds"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_each_engine_has_its_rows(measure, monkeypatch, arguments, names, value):
    from benchmarks import training

    monkeypatch.setattr(training, "_MIN_STEPS", 1)
    monkeypatch.setattr(training.shutil, "which", lambda name: None)  # it compiles for minutes
    rows = measure(*arguments, *_SMALL)
    assert list(rows) == names
    assert all(row[value] > 0 for row in rows.values())


def test_kernels_have_their_bytes_products_and_floor():
    import tensorflow as tf
    from tensorflow.compiler.xla.service import hlo_pb2

    @tf.function(jit_compile=True)
    def program(x):
        powers, _ = tf.while_loop(lambda y, n: n < 3, lambda y, n: (y @ x, n + 1), (x, 0))
        return powers[0]

    compiled = program.experimental_get_compiler_ir(tf.ones([1000, 1000]))
    kernels = hlo.kernels(hlo_pb2.HloModuleProto.FromString(compiled(stage="hlo_serialized")))
    (product,) = (kernel for kernel in kernels if kernel.flops)
    assert (product.num_bytes, product.flops) == (12_000_000, 2 * 10**9)
    assert (product.operand_bytes, product.in_loop) == (4, True)
    assert product.floor_seconds == pytest.approx(2e9 / 310e12)  # longer than its bytes, 4.2 us
    # Of a slice a kernel reads what it takes.
    assert all(kernel.num_bytes < 10_000_000 for kernel in kernels if not kernel.in_loop)
    assert min(kernel.floor_seconds for kernel in kernels) == 2.5e-6


@slow
@pytest.mark.skipif(not importlib.util.find_spec("jax_cuda12_plugin"), reason="needs the extra aot")
def test_row_of_a_program_compiled_for_a_gpu():
    case = gpu_program.Case("search", "tiny", "float32", 2, 6, 50)
    row = gpu_program.measure(case, sys.executable)
    assert row["floor_ms"] >= 2.5e-3 * row["kernels"] > 0


# In a process without TensorFlow, beside which PyTorch's optimizers cannot be imported.
_PYTORCH_LOSSES = """
import json, sys
import numpy as np
import torch
from benchmarks import pytorch
from keras_transformer.config import ModelConfig, TrainingConfig

OURS = {
    "self_attn.in_proj_weight": "self_attention/query_key_value/kernel",
    "self_attn.out_proj.weight": "self_attention/output/kernel",
    "multihead_attn.in_proj_weight":
        "cross_attention/query/kernel cross_attention/key_value/kernel",
    "multihead_attn.out_proj.weight": "cross_attention/output/kernel",
    "linear1.weight": "feed_forward/inner/kernel", "linear1.bias": "feed_forward/inner/bias",
    "linear2.weight": "feed_forward/outer/kernel", "linear2.bias": "feed_forward/outer/bias",
    "norm1.weight": "self_attention_norm/gain", "norm1.bias": "self_attention_norm/bias",
    "norm2.weight": "cross_attention_norm/gain", "norm2.bias": "cross_attention_norm/bias",
    "norm3.weight": "feed_forward_norm/gain", "norm3.bias": "feed_forward_norm/bias",
}
arrays = dict(np.load(sys.argv[1]))
config = ModelConfig.from_dict(json.loads(sys.argv[2]))
settings = TrainingConfig.from_dict(json.loads(sys.argv[3]))
model = pytorch.TorchTransformer(config)
used = set()

def ours(*names):
    used.update(names)
    return np.concatenate([arrays[name] for name in names], axis=-1).T

for name, parameter in model.named_parameters():
    if name == "embedding.weight":
        value = ours("source_embedding/table").T
    else:
        _, side, _, index, part = name.split(".", 4)
        names = OURS[part.replace("norm2", "norm3") if side == "encoder" else part]
        value = ours(*(f"{side}/layer_{index}/{each}" for each in names.split()))
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))

step = pytorch.make_step(model, settings)
losses = [
    step(({"source": source, "target": target}, labels)).item()
    for source, target, labels in zip(arrays["source"], arrays["target"], arrays["labels"])
]
unused = sorted(arrays.keys() - used - {"source", "target", "labels"})
print(json.dumps([sum(each.numel() for each in model.parameters()), losses, unused]))
"""


@pytest.mark.slow
def test_pytorch_has_our_parameters_and_losses(tmp_path, run_python):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    import keras

    from keras_transformer.models import build_model
    from keras_transformer.training.optimizer import compile_for_training

    keras.utils.set_random_seed(1)
    config = TransformerConfig.preset("tiny", vocabulary_size=50, num_layers=2, dropout=0.0)
    training = TrainingConfig.preset("tiny", precision="float32", warmup_steps=10)
    model = build_model(config)
    weights = {each.path.partition("/")[2]: each.numpy() for each in model.weights}
    source, target, labels = np.random.default_rng(1).integers(4, 50, (3, 4, 3, 6), np.int32)
    labels[:, 1, 4:] = target[:, 1, 4:] = source[:, 2, 5:] = 0  # padding
    target[:, :, 0] = BOS_ID
    path = tmp_path / "model.npz"
    np.savez(path, **weights, source=source, target=target, labels=labels)
    configs = [json.dumps(each.to_dict()) for each in (config, training)]
    paths = os.pathsep.join([str(_SCRIPTS), str(_SCRIPTS.parent)])
    output = run_python("-c", _PYTORCH_LOSSES, path, *configs, PYTHONPATH=paths)
    num_parameters, losses, unused = json.loads(output.splitlines()[-1])
    assert (num_parameters, unused) == (model.count_params(), [])
    compile_for_training(model, training)
    for *ids, batch_labels, loss in zip(source, target, labels, losses, strict=True):
        model.reset_metrics()
        inputs = dict(zip(("source", "target"), ids, strict=True))
        found = model.train_on_batch(inputs, batch_labels, return_dict=True)["loss"]
        assert found == pytest.approx(loss, rel=2e-5)
    assert losses[-1] != pytest.approx(losses[0], rel=0.01)
