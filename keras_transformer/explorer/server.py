"""The explorer for sentences that a user types: a page on the loopback interface."""

import http
import http.server
import json
import threading
from collections.abc import Sequence
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.explorer.page import make_page, page_content
from keras_transformer.explorer.views import Inspector

_HOST = "127.0.0.1"
_MAX_BYTES = 1 << 16  # of a request


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
