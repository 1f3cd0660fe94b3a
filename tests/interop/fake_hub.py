"""A Hugging Face Hub on this machine: files of models, commits and errors."""

import hashlib
import http.server
import pathlib
import re
import threading

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "Helsinki-NLP/opus-mt-en-de"


class FakeHub(http.server.ThreadingHTTPServer):
    """Offers the files of folders by the names of models."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, pathlib.Path] = {}
        self.gated = {"someone/gated"}
        self.requests: list[str] = []  # method and file of each
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        assert found, self.path  # only files are asked for
        name, revision, file = found.groups()
        self.server.requests.append(f"{self.command} {file}")
        folder = self.server.models.get(name)
        if name in self.server.gated:
            return self.fail(403, "GatedRepo")
        if folder is None:
            return self.fail(401, "RepoNotFound")
        if revision not in ("main", "v1", COMMIT):
            return self.fail(404, "RevisionNotFound")
        if not (folder / file).is_file():
            return self.fail(404, "EntryNotFound", {"X-Repo-Commit": COMMIT})
        content = (folder / file).read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        self.send(200, {"X-Repo-Commit": COMMIT, "ETag": etag}, content)

    def fail(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.send(status, {"X-Error-Code": code} | (headers or {}))

    def send(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
