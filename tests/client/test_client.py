"""The client, against model servers in this process that answer, fail or are slow."""

import concurrent.futures
import contextlib
import random
import re
import socket
import sys
import threading
import time
from unittest import mock

import numpy as np
import pytest
from fake_server import SERVE, FaultError

from keras_transformer import InputError
from keras_transformer.client import Client, ServingError, Translation, rest
from keras_transformer.client import client as client_module
from keras_transformer.client.transport import ModelName, RequestError
from keras_transformer.sentences import InputValues

over_both = pytest.mark.parametrize("protocol", list(SERVE))


@pytest.fixture
def protocol():
    """REST; tests in which the transport decides are `over_both`."""
    return "rest"


@pytest.fixture
def serve(protocol, model):
    with SERVE[protocol](model) as address, contextlib.ExitStack() as clients:

        def connect(**options):
            client = Client(address, **({"protocol": protocol} | options))
            return clients.enter_context(client)

        connect.address = address
        yield connect


@pytest.fixture
def no_pause(monkeypatch):
    monkeypatch.setattr(client_module, "_FIRST_PAUSE_S", 0.001)


def refusal(call, *arguments, kind=ServingError, **options):
    """Gives the error of a call, which must be one line."""
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def in_thread(call, *arguments):
    return concurrent.futures.ThreadPoolExecutor(1).submit(call, *arguments)


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@over_both
def test_translate_returns_texts_and_scores(serve, model):
    text = "木 ☃ \"' \\ \t"
    expected = [Translation("TWO TREES", -9.0), Translation(text, -10.0)]
    assert serve().translate(["two trees", text]) == expected
    assert serve().translate([]) == serve().score([], []) == []
    assert len(model.requests) == 1
    model.versions[1] = lambda *_: {"translations": [["a", "b"]], "scores": [[-1.0, -2.0]]}
    assert serve().translate("c") == Translation("a", -1.0, (Translation("b", -2.0),))


def test_requests_are_bounded_and_keep_order(serve, model, monkeypatch):
    """At most 10 sentences of similar length, and 400 bytes but for a longer sentence."""
    monkeypatch.setattr(client_module, "_REQUEST_BYTES", 400)
    generator = random.Random(1)
    sentences = ["ж" * generator.randint(0, 40) + str(number) for number in range(103)]
    sentences[50] = "z" * 5000
    answers = serve(batch_size=10).translate(sentences)
    assert [answer.text for answer in answers] == [text.upper() for text in sentences]
    sizes = [[len(text.encode()) for text in each.inputs["text"]] for each in model.requests]
    assert max(map(len, sizes)) == 10
    assert sorted(map(sum, sizes))[-1] == 5000 and sorted(map(sum, sizes))[-2] <= 400
    assert all(max(each) - min(each) < 30 for each in sizes)
    model.requests.clear()
    serve().score(["a"] * 4, ["x" * 120] * 4)  # both sides of a pair count
    assert sorted(len(request.inputs["source"]) for request in model.requests) == [1, 3]


def test_calls_of_several_threads_share_the_requests_in_flight(serve, model):
    client = serve(batch_size=1, requests_in_flight=3)
    model.may_answer.clear()
    answers = [
        in_thread(client.translate, [f"{letter}{number}" for letter in "abc"])
        for number in range(4)
    ]
    wait_until(lambda: model.at_once == 3)
    model.may_answer.set()
    for number, answer in enumerate(answers):
        assert [each.text for each in answer.result(60)] == [
            f"{letter}{number}" for letter in "ABC"
        ]
    assert model.most_at_once == 3


