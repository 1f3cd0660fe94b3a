"""scripts/benchmark.py train and plan: targets, statistics, PyTorch's model, and a small run."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import types

import numpy as np
import pytest

from keras_transformer.config import ModelConfig, TrainingConfig

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
_GOOD = {
    ("ours", "tiny", "128x16"): 9_600,
    ("pytorch", "tiny", "128x16"): 6_000,
    ("ours", "base", "128x16"): 800,
    ("pytorch", "base", "128x16"): 550,
    ("ours", "tiny", "multi30k:2048"): 10_500,
    ("pytorch", "tiny", "multi30k:2048"): 6_500,
    ("input_pipeline", "tiny", "multi30k:2048"): 200_000,
    ("ours", "tiny", "multi30k:8192"): 10_500,
    ("pytorch", "tiny", "multi30k:8192"): 6_500,
    ("input_pipeline", "tiny", "multi30k:8192"): 200_000,
}


@pytest.fixture
def benchmarks(monkeypatch):
    """The modules of scripts/benchmarks."""
    monkeypatch.syspath_prepend(str(_SCRIPTS))
    from benchmarks import engines, training

    return types.SimpleNamespace(engines=engines, training=training)


@pytest.fixture
def rows(benchmarks):
    """Makes rows of three rounds around speeds by engine, preset and batch, in float32."""

    def make(speeds, precision="float32"):
        return [
            benchmarks.engines.Row(
                unit="tokens",
                case=dict(zip(("engine", "preset", "batch"), model, strict=True))
                | {"precision": precision},
                rates=(speed * 0.9, speed, speed * 1.2),
                times=(0.2, 0.2, 0.2),
                values={"faults": 3.0, "system_seconds": 0.01, "peak_megabytes": 1310.2},
            )
            for model, speed in speeds.items()
        ]

    return make


def test_good_figures_meet_all_targets(benchmarks, rows):
    verdicts = benchmarks.training.check(rows(_GOOD), bfloat16=False)
    assert [verdict.met for verdict in verdicts] == [True] * 10
    assert verdicts[1].text == (
        "tiny 128x16, each at its best, at least 1.3 times: 1.60 (ours float32 against pytorch "
        "float32)"
    )


@pytest.mark.parametrize(
    ("positions", "row", "speed", "text"),
    [
        ([0, 1], ("ours", "tiny", "128x16"), 5_900, "0.98 (ours float32 against pytorch float32)"),
        ([1], ("pytorch", "tiny", "128x16"), 7_500, "1.28"),
        ([3], ("pytorch_kept_sleep", "tiny", "multi30k:2048"), 8_100, "against pytorch_kept_sleep"),
        ([4], ("input_pipeline", "tiny", "multi30k:2048"), 100_000, "multi30k:2048, the input"),
        ([6], ("pytorch_compiled", "tiny", "multi30k:8192"), 8_100, "against pytorch_compiled"),
        ([7], ("input_pipeline", "tiny", "multi30k:8192"), 100_000, "9.52"),
        ([8, 9], ("ours", "base", "128x16"), 540, "0.98"),
    ],
)
def test_each_target_can_be_missed(benchmarks, rows, positions, row, speed, text):
    verdicts = benchmarks.training.check(rows(_GOOD | {row: speed}), bfloat16=False)
    assert [place for place, verdict in enumerate(verdicts) if not verdict.met] == positions
    assert str(verdicts[positions[0]]).startswith("MISSED ")
    assert text in verdicts[positions[0]].text


def test_precisions_are_compared_alike_and_at_their_best(benchmarks, rows):
    key = ("ours", "tiny", "128x16"), ("pytorch", "tiny", "128x16")
    both = rows(dict(zip(key, (5_000, 4_000), strict=True)))
    both += rows(dict(zip(key, (5_500, 6_000), strict=True)), "mixed_bfloat16")
    single, half, best, *_ = benchmarks.training.check(both, bfloat16=True)
    assert (single.met, half.met, best.met) == (True, False, False)
    assert "mixed_bfloat16, at least 1 times: 0.92" in half.text
    assert "0.92 (ours mixed_bfloat16 against pytorch mixed_bfloat16)" in best.text


def test_slow_rounds_do_not_change_a_ratio(benchmarks, rows):
    disturbed = [
        dataclasses.replace(row, rates=(row.rates[0] / 5, row.rates[1] / 4, row.rates[2]))
        for row in rows(_GOOD)
    ]
    check = benchmarks.training.check
    assert check(disturbed, bfloat16=True) == check(rows(_GOOD), bfloat16=True)


@pytest.mark.parametrize(
    ("count", "expected"), [(5, None), (6, (0, 5)), (10, (1, 8)), (30, (9, 20)), (31, (9, 21))]
)
def test_confidence_interval_matches_published_ranks(benchmarks, count, expected):
    """Of 10 values the second and ninth, of 30 the tenth and 21st (Conover 1999)."""
    values = list(range(count))
    random.Random(1).shuffle(values)
    assert benchmarks.engines.confidence_interval(values) == expected


def test_ratio_has_a_confidence_interval(benchmarks, rows):
    ours, rival = (
        dataclasses.replace(row, rates=tuple(row.rates[1] * (1 + n / 100) for n in counts))
        for row, counts in zip(
            rows({key: _GOOD[key] for key in list(_GOOD)[:2]}),
            (range(10), [0] * 10),
            strict=True,
        )
    )
    verdict = benchmarks.training.check([ours, rival], bfloat16=False)[0]
    assert "1.67 [1.62, 1.73]" in verdict.text
    assert (ours.to_dict()["low"], ours.to_dict()["high"]) == (9_600 * 1.01, 9_600 * 1.08)


def test_turns_are_in_random_order(benchmarks):
    calls = []
    tasks = [lambda number, task=task: calls.append((number, task)) or task for task in range(4)]
    turns = benchmarks.engines.take_turns(tasks, 10)
    assert turns == [(task,) * 10 for task in range(4)]
    assert [number for number, _ in calls] == [number for number in range(10) for _ in range(4)]
    orders = {tuple(task for number, task in calls if number == turn) for turn in range(10)}
    assert len(orders) >= 6
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)


def test_table_is_aligned(benchmarks):
    rows = [
        {"engine": "ours", "tokens_per_second": 12345.6, "equal": None, "rounds": (1.0, 2.0)},
        {"engine": "pytorch", "tokens_per_second": 1.23456, "equal": 64, "rounds": (1.0, 2.0)},
    ]
    assert benchmarks.engines.table(rows).splitlines() == [
        "engine   tokens per second  equal",
        "ours                12,346      -",
        "pytorch              1.235     64",
    ]


@pytest.mark.parametrize(("met", "code"), [(False, 1), (True, 0), (None, 1)])
def test_exit_status_reports_missed_or_unmeasured_targets(
    benchmarks, call, monkeypatch, tmp_path, met, code
):
    verdict = benchmarks.engines.Verdict(met, "ten times as fast")
    monkeypatch.setattr(benchmarks.training, "check", lambda rows, **options: [verdict])
    nothing = ["--batch=multi30k", f"--data_dir={tmp_path}"]
    result = call("benchmark.py", "train", *nothing, "--check")
    assert (result.code, result.out.splitlines()[-1]) == (code, str(verdict))
    assert call("benchmark.py", "train", *nothing).code == 0


def test_unmeasured_targets_are_skipped_with_a_reason(benchmarks, rows):
    speeds = {key: speed for key, speed in _GOOD.items() if key[0] == "ours"}
    for measured, rival in ((speeds, "PyTorch"), ({}, "our side")):
        verdicts = benchmarks.training.check(rows(measured), bfloat16=True)
        assert [verdict.met for verdict in verdicts] == [None] * 14
        assert str(verdicts[0]).startswith("skipped ")
        assert verdicts[0].text.endswith(f"{rival} was not measured")


def test_processor_is_printed_above_the_table(call, tmp_path):
    result = call("benchmark.py", "train", "--batch=multi30k", f"--data_dir={tmp_path}")
    assert re.match(r"\d+ cores with \w+", result.out)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            [],
            ["before the flags, one of train, decode, clients, plan, layers; got nothing"],
        ),
        (["fly"], ["one of train, decode, clients, plan, layers; got fly"]),
        (["train", "--presets=tiny,huge"], ["--presets must be of ", "'huge'"]),
        (["train", "--precisions=int8"], ["--precisions must be of float32", "'int8'"]),
        (["train", "--batch=128"], ["rows x length, such as 128x16", "'128'"]),
        (["train", "--batch=0x16"], ["'0x16'"]),
        (["train", "--rounds=0"], ["--rounds must be a positive integer"]),
    ],
)
def test_wrong_arguments_fail_before_anything_loads(run, refused, tmp_path, arguments, parts):
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was loaded')")
    path = f"{tmp_path}{os.pathsep}{_SCRIPTS.parent}"
    refused(run("benchmark.py", *arguments, env={"PYTHONPATH": path}), *parts)


def test_missing_corpus_skips_real_batches_with_a_message(run, tmp_path):
    result = run("benchmark.py", "train", "--batch=multi30k", f"--data_dir={tmp_path}", "--json")
    assert (result.code, result.out) == (0, "")
    assert result.err == (f"Real batches are skipped: {tmp_path / 'train.en'} does not exist.\n")


# In a process without TensorFlow, beside which PyTorch's optimizers cannot be imported.
_PYTORCH_LOSSES = """
import json, sys
import numpy as np
import torch
from benchmarks import pytorch
from keras_transformer.config import ModelConfig, TrainingConfig

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
        _, side, _, index, part, *rest = name.split(".")
        layer = f"{side}/layer_{index}"
        attention = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}.get(part)
        if part.startswith("norm"):
            residuals = ["self_attention", "cross_attention", "feed_forward"]
            residuals = residuals if side == "decoder" else residuals[::2]
            kind = "gain" if rest == ["weight"] else "bias"
            value = ours(f"{layer}/{residuals[int(part[-1]) - 1]}_residual/norm/{kind}")
        elif rest == ["in_proj_weight"]:
            names = ["query_key_value"] if part == "self_attn" else ["query", "key_value"]
            value = ours(*(f"{layer}/{attention}/{each}/kernel" for each in names))
        elif attention:
            value = ours(f"{layer}/{attention}/output/kernel")
        else:
            linear = {"linear1": "inner", "linear2": "outer"}[part]
            kind = "kernel" if rest == ["weight"] else "bias"
            value = ours(f"{layer}/feed_forward/{linear}/{kind}")
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))

