"""The page of the explorer: one HTML file that loads nothing else.

It holds attention as integers of 8 bits, gzip and base64.
"""

import base64
import gzip
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.explorer.views import KINDS, View, head_statistics

_ASSETS = pathlib.Path(__file__).parent / "assets"
_SCRIPTS = ("tokens.js", "graph.js", "matrix.js", "heads.js", "tree.js", "page.js")


def make_page(content: Mapping[str, Any]) -> str:
    """Returns the HTML text of what `page_content` returns."""
    scripts = "\n".join(_read(name) for name in _SCRIPTS)
    # "<" could end the script element.
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    page = _read("page.html")
    parts = {
        "style": _read("page.css"),
        "data": data.replace("<", "\\u003c"),
        "script": scripts,
    }
    return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], page)


def page_content(views: Sequence[View]) -> dict[str, Any]:
    """Returns the content of the page in JSON's types, for views of all models and sentences."""
    models = list(dict.fromkeys(view.model for view in views))
    return {
        "sentences": list(dict.fromkeys(view.sentence for view in views)),
        "models": [
            {"name": name, "heads": _heads([view for view in views if view.model == name])}
            for name in models
        ],
        "views": [_describe(view) for view in views],
    }


def quantize(weights: np.ndarray) -> dict[str, Any]:
    """Returns weights from 0 to 1 as whole 255ths: their shape, and gzipped bytes in base64."""
    integers = np.rint(weights * 255).astype(np.uint8)
    packed = gzip.compress(integers.tobytes(), mtime=0)
    return {"shape": list(weights.shape), "data": base64.b64encode(packed).decode()}


def _heads(views: Sequence[View]) -> dict[str, Any]:
    """Returns the statistics of one model's heads over all sentences."""
    return {
        kind: {
            name: np.round(values, 4).tolist()
            for name, values in head_statistics(
                [view.attentions[kind] for view in views], kind
            ).items()
        }
        for kind in KINDS
        if kind in views[0].attentions
    }


def _describe(view: View) -> dict[str, Any]:
    tree = view.tree and {
        "nodes": [[node[0], node[1], round(node[2], 3), node[3]] for node in view.tree.nodes],
        "translations": [translation._asdict() for translation in view.tree.translations],
    }
    return {
        "model": view.model,
        "sentence": view.sentence,
        "translation": view.translation,
        "attentions": {
            kind: {
                **quantize(weights),
                **dict(zip(("rows", "columns"), view.tokens(kind), strict=True)),
            }
            for kind, weights in view.attentions.items()
        },
        "steps": view.steps,
        "tree": tree,
    }


def _read(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
