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
    "sustained_flops": "training FLOPs, by the devices' time and sustained rate",
}
_X = flags.DEFINE_enum("x", "step", list(_X_LABELS), "The value in metrics.jsonl for the x-axis.")
# BLEU on newstest2014 and training FLOPs, estimated from time and sustained rate, in Table 2 of
# Vaswani et al. 2017, without ByteNet, which has no FLOPs there.
_PUBLISHED_SYSTEMS: dict[str, dict[str, tuple[float, float]]] = {
    "wmt14_en_de": {
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
    "Add a panel with published systems for this task: test BLEU against training FLOPs, on a "
    "logarithmic axis shared with the runs; needs --x=flops or --x=sustained_flops.",
)

Rows = list[dict[str, float]]

_HEIGHTS = {"loss": 3, "learning_rate": 1}  # relative; 2 for metrics


def main(arguments: list[str]) -> None:
    if not arguments:
        raise InputError("name one or several run directories, for example: plot_run.py runs/mine")
    output = pathlib.Path(_OUTPUT.value or "")
    if output.suffix.lower() != ".png":
        raise InputError(f"--output must be a .png file, got {_OUTPUT.value!r}")
    if _PUBLISHED.value is not None and not str(_X.value).endswith("flops"):
        raise InputError("--published needs FLOPs to compare; add --x=flops or --x=sustained_flops")
    common.check_outputs([_OUTPUT], arguments)
    common.load_matplotlib()
    common.load_tensorflow()
    from keras_transformer.training.metrics import read_metrics

    runs = {name: read_metrics(local_path(name) / "metrics.jsonl") for name in arguments}
    if not any("loss" in row for rows in runs.values() for row in rows):
        raise InputError(f"{', '.join(runs)}: no loss yet; plot a run that has trained for a while")
    for name, rows in runs.items():
        if not any(_X.value in row for row in rows):
            raise InputError(
                f"the metrics of {name} have no {_X.value}; choose another --x, or train with the "
                "option that adds it (--sustained_tflops adds sustained_flops)"
            )
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
    if _PUBLISHED.value is not None:
        panel.set_xscale("log")
        # In the legend, since names beside the points would overlap.
        for marker, (name, (bleu, flops)) in zip(
            "os^vDP*XH", _PUBLISHED_SYSTEMS[_PUBLISHED.value].items(), strict=False
        ):
            panels["published"].plot(flops, bleu, marker, color="0.4", label=name)
        panels["published"].legend(
            frameon=False, fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5)
        )
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
    if _PUBLISHED.value is not None:
        panels["published"] = "published test BLEU"
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
