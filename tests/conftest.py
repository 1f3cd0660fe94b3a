"""Fixtures shared by all tests."""

import pathlib
import socket
from collections.abc import Callable

import pytest

# Files that take longest, by their names: begun last, one of them would keep everyone waiting.
_LONGEST = (
    "test_fit", "test_devices", "test_readme", "test_train", "test_benchmark_decode", "test_fuzz",
    "test_native_runtime", "test_model_server", "test_translate", "test_export_script",
    "test_signatures", "test_searching", "test_transformer", "test_ctranslate2_format",
)  # fmt: skip

_SHARED_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first."""
    items.sort(key=lambda item: item.path.stem not in _LONGEST)


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