@over_both
def test_options_reach_their_sentences(serve, model):
    serve(batch_size=2).translate(
        ["a", "long sentence", "middle"],
        length_penalty=[np.float32(0.5), None, None],
        max_length=[1, 2, 3],
        prefix=["A", None, "M"],
        banned_phrases=[["x", "y"], "z", ()],
    )
    rows = {}
    for request in model.requests:
        assert request.signature == "translate_options"
        for row in zip(*request.inputs.values(), strict=True):
            row = dict(zip(request.inputs, row, strict=True))
            rows[row.pop("text")] = row
    none = dict(length_penalty=-1.0, seed=-1, prefix="", banned_phrases="")
    assert rows == {
        "a": none | dict(length_penalty=0.5, max_length=1, prefix="A", banned_phrases="x\ny"),
        "long sentence": none | dict(max_length=2, banned_phrases="z"),
        "middle": none | dict(max_length=3, prefix="M", banned_phrases="\n"),  # bans none
    }
    for count in (1, 2, 3):  # a list of phrases is for all sentences
        serve().translate(["a"] * count, banned_phrases=["x", "y"])
        assert model.requests[-1].inputs["banned_phrases"] == ["x\ny"] * count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(beams=3), "has no option beams that can .* it has banned_phrases, length_penalty,"),
        (dict(text="a"), "has no option text"),
        (dict(max_length=[1]), "max_length must be .* one for each, got 1 for 2 sentences"),
        (dict(max_length=1.5), "max_length must be a whole number of 32 bits, got 1.5"),
        (dict(max_length=2**31), "max_length must be a whole number of 32 bits, got 2147483648"),
        (dict(seed=2**63), "seed must be a whole number of 64 bits"),
        (dict(length_penalty=float("nan")), "length_penalty must be a finite number, got nan"),
        (dict(length_penalty="much"), "length_penalty must be a finite number, got 'much'"),
        (dict(prefix=3), "prefix must be text or a list of phrases, got 3"),
        (dict(prefix=["a", "\ud800"]), "prefix must be Unicode, got a lone surrogate"),
        (dict(max_length=[None, -2]), "max_length must be at least 0, got -2"),
        (dict(max_length=-1), "max_length must be at least 0, got -1"),
        (dict(length_penalty=[0.5, -1.0]), "length_penalty must be at least 0, got -1.0"),
        (dict(seed=-1), "seed must be at least 0, got -1"),
        (dict(banned_phrases="a\n" * 257), "banned_phrases must be at most 256, got 257"),
        (dict(banned_phrases=["a\nb"]), "banned_phrases must be phrases of one line each"),
    ],
)
def test_invalid_options_and_sentences_send_nothing(serve, model, options, message):
    with pytest.raises(InputError, match=message):
        serve().translate(["a", "b"], **options)
    for sentences in ("\ud800", [1], ["\udfff"]):
        refusal(serve().translate, sentences, kind=InputError)
    error = refusal(serve().score, ["a"], [], kind=InputError)
    assert "source and target must have as many sentences, got 1 and 0" in str(error)
    assert model.requests == []


@pytest.mark.parametrize(
    ("method", "name", "message"),
    [
        ("translate", "source_cut", "1 of 2 sentences: longer than the model"),
        ("translate", "options_ignored", "1 of 2 sentences: an option is not kept as it"),
        ("score", "is_cut", "1 of 2 sentences: the translation is longer than the model"),
    ],
)
def test_truncated_text_and_ignored_options_are_warned_about(serve, model, method, name, message):
    answers = {
        "translate": {"translations": [["A"], ["B"]], "scores": [[-1.0]] * 2},
        "score": {"scores": [-1.0] * 2, "token_scores": [[-1.0]] * 2, "lengths": [1, 1]},
    }
    model.versions[1] = lambda *_: answers[method] | {name: [False, True]}
    texts = [["a", "b"]] * (2 if method == "score" else 1)
    with pytest.warns(UserWarning, match=message) as found:
        getattr(serve(), method)(*texts)
    assert found[0].filename == __file__


