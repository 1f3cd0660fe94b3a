"""TLS and headers, against servers on this machine with certificates that are made here."""

import socket

import pytest
from fake_server import SERVE

from keras_transformer import InputError
from keras_transformer.client import Client, ServingError


@pytest.fixture(params=list(SERVE))
def protocol(request):
    return request.param


@pytest.fixture
def serve(certificates, model, protocol):
    """Serves with a certificate; mutual says whether clients need one too."""

    def serve(name="server", mutual=False):
        authority = certificates / "ca.pem" if mutual else None
        files = (certificates / f"{name}.pem", certificates / f"{name}.key", authority)
        return SERVE[protocol](model, tls=files)

    return serve


@pytest.fixture
def connect(certificates, protocol):
    def connect(address, **options):
        trust = {"root_certificates": certificates / "ca.pem", "retries": 1, "timeout_s": 10}
        return Client(address, protocol=protocol, tls=True, **trust | options)

    return connect


def refusal(client):
    with client, pytest.raises(ServingError) as caught:
        client.translate(["a"])
    assert "\n" not in str(caught.value)
    assert caught.value.code == "UNAVAILABLE"
    assert "over TLS with these certificates?" in str(caught.value)
    return str(caught.value).lower()


def test_tls_verifies_names_and_addresses(serve, connect, model):
    with serve() as address:
        for host in (address, address.replace("127.0.0.1", "localhost")):
            with connect(host) as client:
                assert client.translate("a").text == "A"
                assert client.status() == [(1, "AVAILABLE", "")]
    model.requests.clear()
    with serve("elsewhere") as address:
        with connect(address, tls_server_name="mt.example.org") as client:
            assert client.translate("a").text == "A"
        refusal(connect(address, tls_server_name="other.example.org"))
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("certificate", "trusted", "words"),
    [
        ("server", "other.pem", ("certificate", "verify")),
        ("server", None, ("certificate", "verify")),  # the authorities of the system
        ("expired", "ca.pem", ("certificate has expired",)),
        ("elsewhere", "ca.pem", ("verif", "hostname", "peer name")),  # one of them
    ],
)
def test_wrong_certificates_are_rejected(
    serve, connect, certificates, model, certificate, trusted, words
):
    with serve(certificate) as address:
        error = refusal(connect(address, root_certificates=trusted and certificates / trusted))
    assert (any if certificate == "elsewhere" else all)(word in error for word in words)
    assert model.requests == []


def test_server_may_require_certificates_of_clients(
    serve, connect, certificates, model, monkeypatch
):
    monkeypatch.setenv("HOME", str(certificates))

    def pair(name):
        return {"client_certificate": f"~/{name}.pem", "client_key": f"~/{name}.key"}

    with serve(mutual=True) as address:
        with connect(address, root_certificates="~/ca.pem", **pair("client")) as client:
            assert client.translate("a").text == "A"
        for other in ({}, pair("stranger")):
            assert "no answer from" in refusal(connect(address, **other))
    assert len(model.requests) == 1


def test_tls_mismatch_is_reported(model, protocol, serve, connect):
    with SERVE[protocol](model) as address:
        assert refusal(connect(address))
    with serve() as address:
        client = Client(address, protocol=protocol, retries=0)
        with client, pytest.raises(ServingError, match=r"port .*without TLS"):
            client.status()
    assert model.requests == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"root_certificates": "absent.pem"}, r"root_certificates.*absent\.pem: No such file"),
        ({"root_certificates": "text.pem"}, r"root_certificates must be PEM.*text\.pem"),
        ({"client_certificate": "client.pem"}, "client_certificate and client_key together"),
        ({"client_key": "client.key"}, "client_certificate and client_key together"),
        ({"client_certificate": "text.pem", "client_key": "client.key"}, "text.pem and"),
        ({"client_certificate": "client.pem", "client_key": "server.key"}, "client.pem and"),
        ({"client_certificate": "client.pem", "client_key": "encrypted.key"}, "key unencrypted"),
    ],
)
@pytest.mark.parametrize("protocol", ["grpc"])  # which alone would report it at the first request
def test_invalid_certificate_files_are_rejected(certificates, protocol, files, message):
    (certificates / "text.pem").write_text("no certificate")
    paths = {name: certificates / file for name, file in files.items()}
    with pytest.raises(InputError, match=message) as caught:
        Client("localhost:1", protocol=protocol, tls=True, **paths)
    assert "\n" not in str(caught.value)


def test_headers_are_sent_with_every_request_and_never_shown(serve, connect, model):
    token = {"authorization": "Bearer tok en"}
    model.required_headers = token
    headers = {"Authorization": "Bearer tok en", "x-team": "mt"}
    with serve() as address:
        with connect(address, headers=headers) as client:
            assert client.translate("a").text == "A"
            assert model.headers.items() >= {**token, "x-team": "mt"}.items()
            client.status()
            assert model.headers.items() >= token.items()
        client = connect(address, headers={"authorization": "Bearer wr0ng"})
        with client, pytest.raises(ServingError, match="not accept the credentials: a") as caught:
            client.translate(["a"])
    cause = caught.value
    assert cause.code == "UNAUTHENTICATED"
    while cause is not None:
        assert "wr0ng" not in str(cause)
        cause = cause.__cause__


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("a b", "c", "name of a header must consist of .* got 'a b'"),
        ("grpc-timeout", "1", "name of a header"),
        ("token-bin", "1", "name of a header"),
        ("authorization", "s3cret\r\nx: y", "value of the header authorization must be one line"),
        ("authorization", "s3crét", "value of the header authorization"),
        ("authorization", "", "value of the header authorization"),
        ("authorization", "s3cret", r"to mt\.example\.org in clear text; use TLS"),
    ],
)
def test_unsafe_headers_are_rejected(name, value, message):
    Client("mt.example.org:80", tls=True, headers={"authorization": "s3cret"}).close()
    with pytest.raises(InputError, match=message) as caught:
        Client("mt.example.org:80", headers={name: value})
    assert "s3cr" not in str(caught.value)


def test_proxies_are_not_used_on_this_machine(protocol, model, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as proxy, SERVE[protocol](model) as address:
        proxy.settimeout(0)
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for variable in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
            monkeypatch.delenv(variable, raising=False)
        for host in (address, address.replace("127.0.0.1", "localhost")):
            headers = {"authorization": "Bearer x"}
            with Client(host, protocol=protocol, headers=headers, timeout_s=10) as client:
                assert client.translate("a").text == "A"
        with pytest.raises(BlockingIOError):
            proxy.accept()
