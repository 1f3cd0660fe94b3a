"""scripts/plot_run.py."""

import json
import sys

import pytest


@pytest.fixture
def make_run(tmp_path):
    """Writes the metrics of a run; those of its dev set are in every second row."""

    def make(name):
        (tmp_path / name).mkdir()
        with open(tmp_path / name / "metrics.jsonl", "w") as file:
            for step in range(1, 5):
                row = {"step": 100 * step, "loss": 5.0 / step, "learning_rate": 1e-4 * step}
                row |= {"flops": 3e12 * step}
                if step % 2 == 0:
                    row |= {"val_loss": 6.0 / step, "bleu": 10.0 * step}
                print(json.dumps(row), file=file)
        return tmp_path / name

    return make


@pytest.fixture
def figure(monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="needs matplotlib")
    figures = []
    subplots = pyplot.subplots

    def keep(*arguments, **options):
        figures.append(subplots(*arguments, **options))
        return figures[-1]

    monkeypatch.setattr(pyplot, "subplots", keep)
    yield lambda: figures[-1][0]
    pyplot.close("all")


def curves(panel):
    return [[tuple(point) for point in line.get_xydata()] for line in panel.get_lines()]


def test_loss_metric_and_learning_rate_against_steps(call, make_run, figure, tmp_path):
    output, run = tmp_path / "plot.png", make_run("mine")
    with (run / "metrics.jsonl").open("a") as file:  # a run that is being written
        file.write('{"step": 500, "loss": null}\n{"step": 600, "lo')
    result = call("plot_run.py", run, f"--output={output}")
    assert result == (0, f"Wrote {output}.\n", "")
    loss, bleu, rate = figure().axes
    assert [panel.get_ylabel() for panel in (loss, bleu, rate)] == [
        "loss per token", "dev BLEU", "learning rate",
    ]  # fmt: skip
    assert rate.get_xlabel() == "step"
    train, dev = curves(loss)
    assert train[:4] == [(100, 5.0), (200, 2.5), (300, pytest.approx(5 / 3)), (400, 1.25)]
    assert [step for step, _ in train[4:]] == [500]
    assert dev == [(200, 3.0), (400, 1.5)]
    assert curves(bleu) == [[(200, 20.0), (400, 40.0)]]
    assert curves(rate)[0][0] == (100, 1e-4)
    assert output.read_bytes().startswith(b"\x89PNG")


def test_names_of_runs_are_shown_as_they_are(call, make_run, figure, monkeypatch, tmp_path):
    make_run("_$a_$"), make_run("$b_$")
    monkeypatch.chdir(tmp_path)
    assert call("plot_run.py", "_$a_$", "$b_$", "--output=plot.png").err == ""
    texts = [text.get_text() for text in figure().axes[0].get_legend().get_texts()]
    assert texts == [r"./_\$a_\$, train", r"./_\$a_\$, dev", r"\$b_\$, train", r"\$b_\$, dev"]


def test_published_systems_have_their_own_panel(call, make_run, figure, tmp_path):
    output = f"--output={tmp_path}/plot.png"
    runs = [make_run("a"), make_run("b")]
    assert call("plot_run.py", *runs, "--x=flops", "--published=wmt14_en_de", output).code == 0
    _, bleu, published, rate = figure().axes
    assert (rate.get_xscale(), rate.get_xlabel()[:14]) == ("log", "training FLOPs")
    assert curves(bleu) == [[(6e12, 20.0), (12e12, 40.0)]] * 2
    points = {line.get_label(): line.get_xydata().tolist() for line in published.lines}
    assert points["Transformer base"] == [[3.3e18, 27.3]]
    assert points["GNMT + RL ensemble"] == [[1.8e20, 26.3]]


def test_missing_matplotlib_is_one_clear_line(call, make_run, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused(call("plot_run.py", make_run("a")), "run pip install '.[plot]' in the clone")
