"""The soft dependency graph of one layer as a figure for a paper."""

from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.explorer.views import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMN = 0.62  # inches of a token


def draw_attention(view: View, kind: str, layer: int, threshold: float) -> "Figure":
    """Returns a drawing of all heads of a layer, each with a color of its own.

    Args:
        view: of one sentence.
        kind: one of its attentions.
        layer: from 0.
        threshold: the least weight that is drawn.
    """
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    rows, columns = view.tokens(kind)
    weights = view.attentions[kind][layer]  # [H, Q, K]
    width = _COLUMN * max(len(rows), len(columns)) + 1.5
    figure, axes = pyplot.subplots(figsize=(max(width, 4), 3.2))
    palette = [pyplot.get_cmap("turbo")(hue) for hue in np.linspace(0.08, 0.92, len(weights))]
    if kind == "cross":
        _write(axes, columns, 1.0, "bottom")
        _write(axes, rows, 0.0, "top")
    else:
        _write(axes, rows, 0.0, "center")
    for head, row, column in zip(*np.nonzero(weights >= threshold), strict=True):
        style = {
            "color": palette[head],
            "alpha": 0.25 + 0.75 * float(weights[head, row, column]),
            "linewidth": 0.4 + 2.6 * float(weights[head, row, column]),
        }
        shift = (head - (len(weights) - 1) / 2) * 0.04
        if kind == "cross":
            axes.plot([row + shift, column + shift], [0.02, 0.98], **style)
        else:
            axes.plot(*_arc(row + shift, column + shift), **style)
    axes.set_axis_off()
    handles = [Line2D([], [], color=color, label=str(n + 1)) for n, color in enumerate(palette)]
    axes.legend(
        handles=handles,
        title=f"{kind}, layer {layer + 1}\nhead",
        frameon=False,
        fontsize="small",
        title_fontsize="small",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        ncols=1 + (len(handles) > 8),
    )
    return figure


def _write(axes: "Axes", tokens: list[str], height: float, alignment: str) -> None:
    for place, token in enumerate(tokens):
        text: dict[str, Any] = {"ha": "center", "va": alignment, "fontsize": "small"}
        axes.text(place, height, token.removeprefix("▁") or "▁", **text)


def _arc(row: float, column: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns points of an arc: above the tokens to an earlier one, below them to a later one."""
    angles = np.linspace(0, np.pi, 60)
    if abs(row - column) < 0.5:  # a loop above the token
        return row + 0.16 * np.cos(2 * angles), 0.45 + 0.2 * np.sin(2 * angles - np.pi / 2)
    middle, radius = (row + column) / 2, abs(row - column) / 2
    height = np.sin(angles) * (0.3 + 0.9 * radius**0.7) + 0.25
    return middle + radius * np.cos(angles), height if column < row else -height
