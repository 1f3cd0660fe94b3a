"""scripts/benchmark.py: what it refuses, when it calls a target missed, and one small run."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import sys

import pytest

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
_GOOD = {
    ("ours", "tiny", "128x16"): 9_600,
    ("pytorch", "tiny", "128x16"): 6_000,
    ("ours", "base", "128x16"): 800,
    ("pytorch", "base", "128x16"): 750,
    ("ours", "tiny", "multi30k:2048"): 10_500,
    ("input_pipeline", "tiny", "multi30k:2048"): 200_000,
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
        common = dict(precision=precision, seconds_per_step=0.2, steps=3, threads=2, version="x 1")
        return [
            report.Row(
                **dict(zip(("engine", "preset", "batch"), model, strict=True)),
                rounds=(speed * 0.9, speed, speed * 1.2),
                **common,
            )
            for model, speed in speeds.items()
        ]

    return make


def _met(report, rows):
    return [verdict.met for verdict in report.check(rows)]


def test_all_targets_are_met_by_figures_that_meet_them(report, rows):
    assert _met(report, rows(_GOOD)) == [True, True, True, True]


@pytest.mark.parametrize(
    ("position", "row", "speed", "text"),
    [
        (0, ("ours", "tiny", "128x16"), 8_940, "1.49 (float32 against pytorch float32)"),
        (0, ("pytorch", "tiny", "128x16"), 6_500, "1.48"),
        (1, ("ours", "base", "128x16"), 742, "0.99"),
        (2, ("ours", "tiny", "multi30k:2048"), 9_880, "9,880 (float32, multi30k:2048)"),
        (3, ("input_pipeline", "tiny", "multi30k:2048"), 100_000, "9.5 (multi30k:2048)"),
    ],
)
def test_each_target_can_be_missed_alone(report, rows, position, row, speed, text):
    verdicts = report.check(rows(_GOOD | {row: speed}))
    assert [place for place, verdict in enumerate(verdicts) if not verdict.met] == [position]
    assert str(verdicts[position]).startswith("MISSED ")
    assert text in str(verdicts[position])


def test_the_better_precision_of_each_side_counts(report, rows):
    slow_rival, fast_rival = ({("pytorch", "tiny", "128x16"): speed} for speed in (4_000, 7_000))
    others = {key: speed for key, speed in _GOOD.items() if key not in slow_rival}
    both = rows(others) + rows(slow_rival) + rows(fast_rival, "mixed_bfloat16")
    verdict = report.check(both)[0]
    assert not verdict.met
    assert "1.37 (float32 against pytorch mixed_bfloat16)" in verdict.text
    ours = rows({("ours", "tiny", "128x16"): 10_600}, "mixed_bfloat16")
    assert report.check(both + ours)[0].met


def test_a_slow_minute_of_the_machine_does_not_change_a_ratio(report, rows):
    steady = rows(_GOOD)
    disturbed = [
        dataclasses.replace(row, rounds=(row.rounds[0] / 5, row.rounds[1] / 4, row.rounds[2]))
        for row in steady
    ]
    assert report.check(disturbed)[:2] == report.check(steady)[:2]


@pytest.mark.parametrize(("met", "code"), [(False, 1), (True, 0), (None, 1)])
def test_a_target_that_is_missed_or_none_that_is_measured_is_told_by_the_exit_status(
    report, call, monkeypatch, tmp_path, met, code
):
    verdict = report.Verdict(met, "ten times as fast")
    monkeypatch.setattr(report, "check", lambda rows: [verdict])
    nothing = ["--batch=multi30k", f"--data_dir={tmp_path}"]
    result = call("benchmark.py", "train", *nothing, "--check")
    assert (result.code, result.out.splitlines()[-1]) == (code, str(verdict))
    assert call("benchmark.py", "train", *nothing).code == 0


def test_targets_that_were_not_measured_are_skipped_and_say_why(report, rows):
    speeds = {key: speed for key, speed in _GOOD.items() if key[0] == "ours"}
    verdicts = report.check(rows(speeds))
    assert [verdict.met for verdict in verdicts] == [None, None, True, None]
    assert str(verdicts[0]).startswith("skipped ")
    assert verdicts[0].text.endswith("PyTorch was not measured")
    assert _met(report, []) == [None] * 4


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["give what to measure before the flags, one of train, decode; got nothing"]),
        (["fly"], ["one of train, decode; got fly"]),
        (["train", "--presets=tiny,huge"], ["--presets must be of tiny, base, big", "'huge'"]),
        (["train", "--precisions=int8"], ["--precisions must be of float32", "'int8'"]),
        (["train", "--batch=128"], ["rows x length, such as 128x16", "'128'"]),
        (["train", "--batch=0x16"], ["'0x16'"]),
        (["train", "--rounds=0"], ["--rounds=0"]),
    ],
)
def test_a_wrong_argument_is_told_before_anything_is_loaded(
    run, refused, tmp_path, arguments, parts
):
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was loaded')")
    path = f"{tmp_path}{os.pathsep}{_SCRIPTS.parent}"
    refused(run("benchmark.py", *arguments, env={"PYTHONPATH": path}), *parts)


def test_real_batches_are_left_out_with_a_line_where_the_corpus_is_absent(run, tmp_path):
    result = run("benchmark.py", "train", "--batch=multi30k", f"--data_dir={tmp_path}", "--json")
    assert (result.code, result.out) == (0, "")
    assert result.err == (f"Real batches are left out: {tmp_path / 'train.en'} does not exist.\n")


_SMALL = ["--presets=tiny", "--precisions=float32", "--vocabulary_size=50", "--rounds=1",
          "--round_seconds=0", "--threads=1"]  # fmt: skip


def test_a_small_run_prints_a_row_of_each_engine_that_is_installed(run):
    result = run("benchmark.py", "train", *_SMALL, "--batch=2x4", "--json", "--check")
    assert result.code == 1, result.err  # no target is for such a batch
    rows = [json.loads(line) for line in result.out.splitlines()]
    rivals = ["pytorch", "pytorch_sleep"] if importlib.util.find_spec("torch") else []
    assert [row["engine"] for row in rows] == ["ours", *rivals]
    for row in rows:
        assert (row["preset"], row["precision"], row["batch"]) == ("tiny", "float32", "2x4")
        assert row["tokens_per_second"] == pytest.approx(8 / row["seconds_per_step"], rel=0.01)
        assert row["tokens_per_second_worst"] <= row["tokens_per_second_best"]
        assert (row["steps"], row["threads"], len(row["rounds"])) == (1, 1, 1)
        assert "tensorflow 2." in row["version"] or "torch 2." in row["version"]
    assert [line.split()[0] for line in result.err.splitlines()] == ["skipped"] * 4
