"""The client, against model servers in this process that answer, fail or are slow."""

import contextlib
import http.server
import os
import pathlib
import random
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from fake_server import SERVE, FaultError, serve_http, upper_case_model

import keras_transformer
from keras_transformer import InputError
from keras_transformer.client import Client, ServingError, Translation
from keras_transformer.client import client as client_module


@pytest.fixture
def model():
    return upper_case_model()


@pytest.fixture(params=list(SERVE))
def serve(request, model):
    """Serves the model over each protocol; gives a function that makes clients of it."""
    with SERVE[request.param](model) as address:
        clients = []

        def connect(**options):
            clients.append(Client(address, **({"protocol": request.param} | options)))
            return clients[-1]

        connect.address, connect.protocol = address, request.param
        yield connect
        for client in clients:
            client.close()


@pytest.fixture
def no_pause(monkeypatch):
    """Retries almost at once."""
    monkeypatch.setattr(client_module, "_FIRST_PAUSE_S", 0.001)


def refusal(call, *arguments, kind=ServingError, **options):
    """Gives the error of a call, which must be one line."""
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def test_translate_returns_texts_and_scores(serve, model):
    text = "木 ☃ \"' \\ \t"
    expected = [[Translation("TWO TREES", -9.0)], [Translation(text, -10.0)]]
    assert serve().translate(["two trees", text]) == expected
    model.versions[1] = lambda *_: {"translations": [["a", "b"]], "scores": [[-1.0, -2.0]]}
    assert serve().translate(["c"]) == [[Translation("a", -1.0), Translation("b", -2.0)]]


def test_no_sentences_send_no_request(serve, model):
    assert serve().translate([]) == []
    assert serve().score([], []) == []
    assert model.requests == []


def test_batches_have_similar_lengths_and_keep_order(serve, model):
    generator = random.Random(1)
    sentences = ["x" * generator.randint(0, 40) + str(number) for number in range(103)]
    answers = serve(batch_size=10).translate(sentences)
    assert [answer[0].text for answer in answers] == [text.upper() for text in sentences]
    sizes = [len(request.inputs["text"]) for request in model.requests]
    assert sorted(sizes) == [3] + [10] * 10
    spreads = [
        max(map(len, request.inputs["text"])) - min(map(len, request.inputs["text"]))
        for request in model.requests
    ]
    assert max(spreads) < 12


def in_thread(call, *arguments):
    """Starts a call; returns a function that waits for its result or `InputError`."""
    outcomes = []

    def run():
        try:
            outcomes.append(call(*arguments))
        except InputError as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def outcome():
        thread.join(timeout=60)
        return outcomes[0]

    return outcome


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_requests_in_flight_are_limited(serve, model):
    model.may_answer.clear()
    outcome = in_thread(serve(batch_size=1, requests_in_flight=3).translate, list("abcdefghi"))
    wait_until(lambda: model.at_once == 3)
    model.may_answer.set()
    assert len(outcome()) == 9
    assert model.most_at_once == 3


def test_client_is_thread_safe(serve):
    client = serve(batch_size=2)
    outcomes = [
        in_thread(client.translate, [f"{letter}{number}" for letter in "abc"])
        for number in range(6)
    ]
    for number, outcome in enumerate(outcomes):
        assert [each[0].text for each in outcome()] == [f"{letter}{number}" for letter in "ABC"]


def test_options_reach_their_sentences(serve, model):
    serve(batch_size=2).translate(
        ["a", "long sentence", "middle"],
        length_penalty=np.float32(0.5),
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
    assert rows == {
        "a": dict(length_penalty=0.5, max_length=1, seed=-1, prefix="A", banned_phrases="x\ny"),
        "long sentence": dict(
            length_penalty=0.5, max_length=2, seed=-1, prefix="", banned_phrases="z"
        ),
        "middle": dict(length_penalty=0.5, max_length=3, seed=-1, prefix="M", banned_phrases=""),
    }


@pytest.mark.parametrize("count", [1, 2, 3])
def test_list_of_phrases_is_for_all_sentences(serve, model, count):
    serve().translate(["a"] * count, banned_phrases=["x", "y"])
    (request,) = model.requests
    assert request.inputs["banned_phrases"] == ["x\ny"] * count


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
        (dict(length_penalty=10**400), "length_penalty must be a finite number, got 1000"),
        (dict(prefix=3), "prefix must be text or a list of phrases, got 3"),
        (dict(prefix=["a", "\ud800"]), "prefix must be Unicode, got a lone surrogate"),
        (dict(length_penalty=-0.5), "length_penalty must be at least 0, got -0.5"),
        (dict(max_length=[None, -2]), "max_length must be at least 0, got -2"),
        (dict(seed=1 << 40), "seed must be at most 2147483647, got 1099511627776"),
        (dict(banned_phrases="a\n" * 257), "number of banned_phrases must be at most 256, got 257"),
    ],
)
def test_invalid_options_are_rejected(serve, model, options, message):
    with pytest.raises(InputError, match=message):
        serve().translate(["a", "b"], **options)
    assert model.requests == []