@over_both
def test_details_are_returned(serve, model):
    """Each word attends to its own place; the second row has padding."""

    model.versions[1] = lambda *_: {
        "translations": [["A DOG"], [""]],
        "scores": [[-1.0], [0.0]],
        "tokens": [[["▁A", "▁DOG", "</s>"]], [[""] * 3]],
        "token_scores": [[[-0.5, -0.25, -0.25]], [[0.0] * 3]],
        "source_cut": [True, False],
        "output_cut": [[False], [True]],
        "source_tokens": [["▁a", "▁dog", "</s>", ""], [""] * 4],
        "attention": [[np.eye(3, 4).tolist()]] * 2,
    }
    with pytest.warns(UserWarning, match="1 of 2 sentences: longer"):
        first, blank = serve().translate(["a dog", ""], details=True)
    assert (first.tokens, first.token_scores) == (["▁A", "▁DOG", "</s>"], [-0.5, -0.25, -0.25])
    assert (first.source_tokens, first.alignment) == (["▁a", "▁dog", "</s>"], [(0, 0), (1, 1)])
    np.testing.assert_array_equal(first.attention, np.eye(3))
    assert (blank.tokens, blank.token_scores, blank.alignment) == ([], [], [])
    assert (first.source_cut, first.output_cut) == (blank.output_cut, blank.source_cut)


@over_both
def test_version_label_and_name_are_requested(serve, model):
    model.name = "größe 1/2"
    model.versions[2] = lambda *_: {"translations": [["two"]], "scores": [[0.0]]}
    model.states[2] = ("AVAILABLE", "no such file")
    model.labels["canary"] = 2
    for choice, expected in (({}, 2), ({"version": 1}, 1), ({"label": "canary"}, 2)):
        client = serve(model="größe 1/2", **choice)
        client.translate(["a"])
        assert model.requests[-1].version == expected
    assert client.status() == [(1, "AVAILABLE", ""), (2, "AVAILABLE", "no such file")]


# Another client's request of wrong rank, and of wrong type, in the same batch of the server.
_SHAPES = "Tensors from different tasks have different shapes and padding is turned off."
_TYPES = (
    "Tensor concat operation failed: INVALID_ARGUMENT: Cannot concatenate tensors that have "
    "different data types. Got int32 and int64."
)


@over_both
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("UNAVAILABLE", "busy"),
        ("RESOURCE_EXHAUSTED", "the queue is full"),
        ("FAILED_PRECONDITION", _SHAPES),
        ("INTERNAL", _TYPES),
    ],
)
def test_transient_failures_are_retried(serve, model, no_pause, code, message):
    model.faults = [FaultError(code, message)] * 2
    text = "x" * 1_000_000  # gRPC's own retries have a limit of 256 KiB
    assert serve(retries=2).translate(text).text == text.upper()
    assert len(model.requests) == 3
    model.faults = [FaultError(code, message)] * 2
    error = refusal(serve(retries=1).translate, "a")
    assert error.code in (code, "INVALID_ARGUMENT")  # HTTP has one status for several codes
    assert len(model.requests) == 5


@over_both
@pytest.mark.parametrize(
    ("code", "message"),
    [("INVALID_ARGUMENT", 'it\'s "wrong": ' + "x" * 1000), ("INTERNAL", "a fault")],
)
def test_other_failures_are_reported_at_once(serve, model, protocol, code, message):
    model.faults = [FaultError(code, message)] * 2
    error = refusal(serve(retries=1).translate, "a")
    assert (len(model.requests), error.code) == (1, code)
    assert f"{protocol} server at {serve.address}" in str(error)
    assert message[:12] in str(error) and len(str(error)) < 500


def test_request_in_failing_batches_is_split_down_to_single_sentences(serve, model, no_pause):
    def predict(signature, inputs):
        if len(inputs["text"]) > 1:
            raise FaultError("INTERNAL", _TYPES)
        return {"translations": [[inputs["text"][0].upper()]], "scores": [[0.0]]}

    model.versions[1] = predict
    answers = serve(retries=2).translate(list("abcd"))
    assert [best.text for best in answers] == list("ABCD")
    sizes = [len(request.inputs["text"]) for request in model.requests]
    assert sizes == [4, 4, 4, 2, 1, 1, 2, 1, 1]
    error = refusal(serve(retries=0).translate, ["a", "b"])
    assert "merges requests of this client with those of another one" in str(error)


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"])
def test_rejected_request_ends_the_call_with_its_rows(serve, model, code):
    model.rejection = FaultError(code, "it is bad")
    client = serve(batch_size=4, requests_in_flight=1, retries=0)
    error = refusal(client.translate, ["a", "longer", "bad", "b", "c", "d", "e", "f", "longest"])
    assert (error.code, error.rows) == (code, (0, 1, 2, 8))
    assert ("rejects a request of 4 sentences: it is bad" in str(error)) == (code[0] == "I")
    assert len(model.requests) == 1
    for call in (client.score, client.align):
        assert refusal(call, ["a", "bad"], ["x", "y"]).rows == (0, 1)


