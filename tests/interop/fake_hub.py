"""A Hugging Face Hub on this machine: files of models, commits and errors."""

import hashlib
import http.server
import pathlib
import re
import threading

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "Helsinki-NLP/opus-mt-en-de"
GATED = "someone/gated"


class FakeHub(http.server.ThreadingHTTPServer):
    """Offers the files of folders by the names of models."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, pathlib.Path] = {}
        self.requests: list[str] = []  # method and file of each
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        # Only files are asked for.
        name, revision, file = re.fullmatch(
            r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path
        ).groups()
        self.server.requests.append(f"{self.command} {file}")
        folder = self.server.models.get(name)
        status, headers, content = 200, {"X-Repo-Commit": COMMIT}, b""
        if name == GATED:
            status, headers = 403, {"X-Error-Code": "GatedRepo"}
        elif folder is None:
            status, headers = 401, {"X-Error-Code": "RepoNotFound"}
        elif revision not in ("main", "v1", COMMIT):
            status, headers = 404, {"X-Error-Code": "RevisionNotFound"}
        elif not (folder / file).is_file():
            status, headers["X-Error-Code"] = 404, "EntryNotFound"
        else:
            content = (folder / file).read_bytes()
            headers["ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
        self.send_response(status)
        for header, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815  (the name that Python looks up)

    def log_message(self, *_: object) -> None:
        pass
