"""Draws loss, metric and learning rate of one or several runs over their steps, as a PNG.

keras-transformer plot_run runs/mine --output=mine.png
keras-transformer plot_run runs/baseline runs/larger --output=both.png
"""

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import common
from keras_transformer.errors import InputError
from keras_transformer.tasks import get_task, registered_tasks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OUTPUT = flags.DEFINE_string("output", "plot.png", "The PNG file to write.")

Rows = list[dict[str, float]]

_HEIGHTS = {"loss": 3, "learning_rate": 1}  # shares of the height; of a metric 2

_FAINT: dict[str, Any] = {"alpha": 0.45, "linewidth": 1.0}
_STRONG: dict[str, Any] = {"linewidth": 1.8}


def main(arguments: list[str]) -> None:
    if not arguments:
        raise InputError("name one or several run directories, as in: plot_run.py runs/mine")
    output = pathlib.Path(_OUTPUT.value or "")
    if output.suffix.lower() != ".png":
        raise InputError(f"--output must be a .png file, got {_OUTPUT.value!r}")
    common.check_output(output)
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("drawing needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")  # needs no screen
    common.load_tensorflow()
    from keras_transformer.training.metrics_file import read_metrics

    runs = {
        name: read_metrics(path / "metrics.jsonl") for name, path in _by_name(arguments).items()
    }
    _draw(runs).savefig(output, dpi=150)
    print(f"Wrote {output}.")


def _by_name(arguments: list[str]) -> dict[str, pathlib.Path]:
    """Returns the runs by the shortest ends of their paths that tell them apart."""
    paths = list(dict.fromkeys(pathlib.Path(argument).resolve() for argument in arguments))
    for parts in range(1, 1 + max(len(path.parts) for path in paths)):
        names = [str(pathlib.Path(*path.parts[-parts:])) for path in paths]
        if len(set(names)) == len(names):
            break
    return dict(zip(names, paths, strict=True))


def _draw(runs: Mapping[str, Rows]) -> "Figure":
    from matplotlib import pyplot

    names = {name for rows in runs.values() for row in rows for name in row}
    labels = {name: label for name, label in _panels(runs).items() if name in names}
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
    palette = [f"C{index}" for index in range(10)]  # matplotlib's own
    for index, rows in enumerate(runs.values()):
        color = palette[index % len(palette)]
        for name, panel in panels.items():
            _line(panel, rows, name, color=color, **(_FAINT if name == "loss" else _STRONG))
        _line(panels["loss"], rows, "val_loss", color=color, **_STRONG)
    _label(panels, labels)
    _add_legend(figure, panels["loss"], list(runs), palette, "val_loss" in names)
    return figure


def _panels(runs: Mapping[str, Rows]) -> dict[str, str]:
    """Returns the labels of the panels by what each shows, from the top: the tasks' metrics too."""
    from keras_transformer.training.metric_logging import dev_values

    labels = {task.metric.name: task.metric.label for task in map(get_task, registered_tasks())}
    of_dev = {name for rows in runs.values() for row in rows for name in dev_values(row)}
    metrics = sorted(name for name in of_dev if not name.startswith("val_"))
    return {
        "loss": "loss a token",
        **{name: f"dev {labels.get(name, name)}" for name in metrics},
        "learning_rate": "learning rate",
    }


def _line(panel: "Axes", rows: Rows, name: str, **style: Any) -> None:
    """Draws one value over the steps of the rows that have it, with dots where they are few."""
    points = [(row["step"], row[name]) for row in rows if name in row]
    if points:
        of_checkpoints = name not in ("loss", "learning_rate")
        marker = "o" if of_checkpoints and len(points) <= 40 else None
        panel.plot(*zip(*points, strict=True), marker=marker, markersize=3.5, **style)


def _label(panels: Mapping[str, "Axes"], labels: Mapping[str, str]) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter

    for name, panel in panels.items():
        panel.set_ylabel(labels[name])
        panel.grid(color="0.9", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        if name == "learning_rate":
            panel.set_ylim(bottom=0)
            panel.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:.3g}"))
    panel.set_xlabel("step")
    panel.set_xlim(left=0)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))


def _add_legend(
    figure: "Figure", panel: "Axes", names: list[str], palette: list[str], has_dev: bool
) -> None:
    """Tells the runs apart by color, and training from the dev set by the strength of a line."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color="0.3", label="train", **_FAINT)]
    if has_dev:
        handles.append(Line2D([], [], color="0.3", label="dev", **_STRONG))
    if len(names) == 1:
        figure.suptitle(names[0], fontsize="large")
    else:
        handles += [
            Line2D([], [], color=palette[index % len(palette)], label=name, **_STRONG)
            for index, name in enumerate(names)
        ]
    panel.legend(handles=handles, frameon=False, ncols=1 + (len(handles) > 6))
