"""A Hugging Face Hub on this machine: its API, redirects, ETags, and transfers that break."""

import hashlib
import http.server
import pathlib
import re
import threading

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "Helsinki-NLP/opus-mt-en-de"
LARGE = ("model.safetensors", "pytorch_model.bin")  # on another server, as files of Git LFS are


class FakeHub(http.server.ThreadingHTTPServer):
    """Offers the files of folders by the names of models."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, pathlib.Path] = {}
        self.gated = {"someone/gated"}
        self.requests: list[str] = []  # method and file of each
        self.bytes_left: int | None = None  # that the next transfer of a large file sends
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
        found = re.fullmatch(r"/(large/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        assert found, self.path  # only files are asked for
        is_large, name, revision, file = found.groups()
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
        etag, size = f'"{hashlib.sha256(content).hexdigest()}"', str(len(content))
        if file in LARGE and not is_large:
            headers = {"X-Repo-Commit": COMMIT, "X-Linked-ETag": etag, "X-Linked-Size": size}
            return self.send(302, headers | {"Location": f"{self.server.url}/large{self.path}"})
        headers = {"X-Repo-Commit": COMMIT, "ETag": etag, "Accept-Ranges": "bytes"}
        start = re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("Range", ""))
        if start:
            begin = int(start[1])
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            content = content[begin:]
        self.send(206 if start else 200, headers, content)

    def fail(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.send(status, {"X-Error-Code": code} | (headers or {}))

    def send(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            if self.path.startswith("/large") and self.server.bytes_left is not None:
                content, self.server.bytes_left = content[: self.server.bytes_left], None
                self.close_connection = True
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
