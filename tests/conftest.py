"""Fixtures shared by all tests."""

import pathlib
import shutil
import socket
import subprocess
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


_HERE = "IP:127.0.0.1,DNS:localhost"


def _openssl(*arguments, folder):
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A folder with two authorities, ca and other, and with certificates of the first."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl, which is not here")
    folder = tmp_path_factory.mktemp("certificates")
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        _openssl(*new, "-x509", "-days", "2", *files, "-subj", f"/CN={name}", *usage, folder=folder)
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
    for name, days, hosts in (
        ("server", "2", _HERE),
        ("client", "2", _HERE),
        ("expired", "-1", _HERE),
        ("elsewhere", "2", "DNS:mt.example.org"),
    ):
        extensions = "authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
        (folder / "extensions").write_text(f"subjectAltName={hosts}\n{extensions}")
        files = ("-keyout", f"{name}.key", "-out", f"{name}.csr")
        _openssl(*new, *files, "-subj", f"/CN={name}", folder=folder)
        files = ("-in", f"{name}.csr", "-out", f"{name}.pem")
        _openssl("x509", "-req", *files, *signed, "-days", days, folder=folder)
    _openssl("ec", "-in", "client.key", "-aes256", "-passout", "pass:secret", "-out",
            "encrypted.key", folder=folder)  # fmt: skip
    return folder
