"""Draws loss, metric and learning rate of one or several runs over their steps or cost, as a PNG.

keras-transformer plot_run runs/mine --output=mine.png
keras-transformer plot_run runs/baseline runs/larger --x=flops --output=both.png
"""

import math
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

_X_LABELS = {
    "step": "step",
    "seconds": "seconds of training",
    "target_tokens": "target tokens",
    "flops": "training FLOPs, of matrix products of real tokens",
    "padded_flops": "training FLOPs, of matrix products with padding",
    "sustained_flops": "training FLOPs, by the devices' time and sustained rate",
}
_X = flags.DEFINE_enum("x", "step", list(_X_LABELS), "The value in metrics.jsonl for the x-axis.")
# BLEU and training FLOPs in Table 2 of Vaswani et al. 2017, which has no FLOPs of ByteNet. They are
# estimates by time and sustained rate.
_PUBLISHED_SYSTEMS: dict[str, dict[str, tuple[float, float]]] = {
    "wmt14_en_de": {
        "ByteNet": (23.75, math.nan),
        "GNMT + RL": (24.6, 2.3e19),
        "ConvS2S": (25.16, 9.6e18),
        "MoE": (26.03, 2.0e19),
        "GNMT + RL ensemble": (26.30, 1.8e20),
        "ConvS2S ensemble": (26.36, 7.7e19),
        "Transformer base": (27.3, 3.3e18),
        "Transformer big": (28.4, 2.3e19),
    },
    "wmt14_en_fr": {
        "Deep-Att + PosUnk": (39.2, 1.0e20),
        "GNMT + RL": (39.92, 1.4e20),
        "ConvS2S": (40.46, 1.5e20),
        "MoE": (40.56, 1.2e20),
        "Deep-Att + PosUnk ensemble": (40.4, 8.0e20),
        "GNMT + RL ensemble": (41.16, 1.1e21),
        "ConvS2S ensemble": (41.29, 1.2e21),
        "Transformer base": (38.1, 3.3e18),
        "Transformer big": (41.8, 2.3e19),
    },
}
_PUBLISHED = flags.DEFINE_enum(
    "published",
    None,
    list(_PUBLISHED_SYSTEMS),
    "Put systems published for this task beside the runs, by BLEU and training FLOPs; with "
    "--x=sustained_flops, or flops, they stand on a logarithmic axis.",
)

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
    if _PUBLISHED.value is not None and not str(_X.value).endswith("flops"):
        raise InputError("--published needs FLOPs to compare by; give --x=flops or sustained_flops")
    common.check_output(output)
    common.load_matplotlib()
    common.load_tensorflow()
    from keras_transformer.training.metrics import read_metrics

    runs = {
        name: read_metrics(path / "metrics.jsonl") for name, path in _by_name(arguments).items()
    }
    for name, rows in runs.items():
        if not any(_X.value in row for row in rows):
            raise InputError(
                f"the metrics of {name} have no {_X.value}; give another --x, or train with an "
                "option that adds it, as --sustained_tflops does sustained_flops"
            )
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
    if _PUBLISHED.value is not None:
        if "bleu" not in panels:
            raise InputError("--published compares by BLEU, and these runs have none")
        _add_published(panels["bleu"], _PUBLISHED_SYSTEMS[_PUBLISHED.value])
    _label(panels, labels)
    _add_legend(figure, panels["loss"], list(runs), palette, "val_loss" in names)
    return figure


def _panels(runs: Mapping[str, Rows]) -> dict[str, str]:
    """Returns the labels of the panels by what each shows, from the top: the tasks' metrics too."""
    from keras_transformer.training.metrics import dev_values

    labels = {task.metric.name: task.metric.label for task in map(get_task, registered_tasks())}
    of_dev = {name for rows in runs.values() for row in rows for name in dev_values(row)}
    metrics = sorted(name for name in of_dev if not name.startswith("val_"))
    return {
        "loss": "loss a token",
        **{name: f"dev {labels.get(name, name)}" for name in metrics},
        "learning_rate": "learning rate",
    }


def _line(panel: "Axes", rows: Rows, name: str, **style: Any) -> None:
    """Draws one value over --x of the rows that have both, with dots where they are few."""
    points = [(row[_X.value], row[name]) for row in rows if name in row and _X.value in row]
    if points:
        of_checkpoints = name not in ("loss", "learning_rate")
        marker = "o" if of_checkpoints and len(points) <= 40 else None
        panel.plot(*zip(*points, strict=True), marker=marker, markersize=3.5, **style)


def _add_published(panel: "Axes", systems: Mapping[str, tuple[float, float]]) -> None:
    """Draws each system as a point; as a line where its cost is unknown."""
    for name, (bleu, flops) in systems.items():
        if math.isnan(flops):
            panel.axhline(bleu, color="0.7", linewidth=0.8, linestyle=":")
            label, place, space = (
                f"{name} (FLOPs unknown)",
                (0.01, bleu),
                panel.get_yaxis_transform(),
            )
            panel.annotate(
                label, place, xycoords=space, fontsize="x-small", color="0.4", va="bottom"
            )
            continue
        panel.plot(flops, bleu, marker="D", markersize=4, color="0.4", linestyle="none")
        panel.annotate(
            name, (flops, bleu), xytext=(5, 0), textcoords="offset points", fontsize="x-small",
            color="0.4", va="center",
        )  # fmt: skip


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
    panel.set_xlabel(_X_LABELS[str(_X.value)])
    if _PUBLISHED.value is not None:
        panel.set_xscale("log")
        return
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
