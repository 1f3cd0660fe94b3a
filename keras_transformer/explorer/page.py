"""The page of the explorer, and its server for sentences that a user types.

The page is one HTML file that loads nothing else. It holds attention as integers of 8 bits, gzip
and base64. The server listens on the loopback interface only.
"""

import base64
import gzip
import http
import http.server
import json
import pathlib
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.explorer.views import KINDS, Inspector, View, head_statistics

_ASSETS = pathlib.Path(__file__).parent / "assets"
_SCRIPTS = ("tokens.js", "graph.js", "matrix.js", "heads.js", "tree.js", "page.js")
_HOST = "127.0.0.1"
_MAX_BYTES = 1 << 16  # of a request


def make_page(content: Mapping[str, Any] | None, is_live: bool = False) -> str:
    """Returns the HTML text.

    Args:
        content: by `page_content`; None for an empty page.
        is_live: whether the page may send sentences to its server.
    """
    scripts = "\n".join(_read(name) for name in _SCRIPTS)
    # "<" could end the script element.
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    page = _read("page.html")
    parts = {
        "sources": "'self'" if is_live else "'none'",
        "style": _read("page.css"),
        "data": data.replace("<", "\\u003c"),
        "script": scripts,
    }
    return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], page)


def page_content(views: Sequence[View]) -> dict[str, Any]:
    """Returns the content of the page in JSON's types.

    Args:
        views: of all models and all sentences.
    """
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


class ExplorerServer(http.server.ThreadingHTTPServer):
    """Serves the page, and the views of models for the sentences that it sends.

    Other machines cannot reach it, and pages of other sites get an error: a request must address
    127.0.0.1 or localhost, and send JSON.

    Args:
        inspectors: of the models.
        port: to listen on; 0 for any free one.
    """

    daemon_threads = True

    def __init__(self, inspectors: Sequence[Inspector], port: int) -> None:
        super().__init__((_HOST, port), _Handler)
        self._inspectors = inspectors
        self._lock = threading.Lock()  # one sentence at a time

    def answer(self, sentence: str) -> dict[str, Any]:
        """Returns `page_content` for a sentence."""
        with self._lock:
            return page_content([inspect(sentence) for inspect in self._inspectors])


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ExplorerServer
    timeout = 60

    def do_GET(self) -> None:
        if self._is_refused():
            return
        if self.path != "/":
            self.send_error(http.HTTPStatus.NOT_FOUND)
            return
        self._send(make_page(None, is_live=True), "text/html")

    def do_POST(self) -> None:
        if self._is_refused():
            return
        try:
            length = int(self.headers["Content-Length"])
            if not 0 <= length <= _MAX_BYTES:
                raise ValueError(f"a request must have at most {_MAX_BYTES} bytes")
            if self.headers.get_content_type() != "application/json":
                raise ValueError("the sentence must be sent as JSON")
            sentence = json.loads(self.rfile.read(length))["sentence"]
            if not isinstance(sentence, str):
                raise ValueError("the sentence must be text")
            answer = self.server.answer(sentence)
        except InputError as error:
            self._send(json.dumps({"error": str(error)}), "application/json")
        except (KeyError, TypeError, ValueError) as error:
            self.send_error(http.HTTPStatus.BAD_REQUEST, explain=str(error))
        else:
            self._send(json.dumps(answer), "application/json")

    def _is_refused(self) -> bool:
        """Answers requests that do not come from this server's own page with an error."""
        # The port may differ, through a tunnel.
        is_own = self.headers.get("Host", "").partition(":")[0] in (_HOST, "localhost")
        if not is_own:  # for example after DNS rebinding
            self.send_error(http.HTTPStatus.FORBIDDEN, explain="unknown Host")
        return not is_own

    def _send(self, text: str, content_type: str) -> None:
        body = text.encode()
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", f"{content_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs no requests."""
