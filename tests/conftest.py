"""Fixtures shared by all tests."""

import pathlib
import socket
from collections.abc import Callable

import pytest

_SHARED_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], pathlib.Path]:
    """Gives the folder of a real corpus by name, or skips the test where it is absent."""

    def find(name: str) -> pathlib.Path:
        folder = _SHARED_DATA / name
        if not folder.is_dir():
            pytest.skip(f"needs the corpus {name} in ../shared/data, which is not here")
        return folder

    return find


@pytest.fixture(scope="session")
def free_ports():
    """Gives so many ports of this machine that no program listens on."""

    def free_ports(count: int) -> list[int]:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        return ports

    return free_ports
