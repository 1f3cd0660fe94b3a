"""scripts/benchmark.py clients: how requests are merged, when a target is missed, a small run."""

import json
import os
import pathlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.serving.model_folder import write_server_files

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
# Sentences a second by session, batching and clients.
_GOOD = {
    ("plain", "none", 1): 90,
    ("plain", "none", 16): 100,
    ("plain", "none", 64): 100,
    ("session.config", "none", 16): 150,
    ("session.config", "file", 1): 100,
    ("session.config", "file", 16): 250,
    ("session.config", "file", 64): 400,
    ("session.config", "64x0x2", 16): 240,
    ("session.config", "64x0x4", 64): 420,
}


@pytest.fixture
def clients(monkeypatch):
    """The module of scripts/benchmarks."""
    monkeypatch.syspath_prepend(str(_SCRIPTS))
    from benchmarks import clients

    return clients


@pytest.fixture
def verdicts(clients):
    """Gives the verdicts on figures such as `_GOOD`."""

    def verdicts(figures):
        rows = []
        for (session, batching, count), rate in figures.items():
            case = dict(export="mine", session=session, batching=batching, setting=batching,
                        clients=count)  # fmt: skip
            rates = (0.9 * rate, rate, 1.2 * rate)
            times = tuple(count / each for each in rates)
            rows.append(
                clients.Row(unit="sentences", case=case, rates=rates, times=times, values={})
            )
        return clients.check(rows)

    return verdicts


def test_good_figures_meet_all_targets(verdicts):
    results = verdicts(_GOOD)
    assert [verdict.met for verdict in results] == [True] * 6
    assert "0.90 (file against none)" in results[0].text
    assert "2.50 (file against none)" in results[1].text


@pytest.mark.parametrize(
    ("position", "row", "rate", "text"),
    [
        (0, ("session.config", "file", 1), 60, "1.50 (file against none)"),
        (1, ("plain", "none", 16), 160, "1.56 (file against none)"),
        (2, ("session.config", "none", 16), 200, "1.25 (file against none)"),
        (3, ("plain", "none", 64), 250, "1.60 (file against none)"),
        (4, ("session.config", "64x0x2", 16), 300, "0.83 (file against 64x0x2)"),
        (5, ("session.config", "64x0x4", 64), 500, "0.80 (file against 64x0x4)"),
    ],
)
def test_slow_exported_files_miss_a_target(verdicts, position, row, rate, text):
    results = verdicts(_GOOD | {row: rate})
    assert text in results[position].text
    assert [place for place, verdict in enumerate(results) if verdict.met is False] == [position]


def test_unmeasured_targets_are_skipped(verdicts):
    results = verdicts({key: rate for key, rate in _GOOD.items() if key[1] in ("none", "file")})
    assert [verdict.met for verdict in results] == [True] * 4 + [None] * 2
    assert results[-1].text.endswith("other values was not measured")


def test_settings_name_how_requests_are_merged(clients, tmp_path):
    write_server_files(tmp_path, "words", largest_batch=8)
    assert clients.Batching.of("none", tmp_path) is None
    assert clients.Batching.of("8x500x4", tmp_path) == (8, 500, 4)
    exported = clients.Batching.of("file", tmp_path)
    assert clients.Batching.of(exported.name, tmp_path) == exported
    (tmp_path / "batching_parameters.txt").write_text("max_batch_size { value: 8 }\n")
    with pytest.raises(InputError, match=r"txt does not set batch_timeout_micros; add it"):
        clients.Batching.of("file", tmp_path)


@pytest.mark.parametrize("text", ["all", "64x2000", "0x0x2", "64x0x0", "64x-1x2"])
def test_unknown_settings_are_rejected(clients, tmp_path, text):
    with pytest.raises(InputError, match=f"values such as 64x2000x2 .*, got '{text}'"):
        clients.Batching.of(text, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--sentences=test.en"], ["clients needs --exports"]),
        (["--exports=exports/mine"], ["clients needs --exports", "and --sentences"]),
        (["--exports=exports/mine", "--sentences=test.en", "--clients=0"],
         ["--clients must be positive numbers, got '0'; use 1,16,64"]),
        (["--run_dir=runs/mine"], ["--run_dir cannot be combined with clients; remove the flag"]),
    ],
)  # fmt: skip
def test_wrong_arguments_fail_before_anything_loads(run, refused, tmp_path, arguments, parts):
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was loaded')")
    path = f"{tmp_path}{os.pathsep}{_SCRIPTS.parent}"
    refused(run("benchmark.py", "clients", *arguments, env={"PYTHONPATH": path}), *parts)


def test_folder_without_a_version_is_rejected(run, refused, tmp_path):
    (tmp_path / "test.en").write_text("a\n")
    flags = [f"--exports={tmp_path}", f"--sentences={tmp_path / 'test.en'}", "--batching=none"]
    refused(run("benchmark.py", "clients", *flags), f"no version of a SavedModel in {tmp_path}")


@pytest.mark.parametrize(("largest", "expected"), [(4, [1, 4, 4]), (16, [1, 8])])
def test_waiting_requests_are_merged_and_each_gets_its_own_answer(clients, largest, expected):
    has_begun, may_end, sizes = threading.Event(), threading.Event(), []

    def model(texts):
        sizes.append(len(texts))
        has_begun.set()
        may_end.wait(30)
        return np.stack([texts, texts], axis=1), np.zeros([len(texts), 2], np.float32)

    run, close = clients.merged(model, clients.Batching(largest, 0, 1), clients=9)
    texts = [f"größe {number}".encode() for number in range(9)]
    with ThreadPoolExecutor(len(texts)) as pool:
        asked = [pool.submit(run, np.array(texts[:1], object))]
        assert has_begun.wait(30)  # the only thread is busy: the others wait in the queue
        asked += [pool.submit(run, np.array([text], object)) for text in texts[1:]]
        threading.Timer(3, may_end.set).start()  # when all are in the queue
        answers = [each.result() for each in asked]
    close()
    assert [translations.tolist() for translations, _ in answers] == [[[t, t]] for t in texts]
    assert sizes == expected


@pytest.mark.slow
def test_clients_prints_a_row_for_each_way_of_batching(call, exported, tmp_path):
    (tmp_path / "sentences").write_text("sun\nhello tree\ncat cat two house\n\ntwo\n")
    flags = [f"--exports={exported.parent}", f"--sentences={tmp_path / 'sentences'}",
             "--batching=none,file,2x0x1", "--clients=1,3", "--rounds=1", "--round_seconds=0",
             "--threads=1", "--json", "--check"]  # fmt: skip
    result = call("benchmark.py", "clients", *flags)
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [(row["session"], row["batching"], row["clients"]) for row in rows] == [
        (session, batching, count)
        for session in ("plain", "session.config")
        for batching in ("none", "file", "2x0x1")
        for count in (1, 3)
    ], result.err
    for row in rows:
        assert row["equal_share"] == 1
        most = {"none": 1, "2x0x1": 2}.get(row["batching"], 3)
        assert 1 <= row["mean_batch"] <= min(most, row["clients"])
        assert 0 < row["latency_p50_ms"] <= row["latency_p99_ms"]
        assert row["sentences_per_second"] > 0 < row["megabytes"]
    words = [line.split()[0] for line in result.err.splitlines()[-6:]]
    assert words[1:] == ["skipped"] * 5  # 16 and 64 clients were not measured
