"""scripts/benchmark.py: what it refuses, when it calls a target missed, and one small run."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
_GOOD = {
    ("ours", "tiny", "128x16"): 9_600,
    ("pytorch", "tiny", "128x16"): 6_000,
    ("ours", "base", "128x16"): 800,
    ("pytorch", "base", "128x16"): 750,
    ("ours", "tiny", "multi30k:2048"): 10_500,
    ("pytorch", "tiny", "multi30k:2048"): 6_500,
    ("input_pipeline", "tiny", "multi30k:2048"): 200_000,
    ("ours", "tiny", "multi30k:8192"): 10_500,
    ("pytorch", "tiny", "multi30k:8192"): 6_500,
    ("input_pipeline", "tiny", "multi30k:8192"): 200_000,
}


@pytest.fixture(scope="module")
def report():
    sys.path.append(str(_SCRIPTS))
    try:
        from benchmarks import report
    finally:
        sys.path.remove(str(_SCRIPTS))
    return report


@pytest.fixture
def rows(report):
    """Makes rows of three rounds around speeds by engine, preset and batch, in float32."""

    def make(speeds, precision="float32"):
        return [
            report.Row(
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


def _met(report, rows, bfloat16=True):
    return [verdict.met for verdict in report.check_training(rows, bfloat16=bfloat16)]


@pytest.mark.parametrize("bfloat16", [True, False])
def test_good_figures_meet_all_targets(report, rows, bfloat16):
    assert _met(report, rows(_GOOD), bfloat16) == [True] * 6


@pytest.mark.parametrize(
    ("position", "row", "speed", "text"),
    [
        (0, ("ours", "tiny", "128x16"), 8_940, "1.49 (ours float32 against pytorch float32)"),
        (0, ("pytorch", "tiny", "128x16"), 6_500, "1.48"),
        (1, ("pytorch", "tiny", "multi30k:2048"), 7_100, "1.48"),
        (2, ("input_pipeline", "tiny", "multi30k:2048"), 100_000, "multi30k:2048, at least 10"),
        (2, ("input_pipeline", "tiny", "multi30k:2048"), 100_000, "9.52"),
        (3, ("ours", "tiny", "multi30k:8192"), 9_600, "1.48"),
        (4, ("input_pipeline", "tiny", "multi30k:8192"), 100_000, "multi30k:8192, at least 10"),
        (5, ("ours", "base", "128x16"), 742, "0.99"),
    ],
)
def test_each_target_can_be_missed_alone(report, rows, position, row, speed, text):
    verdicts = report.check_training(rows(_GOOD | {row: speed}), bfloat16=True)
    assert [place for place, verdict in enumerate(verdicts) if not verdict.met] == [position]
    assert str(verdicts[position]).startswith("MISSED ")
    assert text in str(verdicts[position])


def test_best_precision_of_each_side_counts(report, rows):
    slow_rival, fast_rival = ({("pytorch", "tiny", "128x16"): speed} for speed in (4_000, 7_000))
    others = {key: speed for key, speed in _GOOD.items() if key not in slow_rival}
    both = rows(others) + rows(slow_rival) + rows(fast_rival, "mixed_bfloat16")
    verdict = report.check_training(both, bfloat16=True)[0]
    assert not verdict.met
    assert "1.37 (ours float32 against pytorch mixed_bfloat16)" in verdict.text
    ours = rows({("ours", "tiny", "128x16"): 10_600}, "mixed_bfloat16")
    assert report.check_training(both + ours, bfloat16=True)[0].met


def test_without_bfloat16_instructions_float32_counts(report, rows):
    verdicts = [
        report.check_training(
            rows(_GOOD | {("ours", "tiny", "128x16"): speed})
            + rows({("ours", "tiny", "128x16"): 10_000}, "mixed_bfloat16"),
            bfloat16=False,
        )[0]
        for speed in (7_140, 7_260)
    ]
    assert [verdict.met for verdict in verdicts] == [False, True]
    assert "at least 1.2 times: 1.19 (ours float32" in verdicts[0].text


@pytest.mark.parametrize("engine", ["pytorch_kept", "pytorch_kept_sleep"])
def test_best_pytorch_setting_counts(report, rows, engine):
    faster = rows(_GOOD) + rows({(engine, "tiny", "128x16"): 6_500})
    verdict = report.check_training(faster, bfloat16=True)[0]
    assert not verdict.met
    assert f"1.48 (ours float32 against {engine} float32)" in verdict.text


def test_slow_rounds_do_not_change_a_ratio(report, rows):
    steady = rows(_GOOD)
    disturbed = [
        dataclasses.replace(row, rates=(row.rates[0] / 5, row.rates[1] / 4, row.rates[2]))
        for row in steady
    ]
    checked = [report.check_training(each, bfloat16=True) for each in (disturbed, steady)]
    assert checked[0] == checked[1]


def test_table_is_aligned(report):
    rows = [
        {"engine": "ours", "tokens_per_second": 12345.6, "equal": None, "rounds": (1.0, 2.0)},
        {"engine": "pytorch", "tokens_per_second": 1.23456, "equal": 64, "rounds": (1.0, 2.0)},
    ]
    assert report.table(rows).splitlines() == [
        "engine   tokens per second  equal",
        "ours                12,346      -",
        "pytorch              1.235     64",
    ]


@pytest.mark.parametrize(("met", "code"), [(False, 1), (True, 0), (None, 1)])
def test_exit_status_reports_missed_or_unmeasured_targets(
    report, call, monkeypatch, tmp_path, met, code
):
    verdict = report.Verdict(met, "ten times as fast")
    monkeypatch.setattr(report, "check_training", lambda rows, **options: [verdict])
    nothing = ["--batch=multi30k", f"--data_dir={tmp_path}"]
    result = call("benchmark.py", "train", *nothing, "--check")
    assert (result.code, result.out.splitlines()[-1]) == (code, str(verdict))
    assert call("benchmark.py", "train", *nothing).code == 0


def test_unmeasured_targets_are_skipped_with_a_reason(report, rows):
    speeds = {key: speed for key, speed in _GOOD.items() if key[0] == "ours"}
    verdicts = report.check_training(rows(speeds), bfloat16=True)
    assert [verdict.met for verdict in verdicts] == [None] * 6
    assert str(verdicts[0]).startswith("skipped ")
    assert verdicts[0].text.endswith("PyTorch was not measured")
    assert _met(report, []) == [None] * 6


def test_processor_is_printed_above_the_table(call, tmp_path):
    result = call("benchmark.py", "train", "--batch=multi30k", f"--data_dir={tmp_path}")
    assert re.match(r"\d+ cores with \w+", result.out)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            [],
            ["before the flags, one of train, decode, plan, layers; got nothing"],
        ),
        (["fly"], ["one of train, decode, plan, layers; got fly"]),
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
    assert result.err == (f"Real batches are left out: {tmp_path / 'train.en'} does not exist.\n")


_SMALL = ["--presets=tiny", "--precisions=float32", "--vocabulary_size=50", "--rounds=1",
          "--round_seconds=0", "--threads=1"]  # fmt: skip


@pytest.mark.slow
def test_train_prints_a_row_per_installed_engine(run):
    result = run("benchmark.py", "train", *_SMALL, "--batch=2x4", "--json", "--check")
    assert result.code == 1, result.err  # no target is for such a batch
    rows = [json.loads(line) for line in result.out.splitlines()]
    rivals = (
        ["pytorch", "pytorch_kept", "pytorch_kept_sleep"]
        if importlib.util.find_spec("torch")
        else []
    )
    assert [row["engine"] for row in rows] == ["ours", *rivals]
    for row in rows:
        assert (row["preset"], row["precision"], row["batch"]) == ("tiny", "float32", "2x4")
        assert row["tokens_per_second"] == pytest.approx(8 / row["seconds_per_step"], rel=0.01)
        assert row["tokens_per_second_worst"] <= row["tokens_per_second_best"]
        assert (row["steps"], row["threads"], len(row["rounds"])) == (1, 1, 1)
        assert row["faults"] >= 0
        assert row["system_seconds"] >= 0
        assert row["peak_megabytes"] > 10
        assert "tensorflow 2." in row["version"] or "torch 2." in row["version"]
    assert [line.split()[0] for line in result.err.splitlines()] == ["skipped"] * 6


def test_plan_has_every_pair_once(run):
    result = run("benchmark.py", "plan", "--pairs=30000", "--whole_epoch", "--json")
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [line["action"].split()[0] for line in lines] == [
        "length",
        "shapes,",
        "place",
        "whole",
    ]
    assert "1 windows" in lines[1]["result"]
    assert lines[-1]["result"] == "every pair once"


def test_process_memory_excludes_its_parent(report):
    from benchmarks import engines

    ballast = np.ones(2**27)  # 1 GiB
    program = "from benchmarks.engines import _peak_megabytes; print(_peak_megabytes())"
    path = os.pathsep.join([str(_SCRIPTS), str(_SCRIPTS.parent)])
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": path}, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 500 < ballast.nbytes / 2**20 < engines._peak_megabytes()
