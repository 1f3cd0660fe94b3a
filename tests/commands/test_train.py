"""The command train: what it leaves, how it resumes, and what it rejects."""

import json
import platform
import re
import shutil
import signal

import pytest

from keras_transformer.training import Stopped, distribution


def _contents(folder):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def copy(run_dir, tmp_path):
    return shutil.copytree(run_dir, tmp_path / "copy")


def test_process_leaves_a_complete_run_directory(run, train_flags, tmp_path):
    run_dir = tmp_path / "run"
    result = run("train.py", f"--run_dir={run_dir}", *train_flags)
    assert (result.code, result.err) == (0, "")
    assert "Trained 4 steps on " in result.out
    names = {path.name for path in run_dir.iterdir()}
    files = {"config.json", "source.model", "metrics.jsonl", "lock"}
    assert names == files | {"checkpoints", "tokens"}
    stems = {path.name.partition(".")[0] for path in (run_dir / "checkpoints").iterdir()}
    assert stems == {"step-2", "step-4", "average", "checkpoint_metrics"}
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4]
    assert all({"val_loss", "bleu"} < row.keys() for row in rows)


def test_early_stop_is_said_when_it_happens_and_afterwards(call, tmp_path, train_flags):
    stop = ("--stop_metric=val_loss", "--stop_patience=1", "--checkpoint_steps=1")
    steps = ("--train_steps=9", "--warmup_steps=1", "--learning_rate=9")  # diverges
    for start in ("\n", "Nothing to do: "):
        result = call("train.py", f"--run_dir={tmp_path}/run", *train_flags, *stop, *steps)
        assert (result.code, result.err) == (0, "")
        assert f"{start}val_loss stopped the run early, at step " in result.out


def test_finished_run_is_reported_and_unchanged(call, copy, texts):
    before = _contents(copy)
    same = f"--train_source={texts}/../{texts.name}/train.en"  # the path in another way
    result = call("train.py", f"--run_dir={copy}", same)
    assert (result.code, result.err) == (0, "")
    assert "Nothing to do: the run has reached its last step, 300; give more" in result.out
    after = _contents(copy)
    before.pop("config.json"), after.pop("config.json")  # written again
    assert after == before


def test_differing_flags_are_rejected_by_name(call, copy, run_dir, texts, refused):
    before = _contents(copy)
    for flags, differences in (
        (["--num_layers=2", "--seed=7"],
         "num_layers is 1 there and 2 here; seed is 1 there and 7 here; remove these options"),
        (["--vocabulary_size=40"], "vocabulary_size is 30 there and 40 here; remove"),
        (["--dataset=number_names/en-de"],
         "dataset is None there and 'number_names/en-de' here; remove"),
        ([f"--train_source={texts}/dev.en"], "train_source is "),
        ([f"--start_from={run_dir}"], f"start_from is None there and '{run_dir}' here; "),
        (["--preset=tiny"], "model_dim is 32 there and 128 here; "),
    ):  # fmt: skip
        result = call("train.py", f"--run_dir={copy}", *flags, "--train_steps=350")
        refused(result, f"{copy} holds another run: {differences}", "give another --run_dir")
    assert "dropout is 0.0 there and 0.3 here" in result.err and "seed" not in result.err
    result = call("train.py", f"--run_dir={copy}", "--train_steps=30")
    refused(result, f"train_steps is 30, and the run in {copy} is at step 300 already; give more")
    assert _contents(copy) == before


def test_printed_flags_make_the_same_run(call, copy, tmp_path):
    printed = call("train.py", f"--run_dir={copy}", "--print_flags")
    assert (printed.code, printed.err) == (0, "")
    (tmp_path / "flags").write_text(f"# the settings\n{printed.out}")
    again = call("train.py", f"--run_dir={copy}", f"--flagfile={tmp_path}/flags")
    assert (again.code, again.err) == (0, "")
    assert "Nothing to do" in again.out
    given = f"--flagfile={tmp_path}/flags", "--seed=7", f"--run_dir={copy}"
    for order in (given, reversed(given)):  # the flags of the command count, not those of the file
        assert "seed is 1 there and 7 here" in call("train.py", *order).err


@pytest.mark.slow
def test_damaged_run_is_resumed_and_extended(call, copy):
    before = json.loads((copy / "config.json").read_text())
    shutil.rmtree(copy / "tokens")
    (data,) = (copy / "checkpoints").glob("step-300.data*")
    data.write_bytes(data.read_bytes()[:1000])
    result = call("train.py", f"--run_dir={copy}", "--train_steps=302", "--log_steps=70")
    assert result.code == 0, result.err
    assert "The text was not in the cache: if it has changed since the run began" in result.out
    assert "step-300 is damaged" in result.out
    assert "resuming from step 150" in result.out
    assert "Trained 302 steps on " in result.out
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [50, 100, 150, 210, 280, 300, 302]
    after = json.loads((copy / "config.json").read_text())
    assert after["training"] == before["training"] | {"train_steps": 302, "log_steps": 70}
    assert (after["model"], after["data"]) == (before["model"], before["data"])


def test_run_without_its_test_files_is_resumed(call, copy, tmp_path):
    config = json.loads((copy / "config.json").read_text())
    config["data"]["test_source"] = str(tmp_path / "gone")
    (copy / "config.json").write_text(json.dumps(config))
    result = call("train.py", f"--run_dir={copy}")
    assert (result.code, result.err) == (0, "")
    assert "Nothing to do" in result.out


