"""The soft dependency graph of one layer as a figure for a paper, in the colors of the page."""

from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.explorer.views import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES_PER_TOKEN = 0.62


def draw_attention(view: View, kind: str, layer: int, threshold: float) -> "Figure":
    """Returns a drawing of all heads of a layer, each in its own color.

    Args:
        view: of one sentence.
        kind: one of its attentions.
        layer: from 0.
        threshold: weights below it are not drawn.
    """
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    rows, columns = view.tokens(kind)
    weights = view.attentions[kind][layer]  # [H, Q, K]
    count = max(len(rows), len(columns))
    height = 1.0
    figure, axes = pyplot.subplots(figsize=(max(_INCHES_PER_TOKEN * count + 1.5, 4), 3.2))
    colors = [head_color(head) for head in range(len(weights))]
    if kind == "cross":
        _write(axes, columns, 1.0, "bottom")
        _write(axes, rows, 0.0, "top")
    else:
        _write(axes, rows, 0.0, "center")
    for head, row, column in zip(*np.nonzero(weights >= threshold), strict=True):
        weight = float(weights[head, row, column])
        shift = (head - (len(weights) - 1) / 2) * 0.04
        points = [row + shift, column + shift], [0.02, 0.98]
        if kind != "cross":
            points = _arc(row + shift, column + shift)
            height = max(height, np.abs(points[1]).max())
        axes.plot(*points, color=colors[head], alpha=0.3 + 0.7 * weight, lw=0.4 + 2.6 * weight)
    # Without arcs nothing else sets the limits, and the tokens would spread beyond them.
    axes.set_xlim(-0.6, count - 0.4)
    axes.set_ylim(*((-0.1, 1.1) if kind == "cross" else (-height - 0.1, height + 0.1)))
    axes.set_axis_off()
    axes.legend(
        handles=[Line2D([], [], color=each, label=str(n + 1)) for n, each in enumerate(colors)],
        title=f"{kind}, layer {layer + 1}\nweights from {threshold:.0%}\nhead",
        frameon=False,
        fontsize="small",
        title_fontsize="small",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        ncols=1 + (len(colors) > 8),
    )
    return figure


def head_color(head: int) -> tuple[float, float, float]:
    """Returns the color of a head in sRGB, 0..1: oklch(0.58 0.17 hue), as on the light page."""
    hue = np.radians((25 + head * 137.508) % 360)  # neighbors are far apart
    # Björn Ottosson 2020, "A perceptual color space for image processing".
    lab = np.array([0.58, 0.17 * np.cos(hue), 0.17 * np.sin(hue)])
    to_lms = [
        [1, 0.3963377774, 0.2158037573],
        [1, -0.1055613458, -0.0638541728],
        [1, -0.0894841775, -1.2914855480],
    ]
    to_rgb = [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
    linear = np.clip(np.array(to_rgb) @ (np.array(to_lms) @ lab) ** 3, 0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    red, green, blue = map(float, encoded)
    return red, green, blue


def _write(axes: "Axes", tokens: list[str], height: float, alignment: str) -> None:
    for place, token in enumerate(tokens):
        text: dict[str, Any] = {"ha": "center", "va": alignment, "fontsize": "small"}
        axes.text(place, height, token.removeprefix("▁") or "▁", **text)


def _arc(row: float, column: float) -> tuple[Any, Any]:
    """Returns points of an arc: above the tokens to an earlier one, below them to a later one."""
    angles = np.linspace(0, np.pi, 60)
    if abs(row - column) < 0.5:  # a loop above the token
        return row + 0.16 * np.sin(2 * angles), 0.45 - 0.2 * np.cos(2 * angles)
    middle, radius = (row + column) / 2, abs(row - column) / 2
    height = np.sin(angles) * (0.3 + 0.9 * radius**0.7) + 0.25
    return middle + radius * np.cos(angles), height if column < row else -height