def test_options_may_be_those_of_the_export(serve, model):
    serve().translate(["a", "b"], length_penalty=[-1, None], max_length=-1)
    (request,) = model.requests
    assert request.inputs["length_penalty"] == [-1.0, -1.0]
    assert request.inputs["max_length"] == [-1, -1]


def test_model_without_options_rejects_them(serve, model):
    del model.signatures["translate_options"]
    with pytest.raises(InputError, match=r"has no option prefix .* it has none"):
        serve().translate(["a"], prefix="b")


def test_scores_have_no_padding(serve):
    scores = serve(batch_size=2).score(["a", "bb", "c"], ["one two", "one", "one two three"])
    assert [len(score.token_scores) for score in scores] == [3, 2, 4]
    assert [score.score for score in scores] == [-0.75, -0.5, -1.0]
    error = refusal(serve().score, ["a"], [], kind=InputError)
    assert "source and target must have as many sentences, got 1 and 0" in str(error)


def test_what_the_model_cuts_is_a_warning(serve, model):
    answer = {"scores": [-1.0], "token_scores": [[-1.0]], "lengths": [1], "is_cut": [True]}
    model.versions[1] = lambda *_: answer
    with pytest.warns(UserWarning, match="1 of 1 translations are longer than the model") as found:
        assert serve().score(["a"], ["b"])[0].is_cut
    assert found[0].filename == __file__
    model.versions[1] = lambda *_: {
        "translations": [["A"], ["B"]], "scores": [[-1.0]] * 2, "source_cut": [False, True],
    }  # fmt: skip
    with pytest.warns(UserWarning, match="1 of 2 sentences are longer than the model") as found:
        serve().translate(["a", "b"])
    assert found[0].filename == __file__


def test_only_lists_of_text_are_accepted(serve, model):
    for sentences in ("one", [b"one"], ["\udfff"]):
        refusal(serve().translate, sentences, kind=InputError)
    assert model.requests == []


def test_version_and_label_are_requested(serve, model):
    model.versions[2] = lambda *_: {"translations": [["two"]], "scores": [[0.0]]}
    model.states[2] = ("AVAILABLE", "")
    model.labels["canary"] = 2
    assert serve().translate(["a"])[0][0].text == "two"
    assert serve(version=1).translate(["a"])[0][0].text == "A"
    assert serve(label="canary").translate(["a"])[0][0].text == "two"
    assert [request.version for request in model.requests] == [2, 1, 2]


def test_model_name_is_escaped_in_urls(serve, model):
    model.name = "größe 1/2"
    assert serve(model="größe 1/2").translate(["a"])[0][0].text == "A"


def test_status_lists_versions_and_errors(serve, model):
    model.states[2] = ("END", "no such file")
    assert serve().status() == [(1, "AVAILABLE", ""), (2, "END", "no such file")]


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_transient_failures_are_retried(serve, model, no_pause, code):
    model.faults = [FaultError(code, "busy")] * 3
    assert serve(retries=3).translate(["a"])[0][0].text == "A"
    assert len(model.requests) == 4


