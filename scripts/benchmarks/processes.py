"""Measuring processes: each answers with one line of JSON to each line of JSON that it is sent.

Every engine has processes of its own, so that its threads do not disturb the others'. In between
they sleep, so that engines can take turns.
"""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_HERE = pathlib.Path(__file__).resolve().parent


class Process:
    """The parent's end: a module of this folder that runs a job.

    Args:
        module: its name.
        job: what it is to do; anything that JSON can hold.
        environment: variables that it needs from the start.

    Attributes:
        greeting: what it said when it was ready.
    """

    def __init__(self, module: str, job: Any, environment: Mapping[str, str] | None = None) -> None:
        self._name = f"{module}.py"
        paths = [str(_HERE.parent), os.environ.get("PYTHONPATH", "")]
        variables = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE / self._name), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | variables | dict(environment or {}),
            start_new_session=True,  # Ctrl-C is for the parent, which then ends this process
        )
        self.greeting = self.answer()

    def send(self, request: Any) -> None:
        """Asks for something; `answer` then waits for it."""
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Returns what it says next."""
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError(f"{self._name} ended without an answer; see the error above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.communicate()


class Channel:
    """The measuring process's end of the pipes."""

    def __init__(self, version: str, **greeting: Any) -> None:
        """Says that the process is ready, and which version of its libraries it has."""
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # whatever else is printed
        self.answer(version=version, **greeting)

    def request(self) -> Any:
        """Waits for the parent; None means that it has gone."""
        return json.loads(sys.stdin.readline() or "null")

    def answer(self, **values: Any) -> None:
        self._out.write(json.dumps(values) + "\n")
        self._out.flush()


def given_job() -> Any:
    """Returns what the parent gave this process to do."""
    return json.loads(sys.argv[1])
