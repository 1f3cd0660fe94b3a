"""Requests to a model server over REST."""

import json
import urllib.parse
from collections.abc import Mapping
from typing import Any

import urllib3

from keras_transformer.client.transport import Certificates, ServingError
from keras_transformer.sentences import Columns

# The server's mapping of gRPC codes to HTTP statuses, inverted.
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",  # a proxy's, for a large body
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",  # a proxy's, while the server restarts
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_MAX_IDLE = 64  # connections that are kept open


class RestTransport:
    """A pool of connections to a model; arguments and methods as of `GrpcTransport`."""

    def __init__(
        self,
        address: str,
        model: str,
        version: int | None,
        certificates: Certificates | None,
        headers: Mapping[str, str],
    ) -> None:
        self._headers = {**headers, "content-type": "application/json"}
        self._path = f"/v1/models/{urllib.parse.quote(model, safe='')}"
        if version is not None:
            self._path += f"/versions/{version}"
        scheme = "http" if certificates is None else "https"
        files = {} if certificates is None else certificates._asdict()
        self._pool = urllib3.connection_from_url(
            f"{scheme}://{address}", maxsize=_MAX_IDLE, **files
        )

    def predict(self, signature: str, inputs: Columns, timeout_s: float) -> Mapping[str, Any]:
        request = {"signature_name": signature, "inputs": inputs}
        body = json.dumps(request, ensure_ascii=False).encode()  # UTF-8, shorter than \u escapes
        outputs = self._request("POST", ":predict", timeout_s, body).get("outputs")
        # A signature with a single output answers with the tensor alone.
        return outputs if isinstance(outputs, dict) else {"outputs": outputs}

    def signatures(self, timeout_s: float) -> dict[str, list[str]]:
        answer = self._request("GET", "/metadata", timeout_s)
        return {
            name: list(signature["inputs"])
            for name, signature in answer["metadata"]["signature_def"]["signature_def"].items()
        }

    def close(self) -> None:
        self._pool.close()

    def _request(
        self, method: str, path: str, timeout_s: float, body: bytes | None = None
    ) -> dict[str, Any]:
        try:
            response = self._pool.urlopen(
                method,
                self._path + path,
                body,
                self._headers,
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(total=max(timeout_s, 1e-3)),
            )
        except urllib3.exceptions.ReadTimeoutError as error:
            raise ServingError("", "DEADLINE_EXCEEDED") from error
        except urllib3.exceptions.HTTPError as error:
            raise ServingError(str(error.__cause__ or error), "UNAVAILABLE") from error
        text = response.data.decode("utf-8", "replace")
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):  # the server's errors are escaped as in C
            answer = None
        if response.status == 200 and isinstance(answer, dict):
            return answer
        code = _CODES.get(response.status, "UNKNOWN")
        raise ServingError(f"HTTP status {response.status}: {text}", code)