def test_call_ends_with_its_first_failure(serve, model):
    """The second request fails while the first one waits, which nobody does any more."""
    model.rejection = FaultError("INVALID_ARGUMENT", "it is bad")
    model.may_answer.clear()
    client = serve(batch_size=1, requests_in_flight=2, timeout_s=20)
    assert refusal(client.translate, ["longest", "bad", "c", "d"]).rows == (1,)
    model.may_answer.set()
    wait_until(lambda: not model.at_once)
    assert len(model.requests) == 2


def test_ended_call_retries_no_request(monkeypatch):
    """One request waits to be sent again when the other one ends the call."""
    sent, has_failed = [], threading.Event()

    def predict(model, signature, inputs, timeout_s):
        sent.extend(inputs["text"].values)
        if "bad" in inputs["text"].values:
            has_failed.wait(20)
            raise RequestError("INVALID_ARGUMENT", "it is bad")
        has_failed.set()
        raise RequestError("UNAVAILABLE", "busy")

    monkeypatch.setattr(client_module, "_FIRST_PAUSE_S", 0.4)
    with Client("localhost:9", protocol="rest", batch_size=1, requests_in_flight=2) as client:
        client._transport = transport = mock.Mock(predict=predict)
        transport.signatures.return_value = {"serving_default": {"text": "DT_STRING"}}
        transport.versions.side_effect = RequestError("UNAVAILABLE", "busy")
        refusal(client.translate, ["good", "bad"])
        time.sleep(0.5)
        assert sorted(sent) == ["bad", "good"]


def test_pauses_double_within_the_timeout(serve, model):
    model.faults = [FaultError("UNAVAILABLE", "busy")] * 99
    start = time.monotonic()
    error = refusal(serve(retries=99, timeout_s=1.0).translate, ["a"])
    assert time.monotonic() - start < 2.0
    assert 2 <= len(model.requests) <= 4
    assert re.search(r"busy; tried for [01]\.\d s\. Is it running", str(error))


@over_both
def test_slow_server_exceeds_the_deadline(serve, model):
    model.may_answer.clear()
    error = refusal(serve(timeout_s=0.2).translate, ["a"])
    model.may_answer.set()
    assert error.code == "DEADLINE_EXCEEDED"
    assert "no answer" in str(error) and "Raise the timeout" in str(error)
    assert len(model.requests) == 1


@contextlib.contextmanager
def http_server(answer):
    """Reads HTTP requests at the yielded address and calls a function with each connection."""

    def run(connection):
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as request:
            headers = b"".join(iter(request.readline, b"\r\n"))
            # All of the body: closing a connection with unread bytes resets it.
            request.read(int((re.findall(rb"(?i)content-length: (\d+)", headers) or [0])[0]))
            answer(connection)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=run, args=listening.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"])
def test_deadline_holds_for_answers_byte_by_byte(start):
    def drip(connection):
        connection.sendall(start)
        while True:
            connection.sendall(b"H")
            time.sleep(0.05)

    options = dict(protocol="rest", timeout_s=0.3, batch_size=8)
    with http_server(drip) as address, Client(address, **options) as client:
        begun = time.monotonic()
        error = refusal(client.translate, list("abcdefgh"))
        assert time.monotonic() - begun < 2
    assert (error.code, len(error.rows)) == ("DEADLINE_EXCEEDED", 8)


def test_connecting_has_a_shorter_timeout_than_sending(monkeypatch):
    """The server reads a request that no buffer holds only after the timeout of connecting."""
    monkeypatch.setattr(rest, "_CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            connection, _ = listening.accept()
            time.sleep(0.5)
            with connection, connection.makefile("rb") as request:
                headers = b"".join(iter(request.readline, b"\r\n"))
                request.read(int(re.findall(rb"(?i)content-length: (\d+)", headers)[0]))
                connection.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"outputs": [1]}')

        in_thread(answer)
        transport = rest.RestTransport("127.0.0.1", listening.getsockname()[1], None, {})
        inputs = {"text": InputValues(["a" * 2**25])}
        assert transport.predict(ModelName("m"), "s", inputs, 60.0) == {"outputs": [1]}


