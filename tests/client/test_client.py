"""The client, against model servers in this process that answer, fail or are slow."""

import concurrent.futures
import contextlib
import itertools
import random
import socket
import sys
import threading
import time
from unittest import mock

import numpy as np
import pytest
from fake_server import SERVE, FaultError, upper_case_model

from keras_transformer import InputError
from keras_transformer.client import Client, ServingError
from keras_transformer.client import client as client_module
from keras_transformer.outputs import Translation


@pytest.fixture
def model():
    return upper_case_model()


@pytest.fixture(params=list(SERVE))
def protocol(request):
    return request.param


@pytest.fixture
def connect(protocol, model, monkeypatch):
    """Makes clients of a server of the model, which use no proxy."""
    for name in ("http_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with SERVE[protocol](model) as address, contextlib.ExitStack() as clients:
        yield lambda **options: clients.enter_context(
            Client(address, **({"protocol": protocol} | options))
        )


def check_failure(code, call, *arguments, **options):
    """Gives the error of a call, which must be one line."""
    with pytest.raises(ServingError) as caught:
        call(*arguments, **options)
    assert caught.value.code == code and "\n" not in str(caught.value)
    return caught.value


def test_texts_are_translated_scored_and_aligned(connect, model):
    text = "木 ☃ \"' \\ \t"
    expected = [Translation("TWO TREES", -9.0), Translation(text, -10.0)]
    client = connect()
    assert client.translate(["two trees", text]) == expected
    assert client.translate([]) == client.score([], []) == []
    scores = client.score(["a", "b"], ["x y", "z"])
    assert [each.token_scores for each in scores] == [[-0.25] * 3, [-0.25] * 2]
    assert client.align(["a b"], ["x y"]) == [[(1, 0), (0, 1)]]
    model.versions[1] = lambda *_: {"translations": [["a", "b"]], "scores": [[-1.0, -2.0]]}
    assert client.translate("c") == Translation("a", -1.0, (Translation("b", -2.0),))
    outputs = {"translations": [["A DOG"], [""]], "scores": [[-1.0], [0.0]]}
    model.versions[1] = lambda *_: outputs | {"source_cut": [True, False]}
    with pytest.warns(UserWarning, match="1 of 2 sentences: longer"):
        client.translate(["a dog", ""])


def test_requests_are_bounded_and_keep_order(connect, model, monkeypatch):
    """At most 10 sentences of similar length, and 400 bytes but for a longer sentence."""
    monkeypatch.setattr(client_module, "_REQUEST_BYTES", 400)
    generator = random.Random(1)
    sentences = ["ж" * generator.randint(0, 40) + str(number) for number in range(103)]
    sentences[50] = "z" * 5000
    answers = connect(batch_size=10, requests_in_flight=3).translate(sentences)
    assert [answer.text for answer in answers] == [text.upper() for text in sentences]
    sizes = [[len(text.encode()) for text in each.inputs["text"]] for each in model.requests]
    assert max(map(len, sizes)) == 10
    assert sorted(map(sum, sizes))[-1] == 5000 and sorted(map(sum, sizes))[-2] <= 400
    assert all(max(each) - min(each) < 30 for each in sizes)


def test_options_and_version_are_requested(connect, model):
    connect(batch_size=2).translate(
        ["a", "long sentence", "middle"],
        length_penalty=[np.float32(0.5), None, None],
        max_length=[1, 2, 3],
        prefix=["A", None, "M"],
    )
    rows = {}
    for request in model.requests:
        for row in zip(*request.inputs.values(), strict=True):
            row = dict(zip(request.inputs, row, strict=True))
            rows[row.pop("text")] = row
    none = dict(length_penalty=-1.0, seed=-1, prefix="")
    assert rows == {
        "a": none | dict(length_penalty=0.5, max_length=1, prefix="A"),
        "long sentence": none | dict(max_length=2),
        "middle": none | dict(max_length=3, prefix="M"),
    }
    model.name = "größe 1/2"
    model.versions[2] = lambda *_: {"translations": [["two"]], "scores": [[0.0]]}
    for choice, expected in (({}, 2), ({"version": 1}, 1)):
        connect(model="größe 1/2", **choice).translate(["a"])
        assert model.requests[-1].version == expected


# Failures


@pytest.mark.parametrize(
    ("code", "is_retried"),
    [("UNAVAILABLE", True), ("RESOURCE_EXHAUSTED", True),
     ("INVALID_ARGUMENT", False), ("INTERNAL", False)],
)  # fmt: skip
def test_transient_failures_are_retried(connect, model, monkeypatch, code, is_retried):
    monkeypatch.setattr(client_module, "_FIRST_PAUSE_S", 0.001)
    model.faults = [FaultError(code, 'it\'s "busy"' + "x" * 1000)] * 2
    error = check_failure(code, connect(retries=1).translate, "a")
    assert "busy" in str(error) and len(str(error)) < 600
    assert len(model.requests) == 1 + is_retried
    model.faults = [FaultError(code, "busy")] * 2 * is_retried
    text = "x" * 1_000_000
    assert connect(retries=2).translate(text).text == text.upper()


def test_call_ends_with_its_timeout_or_the_first_rejection(connect, model):
    start = time.monotonic()
    model.faults = [FaultError("UNAVAILABLE", "busy")] * 99
    client = connect(retries=99, timeout_s=0.6)
    client._transport = mock.Mock(wraps=client._transport)
    check_failure("UNAVAILABLE", client.translate, ["a"])
    assert 2 <= len(model.requests) <= 4
    left = [call.args[2] for call in client._transport.predict.call_args_list]  # of the time
    assert all(later < earlier - 0.09 for earlier, later in itertools.pairwise(left))
    model.faults.clear()
    model.may_answer.clear()
    check_failure("DEADLINE_EXCEEDED", connect(timeout_s=0.2).translate, ["a"])
    model.rejection = FaultError("INVALID_ARGUMENT", "it is bad")  # while other requests wait
    client = connect(batch_size=2, requests_in_flight=2, timeout_s=20)
    sentences = ["a", "longer", "bad", "b", "longest"]
    error = check_failure("INVALID_ARGUMENT", client.translate, sentences)
    assert error.rows == (0, 2)
    model.may_answer.set()
    assert time.monotonic() - start < 5


def test_server_that_is_down_is_named_and_waited_for(model, free_ports, protocol):
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with Client(address, protocol=protocol, retries=0, timeout_s=5) as client:
        for options in ({}, {"prefix": "b"}):
            error = check_failure("UNAVAILABLE", client.translate, ["a"], **options)
            assert f"{protocol} server at {address}" in str(error)
    with Client(address, protocol=protocol) as client:
        answer = concurrent.futures.ThreadPoolExecutor(1).submit(client.translate, ["a"])
        time.sleep(0.3)  # it has failed once
        with SERVE[protocol](model, port):
            assert answer.result(60)[0].text == "A"
    with pytest.raises(RuntimeError):
        client.translate("a")  # closed


def test_other_models_and_missing_signatures_are_reported(connect, model):
    for choice in ({"model": "other"}, {"version": 7}):
        check_failure("NOT_FOUND", connect(**choice).translate, "a")
    for outputs in (
        {"classes": [[1, 2]]},
        {"translations": [["a"], ["b"]], "scores": [[0.0], [0.0]]},
        {"translations": [[1.0]], "scores": [[0.0]]},
        {"translations": [["a", "b"]], "scores": [[0.0]]},
    ):
        model.versions[1] = lambda *_, outputs=outputs: outputs
        check_failure("DATA_LOSS", connect().translate, ["a"])
    with pytest.raises(InputError, match="beams"):
        connect().translate("a", beams=3)
    del model.signatures["score"]
    check_failure("INVALID_ARGUMENT", connect().score, ["a"], ["b"])


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"502 Bad Gateway\r\n\r\n<html>Bad Gateway</html>", "UNAVAILABLE"),
        (b"200 OK\r\n\r\n<html>hello</html>", "UNKNOWN"),
        (b"307 Temporary Redirect\r\nLocation: /v1/other\r\n\r\n", "UNKNOWN"),
        (b"", "UNAVAILABLE"),
    ],
    ids=["bad gateway", "page", "redirect", "nothing"],
)
def test_other_http_servers_are_recognized(answer, code):
    def run(listening):
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as request:
                for _ in iter(request.readline, b"\r\n"):
                    pass
                connection.sendall(answer and b"HTTP/1.1 " + answer)
                connection.shutdown(socket.SHUT_WR)
                request.read()  # until the client leaves: unread bytes would reset it

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=run, args=[listening], daemon=True).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with Client(address, protocol="rest", retries=0) as client:
            check_failure(code, client.translate, "a")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(address="http://localhost:8501"), "must be host:port"),
        (dict(protocol="http"), "protocol must be one of grpc, rest, got 'http'"),
        (dict(batch_size=0), "batch_size must be positive, got 0"),
        (dict(timeout_s=float("nan")), "timeout_s must be positive"),
        (dict(retries=-1), "retries must not be negative, got -1"),
        (dict(model="\udc80"), "model must be Unicode"),
        (dict(root_certificates="ca.pem"), "certificates need TLS"),
        (dict(tls=True, root_certificates="absent.pem"), "no certificate absent.pem"),
        (dict(tls=True, client_key=__file__), "client_certificate and client_key together"),
        (dict(headers={"authorization": "s3cret\r\nx: y"}), "the header 'authorization' must have"),
        (dict(headers={"Authorization": "s3cret"}), r"to mt\.org:1 in clear text; use TLS"),
    ],
)
def test_invalid_settings_are_rejected(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        Client(**({"address": "mt.org:1"} | arguments))
    assert "s3cret" not in str(caught.value)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras_transformer.client.grpc", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(InputError, match=r"needs the package grpc.*\[client\]"):
        Client("localhost:1")


# By name: the server's certificate, the authority that the client trusts, the client's certificate
# where the server requires one, the header that it sends, and the code of the failure.
TLS = {
    "trusted": ("server", "ca.pem", None, "tok en", None),
    "mutual": ("server", "ca.pem", "client", "tok en", None),
    "another token": ("server", "ca.pem", None, "wr0ng", "UNAUTHENTICATED"),
    "another authority": ("server", "other.pem", None, "tok en", "UNAVAILABLE"),
    "the system's authorities": ("server", None, None, "tok en", "UNAVAILABLE"),
    "expired": ("expired", "ca.pem", None, "tok en", "UNAVAILABLE"),
    "another host": ("elsewhere", "ca.pem", None, "tok en", "UNAVAILABLE"),
    "a stranger's certificate": ("server", "ca.pem", "stranger", "tok en", "UNAVAILABLE"),
}


@pytest.mark.parametrize("case", TLS)
def test_tls_verifies_both_sides_and_sends_headers(case, certificates, model, protocol):
    server, root, own, token, code = TLS[case]
    model.required_headers = {"authorization": "Bearer tok en", "x-team": "mt"}
    options = dict(protocol=protocol, tls=True, retries=0, timeout_s=10)
    options["headers"] = {"Authorization": f"Bearer {token}", "x-team": "mt"}
    options["root_certificates"] = root and certificates / root
    if own is not None:
        options["client_certificate"] = certificates / f"{own}.pem"
        options["client_key"] = certificates / f"{own}.key"
    files = (f"{server}.pem", f"{server}.key", "ca.pem" if own else None)
    tls = [name and certificates / name for name in files]
    with SERVE[protocol](model, tls=tls) as address, Client(address, **options) as client:
        if code is None:
            assert client.translate("a").text == "A"
        else:
            assert "wr0ng" not in str(check_failure(code, client.translate, "a"))
    assert len(model.requests) == (code is None)