def test_retries_are_limited(serve, model, no_pause):
    model.faults = [FaultError("RESOURCE_EXHAUSTED", "the queue is full")] * 9
    error = refusal(serve(retries=2).translate, ["a"])
    assert len(model.requests) == 3
    assert error.code == "RESOURCE_EXHAUSTED"
    assert "is overloaded: the queue is full; tried for " in str(error)
    model.requests.clear()
    refusal(serve(retries=0).translate, ["a"])
    assert len(model.requests) == 1


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "INTERNAL", "FAILED_PRECONDITION"])
def test_other_failures_are_not_retried(serve, model, code):
    model.faults = [FaultError(code, 'it\'s "wrong": ' + "x" * 1000)] * 9
    error = refusal(serve().translate, ["a"])
    assert len(model.requests) == 1
    assert (
        f"the {serve.protocol} server at {serve.address} rejects a request of 1 sentence: it"
        in str(error)
    )
    assert '"wrong"' in str(error)
    assert len(str(error)) < 500


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"])
def test_rejected_request_ends_the_call_with_its_rows(serve, model, no_pause, code):
    answer = model.versions[1]

    def predict(signature, inputs):
        texts = inputs["text"] if "text" in inputs else inputs["source"]
        if "bad" in texts:
            raise FaultError(code, "it is bad")
        return answer(signature, inputs)

    model.versions[1] = predict
    client = serve(batch_size=4, requests_in_flight=1, retries=0)
    error = refusal(client.translate, ["a", "longer", "bad", "b", "c", "d", "e", "f", "longest"])
    assert (error.code, error.rows) == (code, (0, 1, 2, 8))
    assert ("rejects a request of 4 sentences: it is bad" in str(error)) == (code[0] == "I")
    assert len(model.requests) == 1
    for call in (client.score, client.align):
        assert refusal(call, ["a", "bad"], ["x", "y"]).rows == (0, 1)


def test_failed_call_asks_once_about_the_model(serve, model, monkeypatch):
    """A mistyped label: a request for each in flight, one question, and the error."""
    client = serve(label="canry", batch_size=1, requests_in_flight=2)
    asked, versions = [], client._transport.versions
    monkeypatch.setattr(
        client._transport, "versions", lambda *each: asked.append(each) or versions(*each)
    )
    sent, predict = [], client._transport.predict
    monkeypatch.setattr(
        client._transport, "predict", lambda *each: sent.append(each) or predict(*each)
    )
    assert "version label: canry" in str(refusal(client.translate, list("abcdefgh")))
    assert (len(asked), len(sent) <= 4) == (1, True)


def test_call_ends_with_its_first_failure(serve, model):
    """The second request fails while the first one waits, which nobody does any more."""
    answer, may_answer = model.versions[1], threading.Event()

    def predict(signature, inputs):
        if "bad" in inputs["text"]:
            raise FaultError("INVALID_ARGUMENT", "it is bad")
        may_answer.wait(20)
        return answer(signature, inputs)

    model.versions[1] = predict
    client = serve(batch_size=1, requests_in_flight=2, timeout_s=20)
    assert refusal(client.translate, ["longest", "bad", "c", "d"]).rows == (1,)
    may_answer.set()
    wait_until(lambda: not model.at_once)
    assert len(model.requests) <= 3


@pytest.mark.parametrize("part", ["headers", "body"])
def test_deadline_holds_for_answers_byte_by_byte(part):
    """A server that keeps sending never exceeds a timeout of single reads."""

    def drip(connection):
        with contextlib.suppress(OSError), connection:
            if part == "body":
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
            while True:
                connection.sendall(b"H")
                time.sleep(0.05)

    def serve(listening):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drip, args=listening.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with Client(address, protocol="rest", timeout_s=0.3, batch_size=8) as client:
            start = time.monotonic()
            error = refusal(client.translate, list("abcdefgh"))
            assert time.monotonic() - start < 2
    assert (error.code, len(error.rows)) == ("DEADLINE_EXCEEDED", 8)


def test_requests_are_bounded_in_bytes(serve, model, monkeypatch):
    monkeypatch.setattr(client_module, "_REQUEST_BYTES", 1000)
    sentences = ["ж" * 100] * 9 + ["z" * 5000] + ["short"] * 100
    answers = serve(batch_size=64).translate(sentences)
    assert [each[0].text for each in answers] == [text.upper() for text in sentences]
    requests = [request.inputs["text"] for request in model.requests]
    assert sum(map(len, requests)) == 110
    sizes = [sum(len(text.encode()) for text in texts) for texts in requests]
    assert sorted(sizes)[-1] == 5000 and sorted(sizes)[-2] <= 1000
    # Both sides of a pair count.
    model.requests.clear()
    serve().score(["a"] * 4, ["x" * 300] * 4)
    assert sorted(len(request.inputs["source"]) for request in model.requests) == [1, 3]


