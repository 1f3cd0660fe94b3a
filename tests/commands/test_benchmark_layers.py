"""scripts/benchmark.py layers: what it counts and computes, and one small run; no times."""

import pathlib

import pytest

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
NAMES = [
    "self-attention", "with projections", "restricted", "with projections, restricted",
    "recurrent", "convolution", "dilated", "separable",
]  # fmt: skip
N, D, R, K = 192, 128, 65, 3


@pytest.fixture
def layers(monkeypatch):
    """The module of scripts/benchmarks."""
    monkeypatch.syspath_prepend(str(_SCRIPTS))
    from benchmarks import layers

    return layers


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("self-attention", 2 * N**2 * D),  # scores, and weighted sums
        ("with projections", 2 * N**2 * D + 4 * N * D**2),
        ("restricted", 2 * (2 * (R - 1)) * N * D),  # blocks of r - 1 see as many more
        ("with projections, restricted", 2 * (2 * (R - 1)) * N * D + 4 * N * D**2),
        ("recurrent", 2 * N * D**2),  # of the input and of the state
        ("convolution", K * N * D**2),
        ("dilated", K * N * D**2),
        ("separable", K * N * D + N * D**2),
    ],
)
def test_layer_operations_match_table_1(layers, name, operations):
    assert layers.count_operations(name, N, D, R) == operations


@pytest.mark.parametrize("name", NAMES)
def test_gradient_path_lengths_match_table_1(layers, name):
    kind = layers.LAYER_TYPES[name]
    for n, r in ((2, 3), (9, 5), (10, 5)):
        assert layers.longest_path(name, n, 4, r) == kind.path(n, r)


def test_paths_match_table_1(layers):
    paths = [layers.LAYER_TYPES[name].path(28, 9) for name in NAMES]
    # 27 steps of (9 - 1) / 2 positions, of (3 - 1) / 2, and log_3 28 rounded up.
    assert paths == [1, 1, 7, 7, 1, 27, 4, 27]
    assert layers.LAYER_TYPES["dilated"].path(27, 9) == 3


def test_exponent_is_the_slope_over_long_lengths(layers):
    rows = [{"n": n, "both_ms": 5 + 3e-3 * n**2, "flat": 7.0} for n in (64, 1024, 4096, 8192)]
    assert layers.exponent(rows, "both_ms", least=2048) == pytest.approx(2, abs=1e-3)
    assert layers.exponent(rows, "both_ms") < 1.95
    assert layers.exponent(rows, "flat") == pytest.approx(0)
    assert layers.exponent(rows[:1], "flat") is None


def test_crossing_is_interpolated_on_log_scale(layers):
    rows = [
        {"layer": name, "n": n, "operations": value}
        for n in (128, 256, 1024, 2048)
        for name, value in (("one", 2 * n**2 * 512), ("other", 2 * n * 512**2))
    ]
    assert layers.crossing(rows, "operations", "one", "other") == pytest.approx(512)
    assert layers.crossing(rows, "operations", "other", "one") is None
    assert layers.crossing(rows[:4], "operations", "one", "other") is None


def test_layer_targets_compare_one_run(layers):
    rows = [
        {"layer": layer, "n": 4096, "both_ms": ms, "both_megabytes": megabytes}
        for layer, ms, megabytes in (
            ("self-attention", 800.0, 999.0), ("restricted", 100.0, 100.0),
            ("with projections", 800.0, 1000.0),
        )
    ]  # fmt: skip
    met = [verdict.met for verdict in layers.check(rows)]
    assert met == [True, False, None, None]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--window=4", "--window must be odd and at least 3, got 4"),
        ("--lengths=8,x", "--lengths must be whole numbers of at least 2, got 'x'"),
        ("--presets=tinny", "presets must be of"),
    ],
)
def test_bad_setting_is_one_clear_line(call, flag, message):
    result = call("benchmark.py", "layers", flag)
    assert result.code == 1
    assert message in result.err.splitlines()[-1]


@pytest.mark.slow
def test_layers_prints_all_figures_and_a_plot(layers, tmp_path):
    names, sizes = ["self-attention", "recurrent"], (8, 5, 1)  # d, r, rounds
    rows = list(layers.measure(names, [16, 32], *sizes))
    assert [(row["n"], row["layer"]) for row in rows] == [
        (n, name) for n in (16, 32) for name in names
    ]
    assert all(row["both_ms"] > 0 and row["both_megabytes"] > 0 for row in rows)
    summary = list(layers.summarize(rows, *sizes))
    assert [row["operations_exponent"] for row in summary] == pytest.approx([2, 1])
    assert [row["path"] for row in summary] == [row["paper_path"] for row in summary] == [1, 1]
    assert [row["layer"] for row in layers.crossings(rows)] == [
        "self-attention > recurrent", "with projections > recurrent",
    ]  # fmt: skip
    pytest.importorskip("matplotlib")
    layers.plot(rows, str(tmp_path / "layers.png"))
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")
