"""Figures of attention."""

import numpy as np
import pytest

from keras_transformer.explorer.figure import draw_attention, head_color


@pytest.mark.parametrize("kind", ["encoder", "cross"])
@pytest.mark.parametrize("threshold", [0.15, 1.0])
def test_figure_has_limits_with_and_without_arcs(view, kind, threshold):
    figure = draw_attention(view, kind, 0, threshold)
    (axes,) = figure.axes
    assert len(axes.lines) == np.sum(view.attentions[kind][0] >= threshold)
    assert axes.get_xlim() == (-0.6, 3.6)
    places = [text.get_position() for text in axes.texts]
    assert all(-0.6 < x < 3.6 for x, _ in places)
    assert f"weights from {threshold:.0%}" in axes.get_legend().get_title().get_text()
    width, _ = figure.canvas.get_width_height()
    assert figure.get_tightbbox().width < 2 * width / figure.dpi


def test_head_color_is_the_pages():
    # oklch(0.58 0.17 25) in Chromium.
    np.testing.assert_allclose(255 * np.array(head_color(0)), [203, 70, 68], atol=1.5)