def test_requests_batched_with_malformed_ones_are_retried(serve, model, no_pause):
    message = "Tensors from different tasks have different shapes and padding is turned off."
    model.faults = [FaultError("FAILED_PRECONDITION", message)] * 2
    assert serve(retries=2).translate(["a"])[0][0].text == "A"
    assert len(model.requests) == 3


def test_large_requests_are_retried(serve, model, no_pause):
    model.faults = [FaultError("UNAVAILABLE", "busy")] * 2
    text = "x" * 1_000_000  # gRPC's own limit is 256 KiB
    assert serve(retries=2).translate([text])[0][0].text == text.upper()


class _Clock:
    """Replaces a client's time, which only its pauses move, and its event of being closed."""

    def __init__(self, client, monkeypatch):
        self.pauses = []
        self.wait = self.pauses.append
        client._is_closed = self
        monkeypatch.setattr(client_module, "time", self)

    def monotonic(self):
        return sum(self.pauses)

    def is_set(self):
        return False

    def set(self):
        pass


def test_pauses_double_up_to_a_limit(serve, model, monkeypatch):
    model.faults = [FaultError("UNAVAILABLE", "busy")] * 99
    client = serve(retries=7, timeout_s=60)
    clock = _Clock(client, monkeypatch)
    refusal(client.translate, ["a"])
    ratios = np.array(clock.pauses) / [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert np.all((ratios >= 0.5) & (ratios <= 1.0))
    assert len(set(ratios)) == 7  # at random


def test_timeout_includes_pauses(serve, model, monkeypatch):
    model.faults = [FaultError("UNAVAILABLE", "busy")] * 99
    client = serve(retries=99, timeout_s=8.0)
    clock = _Clock(client, monkeypatch)
    error = refusal(client.translate, ["a"])
    assert error.code == "UNAVAILABLE"
    assert 3.0 < clock.monotonic() < 8.0
    assert f"tried for {clock.monotonic():.1f} s" in str(error)


def test_slow_server_exceeds_the_deadline(serve, model):
    model.may_answer.clear()
    error = refusal(serve(timeout_s=0.2).translate, ["a"])
    model.may_answer.set()
    assert error.code == "DEADLINE_EXCEEDED"
    assert "no answer" in str(error) and "Raise the timeout" in str(error)
    assert len(model.requests) == 1


@pytest.mark.parametrize("protocol", list(SERVE))
def test_server_that_is_down_is_named(free_ports, protocol):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with Client(address, protocol=protocol, retries=2, timeout_s=5) as client:
        for call in (client.status, lambda: client.translate(["a"], prefix="b")):
            error = refusal(call)
            assert error.code == "UNAVAILABLE"
            assert f"no answer from a {protocol} server at {address}" in str(error)
            assert "tried for" in str(error) and "Is it running" in str(error)


@pytest.mark.parametrize("protocol", list(SERVE))
def test_retries_wait_for_a_starting_server(model, free_ports, protocol):
    (port,) = free_ports(1)
    with Client(f"127.0.0.1:{port}", protocol=protocol, retries=4) as client:
        outcome = in_thread(client.translate, ["a"])
        time.sleep(0.3)  # it has failed once
        with SERVE[protocol](model, port):
            assert outcome()[0][0].text == "A"


def test_unknown_host_is_named():
    with Client("no-such-host.invalid:1", protocol="rest", retries=0) as client:
        assert "no-such-host.invalid:1" in str(refusal(client.status))


def test_missing_model_is_reported(serve):
    for call in (serve(model="other").status, lambda: serve(model="other").translate(["a"])):
        error = refusal(call)
        assert error.code == "NOT_FOUND"
        assert f"server at {serve.address} has no model 'other'; give the name" in str(error)


def test_missing_version_is_reported_with_others(serve, model):
    model.states[2] = ("END", "out of memory")
    error = refusal(serve(version=7).translate, ["a"])
    assert "does not serve version 7 of model 'translator'" in str(error)
    assert "version 1 is AVAILABLE; version 2 is END (out of memory)" in str(error)


def test_loading_model_is_reported(serve, model):
    model.states = {1: ("LOADING", "")}
    error = refusal(serve().translate, ["a"])
    assert "does not serve model 'translator': version 1 is LOADING" in str(error)


def test_missing_label_is_reported(serve):
    assert "version label: canary" in str(refusal(serve(label="canary").translate, ["a"]))


def test_missing_signature_is_reported(serve, model):
    del model.signatures["score"]
    error = refusal(serve().score, ["a"], ["b"])
    assert 'rejects a request of 1 sentence: Serving signature name: "score"' in str(error)


@pytest.mark.parametrize(
    "outputs",
    [
        {"classes": [[1, 2]]},
        {"classes": [1], "probabilities": [0.5]},
        {"translations": [["a"], ["b"]], "scores": [[0.0], [0.0]]},
        {"translations": [["a", "b"]], "scores": [[0.0]]},
        {"translations": [[1.0]], "scores": [[0.0]]},
        {"translations": [["a"]], "scores": [["b"]]},
        {"translations": ["a"], "scores": [0.0]},
        {"translations": [[]], "scores": [[]]},
        {"translations": [["a"]], "scores": [[10**400]]},
        {"translations": [["a\ud800"]], "scores": [[0.0]]},
    ],
    ids=repr,
)
def test_answers_of_other_models_are_rejected(serve, model, outputs):
    if serve.protocol == "grpc" and not _is_sendable(outputs):
        pytest.skip("gRPC's tensors cannot hold it")
    model.versions[1] = lambda *_: outputs
    error = refusal(serve().translate, ["a"])
    assert "of model 'translator'" in str(error) and "is not that of a translator" in str(error)
    assert error.code == "DATA_LOSS"


def _is_sendable(outputs):
    text = repr(outputs)
    return "ud800" not in text and "0" * 400 not in text


def http_server(*answers):
    """Serves answers (status, body) in turn, the last one for ever."""
    paths = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = answers[min(len(paths), len(answers) - 1)]
            paths.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments):
            pass

    return serve_http(Handler)


