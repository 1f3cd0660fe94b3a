"""Attention in the format of BertViz's views (Vig 2019)."""

from typing import Any

import numpy as np

from keras_transformer.explorer.views import View


def bertviz_attention(view: View) -> list[dict[str, Any]]:
    """Returns the list that BertViz calls `attn_data`, an entry for each kind of attention.

    `attn[layer][head][left][right]` is the weight with which a token on the left, which attends,
    reads one on the right.
    """
    return [
        {
            "name": kind.capitalize(),
            "attn": np.round(weights.astype(float), 6).tolist(),
            "left_text": view.tokens(kind)[0],
            "right_text": view.tokens(kind)[1],
        }
        for kind, weights in view.attentions.items()
    ]