def test_broken_connections_and_bad_gateways_are_retried(no_pause):
    answers = iter([
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"",
        b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>Bad Gateway</html>",
        b'HTTP/1.1 200 OK\r\n\r\n{"outputs": {"translations": [["b"]], "scores": [[0]]}}',
    ])  # fmt: skip
    server = http_server(lambda connection: connection.sendall(next(answers)))
    with server as address, Client(address, protocol="rest") as client:
        assert client.translate("a") == Translation("b", 0.0)


@pytest.mark.parametrize(
    "answer",
    [
        b"200 OK\r\n\r\n<html>hello</html>",
        b'200 OK\r\n\r\n{"status": "ok"}',
        b'200 OK\r\n\r\n{"outputs": ' + b"[" * 200_000,
        b"307 Temporary Redirect\r\nLocation: /v1/other\r\n\r\n",  # with our credentials
        b"404 Not Found\r\n\r\n<html>nothing here</html>",
    ],
    ids=lambda answer: answer[:40].decode(),
)
def test_other_http_servers_are_recognized(answer):
    connections = []

    def send(connection):
        connections.append(connection)
        connection.sendall(b"HTTP/1.1 " + answer)

    with http_server(send) as address, Client(address, protocol="rest") as client:
        error = refusal(client.status)
    assert f"the rest server at {address} is not a TensorFlow model server" in str(error)
    assert len(connections) == 1


@pytest.mark.parametrize("protocol", list(SERVE))
def test_server_that_is_down_is_named_and_waited_for(model, free_ports, protocol):
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with Client(address, protocol=protocol, retries=0, timeout_s=5) as client:
        for call in (client.status, lambda: client.translate(["a"], prefix="b")):
            error = refusal(call)
            assert error.code == "UNAVAILABLE"
            assert f"no answer from a {protocol} server at {address}" in str(error)
            assert "tried for" in str(error) and "Is it running" in str(error)
    with Client(address, protocol=protocol, retries=4) as client:
        answer = in_thread(client.translate, ["a"])
        time.sleep(0.3)  # it has failed once
        with SERVE[protocol](model, port):
            assert answer.result(60)[0].text == "A"


@over_both
def test_unknown_model_is_named(serve):
    for call in (serve(model="other").status, lambda: serve(model="other").translate("a")):
        error = refusal(call)
        assert error.code == "NOT_FOUND"
        assert f"server at {serve.address} has no model 'other'; give the name" in str(error)


@over_both
def test_version_that_is_not_served_is_named_with_those_that_are(serve, model):
    model.states[2] = ("END", "out of memory")
    error = refusal(serve(version=7).translate, "a")
    assert "does not serve version 7 of model 'translator'" in str(error)
    assert "version 1 is AVAILABLE; version 2 is END (out of memory)" in str(error)


def test_model_that_is_loading_is_named(serve, model):
    model.states = {1: ("LOADING", "")}
    error = refusal(serve().translate, "a")
    assert "does not serve model 'translator': version 1 is LOADING" in str(error)


@over_both
def test_missing_signature_and_outputs_are_named(serve, model):
    del model.signatures["translate_options"], model.signatures["score"]
    with pytest.raises(InputError, match=r"has no option prefix .* it has none"):
        serve().translate("a", prefix="b")
    with pytest.raises(InputError, match="export it again with --details"):
        serve().translate("one", details=True)
    error = refusal(serve().score, ["a"], ["b"])
    assert 'rejects a request of 1 sentence: Serving signature name: "score"' in str(error)