def test_bad_gateway_is_retried(no_pause):
    bad = (502, b"<html>Bad Gateway</html>")
    good = (200, b'{"outputs": {"translations": [["A"]], "scores": [[0.0]]}}')
    with http_server(bad, good) as address, Client(address, protocol="rest") as client:
        assert client.translate(["a"]) == [[Translation("A", 0.0)]]
    with http_server(bad) as address, Client(address, protocol="rest", retries=0) as client:
        error = refusal(client.translate, ["a"])
    assert error.code == "UNAVAILABLE" and "HTTP status 502" in str(error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attention": [[[]]]},  # smaller than its pieces
        {"source_pieces": [["a", 3]]},
        {"target_pieces": [[None, "</s>"]]},
    ],
    ids=repr,
)
def test_malformed_attention_is_rejected(serve, model, wrong):
    outputs = {
        "attention": [[[0.5, 0.5]] * 2],
        "source_pieces": [["a", "</s>"]],
        "target_pieces": [["b", "</s>"]],
    }
    model.versions[1] = lambda *_: outputs
    assert serve().align(["a"], ["b"]) == [[(0, 0)]]
    if serve.protocol == "grpc" and "attention" not in wrong:
        pytest.skip("gRPC's tensors have one type")
    outputs.update(wrong)
    assert refusal(serve().align, ["a"], ["b"]).code == "DATA_LOSS"


@pytest.mark.parametrize(
    "answer",
    [(200, b"<html>hello</html>"), (200, b"[1]"), (404, b"<html>nothing here</html>"), (405, b""),
     (200, b'{"status": "ok"}'), (200, b'{"outputs": ' + b"[" * 200_000)],
    ids=["html", "list", "404", "405", "other JSON", "endless JSON"],
)  # fmt: skip
def test_other_http_servers_are_recognized(answer):
    with http_server(answer) as address, Client(address, protocol="rest") as client:
        error = refusal(client.status)
        assert f"the rest server at {address} is not a TensorFlow model server" in str(error)
        refusal(client.translate, ["a"])


@pytest.mark.parametrize(("protocol", "other"), [("rest", "grpc"), ("grpc", "rest")])
def test_port_of_other_protocol_is_recognized(model, no_pause, protocol, other):
    with SERVE[other](model) as address, Client(address, protocol=protocol, retries=1) as client:
        error = refusal(client.status)
        assert "the protocol that it speaks" in str(error) or "the port of that" in str(error)


