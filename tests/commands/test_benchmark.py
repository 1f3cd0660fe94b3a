"""scripts/benchmark.py: a small run of each benchmark; no figures."""

import importlib.util
import json
import os
import pathlib
import runpy

import numpy as np
import pytest

from keras_transformer import config
from keras_transformer.config import ModelConfig, TrainingConfig

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def measure(call, tmp_path):
    """Runs one of the benchmarks in this process and gives the rows of its log by name."""

    def measure(*arguments):
        small = ("--rounds=1", "--threads=1", f"--json={tmp_path}/log.json")
        result = call("benchmark.py", *arguments, *small)
        assert result.code == 0, result.err
        content = json.loads((tmp_path / "log.json").read_text())
        assert "cores of" in content["machine"] and "keras" in content["versions"]
        return content["rows"]

    return measure


@pytest.mark.slow
def test_train_has_a_row_per_installed_engine(measure, monkeypatch):
    from benchmarks import training

    monkeypatch.setattr(training, "_PYTORCH", ("pytorch",))  # torch.compile takes minutes
    monkeypatch.setattr(training, "_MIN_STEPS", 1)
    small = ("--presets=tiny", "--precisions=float32", "--vocabulary_size=50", "--batch=2x4")
    rows = measure("train", *small, "--device=cpu", "--round_seconds=0")
    engines = ["ours", "pytorch"] if importlib.util.find_spec("torch") else ["ours"]
    assert list(rows) == [f"{engine}/tiny/float32/2x4" for engine in engines]
    for row in rows.values():
        assert (row["device"], row["compiled"]) == ("cpu", 0)
        assert row["tokens_per_second"] == pytest.approx(8 / row["seconds_per_step"], rel=0.01)


@pytest.mark.slow
def test_start_has_the_seconds_of_a_run_and_of_an_export(measure, monkeypatch):
    presets = config.TransformerConfig.PRESETS
    monkeypatch.setitem(presets, "tiny", presets["tiny"] | {"num_layers": 1})
    rows = measure("start", "--presets=tiny", "--vocabulary_size=90")
    assert list(rows) == ["run/tiny", "export/tiny"]
    for row in rows.values():
        parts = [row[f"{part}_seconds"] for part in ("import", "load", "translation")]
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(row["processor_seconds"])
    assert 500 < rows["run/tiny"]["nodes"] < rows["export/tiny"]["nodes"]


@pytest.mark.slow
def test_decode_has_rows_per_installed_engine(measure, monkeypatch):
    from benchmarks import decoding

    presets = config.TransformerConfig.PRESETS
    monkeypatch.setitem(presets, "tiny", presets["tiny"] | {"num_layers": 1})
    monkeypatch.setitem(decoding._FORCED, "tiny", (60, 5, 4))  # tokens, length, batch
    rows = measure("decode", "--presets=tiny", "--device=cpu", "--round_seconds=0")
    engines = ["ours", "ours_xla", "ours_default", "ours_bfloat16"]
    if importlib.util.find_spec("ctranslate2"):
        engines += ["ctranslate2", "ctranslate2_int8"]
    assert list(rows) == [
        f"{engine}/1x1/tiny/5-forced/{batch}" for engine in engines for batch in (4, 1)
    ]
    for row in rows.values():
        assert 0 < row["latency_p50_ms"] <= row["latency_p99_ms"]
        if row["engine"] in ("ours", "ours_xla") and len(engines) > 4:  # but for ties of sums
            assert row["equal"] >= 0.9 * row["compared"] > 0


def test_plan_has_every_pair_once_and_its_log_is_one_of_the_results(measure, tmp_path):
    *plans, resumed, whole = measure("plan", "--pairs=30000", "--whole_epoch").values()
    assert [row["action"] for row in plans] == ["plan in 8 shapes", "plan in 96 shapes"]
    assert plans[0]["shapes"] <= 8 < plans[1]["shapes"] <= 96
    assert plans[0]["real_share"] < plans[1]["real_share"] < 1
    assert resumed["seconds"] > 0 and whole["pairs_not_seen_once"] == 0
    results = runpy.run_path(str(_SCRIPTS / "results.py"))
    figure = results["value_in_log"](tmp_path, "log.json", "rows.plan-in-8-shapes.real_share")
    assert figure == plans[0]["real_share"]


@pytest.mark.slow
def test_layers_measure_table_1(measure, monkeypatch):
    from benchmarks import layers

    for name, kind in layers.LAYER_TYPES.items():
        assert layers.longest_path(name, 33, 4, 9) == kind.path(33, 9), name
    assert layers.longest_path("recurrent", 33, 4, 9) == 33  # O(n) in the paper
    # Each layer and length takes a process.
    attention = {"self-attention": layers.LAYER_TYPES["self-attention"]}
    monkeypatch.setattr(layers, "LAYER_TYPES", attention)
    monkeypatch.setattr(layers, "SEQUENTIAL_LENGTHS", (16, 32))
    rows = measure("layers", "--lengths=16,32", "--model_dim=8", "--window=5")
    operations = [rows[f"self-attention/{n}"]["operations"] for n in (16, 32)]
    assert operations[1] == 4 * operations[0] > 0
    (summary,) = (row for row in rows.values() if "paper_path" in row)
    assert summary["operations_exponent"] == pytest.approx(2)
    assert summary["path"] == summary["paper_path"] == 1


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
    config = ModelConfig.preset("tiny", vocabulary_size=50, num_layers=2, dropout=0.0)
    training = TrainingConfig.preset("tiny", precision="float32", warmup_steps=10)
    model = build_model(config)
    weights = {each.path.partition("/")[2]: each.numpy() for each in model.weights}
    source, target, labels = np.random.default_rng(1).integers(4, 50, (3, 4, 3, 6), np.int32)
    labels[:, 1, 4:] = target[:, 1, 4:] = source[:, 2, 5:] = 0  # padding
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