@pytest.mark.parametrize(
    "outputs",
    [
        {"classes": [[1, 2]]},
        {"translations": [["a"], ["b"]], "scores": [[0.0], [0.0]]},
        {"translations": [["a", "b"]], "scores": [[0.0]]},
        {"translations": [[1.0]], "scores": [[0.0]]},
        {"translations": [[]], "scores": [[]]},
        {"translations": [["a"]], "scores": [[10**400]]},
        {"translations": [["a\ud800"]], "scores": [[0.0]]},
    ],
    ids=repr,
)
def test_answers_of_other_models_are_rejected(serve, model, outputs):
    model.versions[1] = lambda *_: outputs
    error = refusal(serve().translate, ["a"])
    assert "of model 'translator'" in str(error) and "is not that of a translator" in str(error)
    assert error.code == "DATA_LOSS"


@pytest.mark.parametrize(
    ("protocol", "other", "message"),
    [
        ("rest", "grpc", "this port speaks gRPC; use protocol grpc (--protocol=grpc)"),
        ("grpc", "rest", "this port does not speak gRPC; for the port of REST use --protocol=rest"),
    ],
)
def test_port_of_other_protocol_is_recognized(model, protocol, other, message):
    with SERVE[other](model) as address, Client(address, protocol=protocol) as client:
        error = refusal(client.translate, "a")
    assert str(error) == f"no answer from a {protocol} server at {address} without TLS: {message}"


def test_http1_answer_is_recognized_over_grpc():
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    server = http_server(lambda connection: connection.sendall(answer))
    with server as address, Client(address, protocol="grpc") as client:
        assert "for the port of REST use --protocol=rest" in str(refusal(client.status))


@over_both
def test_closed_client_rejects_calls_and_ends_running_ones(serve, model):
    message = "the client is closed; make another one"
    model.may_answer.clear()
    client = serve(batch_size=1, requests_in_flight=2)
    answer = in_thread(client.translate, list("abcdef"))
    wait_until(lambda: model.requests)
    model.may_answer.set()
    client.close()
    error = answer.exception(60)  # one, or none and all answers
    assert str(error) == message if error else len(answer.result()) == 6
    assert not [each for each in threading.enumerate() if each.name.startswith("requests")]
    for call in (client.translate, lambda _: client.status()):
        assert str(refusal(call, ["a"], kind=InputError)) == message
    client.close()


def test_rest_connections_are_reused(model):
    with SERVE["rest"](model) as address, Client(address, protocol="rest") as client:
        for _ in range(5):
            client.translate(["a"])
        assert client._transport._pool.num_connections == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(address="localhost"), "must be host:port, such as localhost:8500, or over gRPC dns"),
        (dict(address="http://localhost:8501"), "must be host:port"),
        (dict(address="localhost:99999"), "must be host:port"),
        (dict(address=":8500"), "must be host:port"),
        (dict(address="localhost:٨٥٠٠"), "must be host:port"),
        (dict(address="host_%:8501", protocol="rest"), "'host_%' is not the name or address of"),
        (dict(address="dns:///localhost:8501", protocol="rest"), "dns:///localhost:8501 is for gR"),
        (dict(tls_server_name="a"), "certificates and tls_server_name need TLS; turn on"),
        (dict(protocol="http"), "protocol must be grpc or rest, got 'http'"),
        (dict(batch_size=0), "batch_size must be at least 1, got 0"),
        (dict(timeout_s=0), "timeout_s must be a number of seconds, got 0"),
        (dict(timeout_s=float("inf")), "timeout_s must be a number of seconds, got inf"),
        (dict(version=1 << 63), "version must be a positive number of 64 bits, got 92233720"),
        (dict(model="\udcff"), "model must be Unicode, got a lone surrogate"),
        (dict(version=1, label="a"), "give version 1 or label 'a', not both"),
    ],
)
def test_invalid_settings_are_rejected(arguments, message):
    with pytest.raises(InputError, match=message):
        Client(**({"address": "localhost:8500"} | arguments))


def test_missing_grpc_is_reported(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras_transformer.client.grpc", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(InputError, match="protocol grpc needs the package grpc"):
        Client("localhost:1")


def test_ipv6_addresses_are_accepted():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6 on this machine")
    for address in ("[::1]:9", "::1:9"):
        with Client(address, protocol="rest", retries=0) as client:
            assert f"server at {address}: Connection refused" in str(refusal(client.status))