def test_broken_connections_are_retried(no_pause):
    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"",
        b'HTTP/1.1 200 OK\r\n\r\n{"outputs": {"translations": [["b"]], "scores": [[0]]}}',
    ]

    def serve(listening):
        for answer in answers:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as request:
                # All of it: closing a connection with unread bytes resets it.
                headers = dict(line.split(b": ") for line in iter(request.readline, b"\r\n")
                               if b": " in line)  # fmt: skip
                request.read(int(headers[b"Content-Length"]))
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        with Client(f"127.0.0.1:{listening.getsockname()[1]}", protocol="rest") as client:
            assert client.translate(["a"]) == [[Translation("b", 0.0)]]


def test_closed_client_rejects_calls(serve):
    client = serve()
    assert client.translate(["a"])[0][0].text == "A"
    client.close()
    for call in (client.translate, lambda _: client.status()):
        error = refusal(call, ["a"], kind=InputError)
        assert str(error) == "the client is closed; make another one"
    client.close()


def test_close_ends_running_calls(serve, model):
    """A call in another thread gets its answers or one error; no thread is left."""
    model.may_answer.clear()
    client = serve(batch_size=1, requests_in_flight=2)
    outcome = in_thread(client.translate, list("abcdef"))
    wait_until(lambda: model.requests)
    model.may_answer.set()
    client.close()
    found = outcome()
    assert str(found) == "the client is closed; make another one" or len(found) == 6
    assert not [each for each in threading.enumerate() if each.name.startswith("requests")]


def test_rest_connections_are_reused(model):
    with SERVE["rest"](model) as address, Client(address, protocol="rest") as client:
        for _ in range(5):
            client.translate(["a"])
        assert client._transport._pool.num_connections == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            dict(address="localhost"),
            "must be host:port, such as localhost:8500, or over gRPC .* got 'localhost'",
        ),
        (dict(address="http://localhost:8501"), "must be host:port"),
        (dict(address="localhost:99999"), "must be host:port"),
        (dict(address=":8500"), "must be host:port"),
        (dict(address="a b:8500", protocol="rest"), "must be host:port"),
        (
            dict(address="dns:///localhost:8501", protocol="rest"),
            "dns:///localhost:8501 is for gRPC",
        ),
        (dict(keep_alive_s=60, protocol="rest"), "keep_alive 60 is for gRPC, and protocol is rest"),
        (dict(keep_alive_s=0), "keep_alive_s must be 1 to 86400 seconds, got 0"),
        (dict(tls_server_name="a"), "certificates and tls_server_name need TLS; turn on"),
        (dict(protocol="http"), "protocol must be grpc or rest, got 'http'"),
        (dict(batch_size=0), "batch_size must be at least 1, got 0"),
        (dict(retries=-1), "retries must be at least 0, got -1"),
        (dict(requests_in_flight=0), "requests_in_flight must be at least 1"),
        (dict(timeout_s=0), "timeout_s must be a number of seconds, got 0"),
        (dict(timeout_s=float("inf")), "timeout_s must be a number of seconds, got inf"),
        (dict(version=0), "version must be a positive number of 64 bits, got 0"),
        (dict(version=1 << 63), "version must be a positive number of 64 bits, got 92233720"),
        (dict(version="1"), "version must be a positive number of 64 bits, got '1'"),
        (dict(model=3), "model must be text, got 3"),
        (dict(label=1), "label must be text, got 1"),
        (dict(model="\udcff"), "model must be Unicode, got a lone surrogate"),
        (dict(version=1, label="a"), "give version 1 or label 'a', not both"),
    ],
)
def test_invalid_settings_are_rejected(arguments, message):
    with pytest.raises(InputError, match=message):
        Client(**({"address": "localhost:8500"} | arguments))


def test_ipv6_addresses_are_accepted(model):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6 on this machine")
    for address in ("[::1]:9", "::1:9"):
        with Client(address, protocol="rest", retries=0) as client:
            assert f"server at {address}: Connection refused" in str(refusal(client.status))


def test_rest_needs_only_urllib3():
    program = """
import sys
sys.modules.update(dict.fromkeys(("tensorflow", "keras", "grpc", "numpy")))  # not to be had
from keras_transformer.client import Client
client = Client("localhost:1", protocol="rest", retries=0)
try:
    client.translate(["a"])
except ValueError as error:
    print(error)
try:
    Client("localhost:1")
except ValueError as error:
    print(error)
"""
    root = str(pathlib.Path(keras_transformer.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("no answer from a rest server at localhost:1")
    assert second.startswith("protocol grpc needs the package ")
