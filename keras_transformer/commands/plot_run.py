"""Plots loss, dev metric and learning rate of runs against steps or cost, as a PNG.

keras-transformer plot_run runs/mine --output=mine.png
keras-transformer plot_run runs/baseline runs/larger --x=flops --output=both.png
"""

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.errors import InputError
from keras_transformer.files import local_path
from keras_transformer.tasks import get_task, registered_tasks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OUTPUT = command_flags.define_path("output", "plot.png", "The PNG file to write.")

_X_LABELS = {
    "step": "step",
    "seconds": "seconds of training",
    "target_tokens": "target tokens",
    "flops": "training FLOPs, of matrix products of real tokens",
    "padded_flops": "training FLOPs, of matrix products with padding",
}
_X = flags.DEFINE_enum("x", "step", list(_X_LABELS), "The value in metrics.jsonl for the x-axis.")

Rows = list[dict[str, float]]

_HEIGHTS = {"loss": 3, "learning_rate": 1}  # relative; 2 for metrics


def main(arguments: list[str]) -> None:
    if not arguments:
        raise InputError("name one or several run directories, for example: plot_run.py runs/mine")
    output = pathlib.Path(_OUTPUT.value or "")
    if output.suffix.lower() != ".png":
        raise InputError(f"--output must be a .png file, got {_OUTPUT.value!r}")
    common.check_outputs([_OUTPUT], arguments)
    common.load_matplotlib()
    common.load_tensorflow()
    from keras_transformer.training.metrics import read_metrics

    runs = {name: read_metrics(local_path(name) / "metrics.jsonl") for name in arguments}
    if not any("loss" in row for rows in runs.values() for row in rows):
        raise InputError(f"{', '.join(runs)}: no loss yet; plot a run that has trained for a while")
    for name, rows in runs.items():
        if not any(_X.value in row for row in rows):
            raise InputError(f"the metrics of {name} have no {_X.value}; choose another --x")
    _draw(runs).savefig(output, dpi=150)
    print(f"Wrote {output}.")


def _draw(runs: Mapping[str, Rows]) -> "Figure":
    """Draws a panel for each value: lines of a run in its color, train loss faint, dev strong."""
    from matplotlib import pyplot

    labels = _panel_labels(runs)
    heights = [_HEIGHTS.get(name, 2) for name in labels]
    figure, axes = pyplot.subplots(
        len(labels),
        squeeze=False,
        sharex=True,
        figsize=(8, 1.4 * sum(heights)),
        height_ratios=heights,
        layout="constrained",
    )
    panels = dict(zip(labels, axes[:, 0], strict=True))
    for name, panel in panels.items():
        panel.set_ylabel(labels[name])
        panel.grid(color="0.9")
        for index, (run, rows) in enumerate(runs.items()):
            color = f"C{index % 10}"
            # Matplotlib hides labels that begin with "_", and reads what "$" encloses as formulas.
            run = ("./" if run.startswith("_") else "") + run.replace("$", r"\$")
            if name == "loss":
                _add_line(panel, rows, "loss", color=color, alpha=0.45, label=f"{run}, train")
                _add_line(panel, rows, "val_loss", color=color, label=f"{run}, dev")
            else:
                _add_line(panel, rows, name, color=color)
    panels["loss"].legend(frameon=False)
    panel.set_xlabel(_X_LABELS[str(_X.value)])
    return figure


def _panel_labels(runs: Mapping[str, Rows]) -> dict[str, str]:
    """Returns the y-label of each panel from the top, by the name of the value it shows."""
    from keras_transformer.training.metrics import dev_values

    labels = {task.metric.name: task.metric.label for task in map(get_task, registered_tasks())}
    recorded = {name for rows in runs.values() for row in rows for name in row}
    dev_names = {name for rows in runs.values() for row in rows for name in dev_values(row)}
    metrics = sorted(name for name in dev_names if not name.startswith("val_"))
    panels = {"loss": "loss per token"}
    panels |= {name: f"dev {labels.get(name, name)}" for name in metrics}
    if "learning_rate" in recorded:
        panels["learning_rate"] = "learning rate"
    return panels


def _add_line(panel: "Axes", rows: Rows, name: str, **style: Any) -> None:
    """Plots a value against --x, with dots where checkpoints are few."""
    points = [(row[_X.value], row[name]) for row in rows if name in row and _X.value in row]
    if points:
        is_dev_value = name not in ("loss", "learning_rate")
        marker = "o" if is_dev_value and len(points) <= 40 else None
        panel.plot(*zip(*points, strict=True), marker=marker, markersize=3.5, **style)