step = pytorch.make_step(model, settings)
losses = [
    step(({"source": source, "target": target}, labels))
    for source, target, labels in zip(arrays["source"], arrays["target"], arrays["labels"])
]
unused = sorted(arrays.keys() - used - {"source", "target", "labels"})
print(json.dumps([sum(each.numel() for each in model.parameters()), losses, unused]))
"""


def test_pytorch_has_our_parameters_and_losses(tmp_path, run_python):
    """With equal weights, before and after updates."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    import keras

    from keras_transformer.models import build_model
    from keras_transformer.training import compile_for_training

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
    for batch, loss in zip(zip(source, target, labels, strict=True), losses, strict=True):
        inputs = dict(zip(("source", "target"), batch, strict=False))
        model.reset_metrics()
        found = model.train_on_batch(inputs, batch[2], return_dict=True)["loss"]
        assert found == pytest.approx(loss, rel=2e-5)
    assert losses[-1] != pytest.approx(losses[0], rel=0.01)


_SMALL = ["--presets=tiny", "--precisions=float32", "--vocabulary_size=50", "--rounds=1",
          "--round_seconds=0", "--threads=1"]  # fmt: skip


@pytest.mark.slow
def test_train_prints_a_row_per_installed_engine(run):
    result = run("benchmark.py", "train", *_SMALL, "--batch=2x4", "--json", "--check")
    assert result.code == 1, result.err  # no target is for such a batch
    rows = [json.loads(line) for line in result.out.splitlines()]
    rivals = ["pytorch", "pytorch_kept", "pytorch_kept_sleep", "pytorch_compiled"]
    rivals = rivals if importlib.util.find_spec("torch") else []
    assert [row["engine"] for row in rows] == ["ours", *rivals]
    for row in rows:
        assert (row["preset"], row["precision"], row["batch"]) == ("tiny", "float32", "2x4")
        assert row["tokens_per_second"] == pytest.approx(8 / row["seconds_per_step"], rel=0.01)
        assert (row["steps"], row["threads"], len(row["rounds"])) == (30, 1, 1)
        assert row["peak_megabytes"] > 10
        assert "tensorflow 2." in row["version"] or "torch 2." in row["version"]
    skipped = [line for line in result.err.splitlines() if line.startswith("skipped ")]
    assert len(skipped) in (10, 14)


def test_plan_has_every_pair_once(run):
    result = run("benchmark.py", "plan", "--pairs=30000", "--whole_epoch", "--json")
    lines = [json.loads(line) for line in result.out.splitlines()]
    actions = [line["action"].split()[0] for line in lines]
    assert actions == ["length", "shapes,", "place", "whole"]
    assert "1 windows" in lines[1]["result"]
    assert lines[-1]["result"] == "every pair once"


def test_process_memory_excludes_its_parent(benchmarks):
    ballast = np.ones(2**26)  # 512 MiB
    program = "from benchmarks.engines import _peak_megabytes; print(_peak_megabytes())"
    path = os.pathsep.join([str(_SCRIPTS), str(_SCRIPTS.parent)])
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": path}, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 300 < ballast.nbytes / 2**20 < benchmarks.engines._peak_megabytes()
