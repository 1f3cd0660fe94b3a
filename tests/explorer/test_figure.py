"""Figures of attention."""

import numpy as np
import pytest

from keras_transformer.explorer import figure
from keras_transformer.explorer.figure import draw_attention, head_color


@pytest.mark.parametrize("kind", ["encoder", "cross"])
@pytest.mark.parametrize("threshold", [0.15, 1.0])
def test_figure_has_limits_with_and_without_arcs(view, kind, threshold):
    drawn = draw_attention(view, kind, 0, threshold)
    (axes,) = drawn.axes
    assert len(axes.lines) == np.sum(view.attentions[kind][0] >= threshold)
    assert axes.get_xlim() == (-0.6, 3.6)
    places = [text.get_position() for text in axes.texts]
    assert all(-0.6 < x < 3.6 for x, _ in places)
    assert f"weights from {threshold:.0%}" in axes.get_legend().get_title().get_text()
    width, _ = drawn.canvas.get_width_height()
    assert drawn.get_tightbbox().width < 2 * width / drawn.dpi


def test_loop_of_a_token_that_reads_itself_is_round():
    x, y = figure._arc(2.0, 2.0)
    assert (np.ptp(x), np.ptp(y)) == pytest.approx((0.32, 0.4), abs=0.01)
    assert x[[0, -1]] == pytest.approx([2, 2]) and y.min() == y[0]
    assert np.ptp(x[np.abs(y - 0.45) < 0.05]) > 0.3


def test_head_color_is_the_pages():
    # oklch(0.58 0.17 25) in Chromium.
    np.testing.assert_allclose(255 * np.array(head_color(0)), [203, 70, 68], atol=1.5)