@pytest.mark.slow
def test_full_disk_leaves_whole_checkpoints(run, small_disk, train_flags, refused):
    run_dir = small_disk("1m") / "run"
    result = run("train.py", f"--run_dir={run_dir}", *train_flags, "--model_dim=64")
    place = f"{run_dir}/checkpoints"
    refused(result, f"cannot write checkpoint step-4 to {place}", "free some space", "is step-2")
    left = {path.name.partition(".")[0] for path in (run_dir / "checkpoints").iterdir()}
    assert left == {"step-2", "checkpoint_metrics"}


def test_stopped_run_reports_checkpoint_and_status(call, tmp_path, train_flags, training_ends):
    command = ("train.py", f"--run_dir={tmp_path}/run", *train_flags)
    expected = f"stopped; checkpoint step-7 is saved in {tmp_path}/run/checkpoints, and the same "
    training_ends(Stopped(signal.SIGTERM, 7))
    result = call(*command)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1] == f"{expected}command resumes from there"
    training_ends(Stopped(signal.SIGINT, 7))
    result = call(*command)
    assert result.code == 130
    assert result.err.strip() == f"train.py: {expected}command resumes from there"
    training_ends(KeyboardInterrupt())
    result = call(*command)
    assert (result.code, result.err.strip()) == (130, "train.py: interrupted")


def start_workers(start, free_ports, *arguments):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    tasks = [{"cluster": cluster, "task": {"type": "worker", "index": each}} for each in range(2)]
    return [start("train.py", *arguments, env={"TF_CONFIG": json.dumps(task)}) for task in tasks]


@pytest.mark.slow
def test_two_workers_train_the_same_run_as_one(start, call, tmp_path, train_flags, free_ports):
    assert call("train.py", f"--run_dir={tmp_path}/alone", *train_flags).code == 0
    for worker in start_workers(start, free_ports, f"--run_dir={tmp_path}/run", *train_flags):
        _, err = worker.communicate(timeout=1200)
        assert worker.returncode == 0, err
    rows, expected = (
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (tmp_path / "run", tmp_path / "alone")
    )
    for row, other in zip(rows, expected, strict=True):
        for name in ("step", "target_tokens", "padding", "bleu"):
            assert row[name] == other[name]
        for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
            assert row[name] == pytest.approx(other[name], rel=1e-3)
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert names == {path.name for path in (tmp_path / "alone" / "checkpoints").iterdir()}


@pytest.mark.slow
def test_sigterm_to_one_worker_stops_all_at_same_step(start, tmp_path, train_flags, free_ports):
    options = ("--train_steps=1000000", "--checkpoint_steps=1000000", "--log_steps=1")
    without_dev = [flag for flag in train_flags if not flag.startswith("--dev_")]  # saves time
    workers = start_workers(start, free_ports, f"--run_dir={tmp_path}/run", *without_dev, *options)
    for line in workers[0].stdout:
        if "tok/s" in line:
            break
    workers[1].terminate()
    steps = []
    for worker in workers:
        out, err = worker.communicate(timeout=1200)
        assert worker.returncode == 0, err
        steps += re.findall(r"stopped; checkpoint step-(\d+) is saved in", out)
    assert len(steps) == 2
    (step,) = set(steps)
    assert (tmp_path / "run" / "checkpoints" / f"step-{step}.index").exists()


@pytest.mark.parametrize(("computes", "trim_threshold"), [(True, "131072"), (False, None)])
def test_slow_bfloat16_and_malloc_are_reported(
    call, train_flags, tmp_path, monkeypatch, training_ends, computes, trim_threshold
):
    precision = "mixed_bfloat16" if computes else "float32"
    monkeypatch.setattr(distribution, "auto_precision", lambda: precision)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    if trim_threshold:  # set by the user
        monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", trim_threshold)
    training_ends(Stopped(signal.SIGTERM, 7))
    flags = [*train_flags, "--precision=mixed_bfloat16"]
    result = call("train.py", f"--run_dir={tmp_path / 'run'}", *flags)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    warnings = [line for line in lines if "instructions for bfloat16" in line]
    assert len(warnings) == (0 if computes else 1), result.out
    assert computes or "at 0.7 of the rate with AVX2" in warnings[0]
    is_kept = trim_threshold is None and platform.libc_ver()[0] == "glibc"
    assert ("Training on the CPU, freed memory kept, with" in result.out) == is_kept


def test_missing_dev_set_names_flags_of_the_text(call, train_flags, tmp_path, training_ends):
    training_ends(Stopped(signal.SIGTERM, 7))
    flags = [flag for flag in train_flags if not flag.startswith("--dev_")]
    result = call("train.py", f"--run_dir={tmp_path / 'pairs'}", *flags)
    assert "There is no dev set; name one with --dev_source and --dev_target.\n" in result.out
    (tmp_path / "trees").write_text("(S (NP (NN a)) (VP (VB b)))\n" * 5)
    flags = ("--task=parsing", f"--train_file={tmp_path / 'trees'}")
    result = call("train.py", f"--run_dir={tmp_path / 'trees_run'}", *flags)
    assert "There is no dev set; name one with --dev_file.\n" in result.out
