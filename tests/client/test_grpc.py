"""What only gRPC has: several addresses of a server, sizes of messages."""

import contextlib
import socket
import struct
import threading
import time

import pytest
from fake_server import serve_grpc, upper_case_model

from keras_transformer import InputError
from keras_transformer.client import Client, ServingError


@contextlib.contextmanager
def name_server(addresses):
    """Serves DNS at the yielded address: every name has these IPv4 addresses (RFC 1035)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))

        def serve():
            with contextlib.suppress(OSError):  # closed
                while True:
                    query, client = listening.recvfrom(512)
                    end = query.index(b"\0", 12) + 5  # of the question: name, type, class
                    (kind,) = struct.unpack(">H", query[end - 4 : end - 2])
                    records = [
                        # The name at byte 12, type A, class IN, 60 seconds, 4 bytes.
                        struct.pack(">HHHIH", 0xC00C, 1, 1, 60, 4) + socket.inet_aton(address)
                        for address in addresses
                        if kind == 1
                    ]
                    header = struct.pack(">HHHHH", 0x8180, 1, len(records), 0, 0)
                    answer = query[:2] + header + query[12:end] + b"".join(records)
                    listening.sendto(answer, client)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_addresses_of_a_name_take_turns(free_ports):
    models = [upper_case_model(), upper_case_model()]
    hosts, (port,) = ["127.0.0.1", "127.0.0.2"], free_ports(1)
    with contextlib.ExitStack() as stack:
        for model, host in zip(models, hosts, strict=True):
            stack.enter_context(serve_grpc(model, port, host=host))
        resolver = stack.enter_context(name_server(hosts))
        client = stack.enter_context(
            Client(f"dns://{resolver}/models.example:{port}", batch_size=1, timeout_s=20)
        )
        end = time.monotonic() + 20
        while not all(model.requests for model in models):  # until both are connected
            client.translate(["a"])
            assert time.monotonic() < end
        for model in models:
            model.requests.clear()
        client.translate(["a"] * 20)
        assert [len(model.requests) for model in models] == [10, 10]


def test_connections_that_the_server_ends_lose_no_request():
    # As in examples/serving/kubernetes.yaml, for clients to find new servers.
    ending = [("grpc.max_connection_age_ms", 100)]
    with (
        serve_grpc(upper_case_model(), options=ending) as address,
        Client(address, batch_size=1, retries=0, timeout_s=20) as client,
    ):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert [best.text for best in client.translate(["a"] * 9)] == ["A"] * 9


def test_names_of_this_machine_are_resolved_here_only():
    headers = {"authorization": "Bearer x"}
    with serve_grpc(upper_case_model()) as address:
        target = address.replace("127.0.0.1", "dns:///localhost")
        with Client(target, headers=headers, timeout_s=20) as client:
            assert client.translate("a").text == "A"
    with pytest.raises(InputError, match=r"sent to dns://9\.9\.9\.9/localhost:1 in clear"):
        Client("dns://9.9.9.9/localhost:1", headers=headers)


def test_message_that_is_too_large_is_not_retried():
    small = [("grpc.max_receive_message_length", 2_000_000)]
    rejected = r"rejects a request of 1 sentence: .*larger than max"
    with (
        serve_grpc(upper_case_model(), options=small) as address,
        Client(address, timeout_s=20) as client,
        pytest.raises(ServingError, match=rejected) as caught,
    ):
        client.translate(["a", "b" * 3_000_000, "c"])
    assert caught.value.rows == (1,)
