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


def test_missing_matplotlib_is_one_clear_line(call, make_run, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused(call("plot_run.py", make_run("a")), "run pip install '.[plot]' in the clone")
