"""The client of a model server, against servers in this process that behave, fail or dawdle."""

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

from fake_server import SERVE, FaultError, Model, serve_grpc, serve_http, serve_rest

import keras_transformer
from keras_transformer import InputError
from keras_transformer.client import Client, ServingError, Translation, transport
from keras_transformer.client.transport import RequestError

PROTOCOLS = ("grpc", "rest")
SIGNATURES = {
    "serving_default": {"text": "DT_STRING"},
    "translate_options": {
        "text": "DT_STRING",
        "length_penalty": "DT_FLOAT",
        "max_length": "DT_INT32",
        "seed": "DT_INT64",
        "prefix": "DT_STRING",
        "banned_phrases": "DT_STRING",
    },
    "score": {"source": "DT_STRING", "target": "DT_STRING"},
}


def predict(signature, inputs):
    """Translates to upper case, with the number of characters as the score."""
    if signature == "score":
        lengths = [len(target.split()) + 1 for target in inputs["target"]]
        padded = [[-0.5] * length + [0.0] * (max(lengths) - length) for length in lengths]
        return {"scores": [sum(row) for row in padded], "token_scores": padded, "lengths": lengths}
    texts = inputs["text"]
    return {
        "translations": [[text.upper(), text.title()] for text in texts],
        "scores": [[-float(len(text)), -2.0 * len(text)] for text in texts],
    }


@pytest.fixture
def model():
    return Model(SIGNATURES, predict)


@pytest.fixture(params=PROTOCOLS)
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
    monkeypatch.setattr(transport, "FIRST_PAUSE_S", 0.01)  # gRPC 1.85 may hang at 0.001


def refusal(call, *arguments, kind=ServingError, **options):
    """Gives the error of a call, which must be one line."""
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def test_translations_come_back_with_their_scores(serve):
    assert serve().translate(["two trees", "木 ☃ \"' \\ \t"]) == [
        [Translation("TWO TREES", -9.0), Translation("Two Trees", -18.0)],
        [Translation("木 ☃ \"' \\ \t", -10.0), Translation("木 ☃ \"' \\ \t", -20.0)],
    ]


def test_no_sentences_ask_nothing(serve, model):
    assert serve().translate([]) == []
    assert serve().score([], []) == []
    assert model.requests == []


def test_large_inputs_go_in_batches_of_like_length_and_come_back_in_order(serve, model):
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


def test_several_requests_are_under_way_at_once_and_no_more_than_asked_for(serve, model):
    model.delay_s = 0.1
    serve(batch_size=1, requests_in_flight=3).translate(list("abcdefghi"))
    assert model.most_at_once == 3


def test_one_client_serves_several_threads(serve):
    client = serve(batch_size=2)
    answers = {}

    def translate(number):
        answers[number] = client.translate([f"a{number}", f"b{number}", f"c{number}"])

    threads = [threading.Thread(target=translate, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(6):
        assert [each[0].text for each in answers[number]] == [f"{x}{number}" for x in "ABC"]


def test_options_reach_the_sentences_they_were_given_for(serve, model):
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
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_translated(
    serve, model, options, message
):
    with pytest.raises(InputError, match=message):
        serve().translate(["a", "b"], **options)
    assert model.requests == []


def test_a_model_without_options_says_so(serve, model):
    del model.signatures["translate_options"]
    with pytest.raises(InputError, match=r"has no option prefix .* it has none"):
        serve().translate(["a"], prefix="b")


def test_scores_of_given_translations_have_no_padding(serve):
    scores = serve(batch_size=2).score(["a", "bb", "c"], ["one two", "one", "one two three"])
    assert [len(score.token_scores) for score in scores] == [3, 2, 4]
    assert [score.score for score in scores] == [-1.5, -1.0, -2.0]
    error = refusal(serve().score, ["a"], [], kind=InputError)
    assert "source and target must have as many sentences, got 1 and 0" in str(error)


@pytest.mark.parametrize("sentences", ["one", [b"one"], ["\udfff"]], ids=repr)
def test_what_is_no_list_of_text_is_refused(serve, model, sentences):
    refusal(serve().translate, sentences, kind=InputError)
    assert model.requests == []


def test_versions_and_labels_are_asked_for(serve, model):
    model.versions[2] = lambda *_: {"translations": [["two"]], "scores": [[0.0]]}
    model.states[2] = ("AVAILABLE", "")
    model.labels["canary"] = 2
    assert serve().translate(["a"])[0][0].text == "two"
    assert serve(version=1).translate(["a"])[0][0].text == "A"
    assert serve(label="canary").translate(["a"])[0][0].text == "two"
    assert [request.version for request in model.requests] == [2, 1, 2]


def test_names_that_urls_cannot_hold_are_escaped(serve, model):
    model.name = "größe 1/2"
    assert serve(model="größe 1/2").translate(["a"])[0][0].text == "A"


def test_the_status_lists_versions_and_what_is_wrong_with_them(serve, model):
    model.states[2] = ("END", "no such file")
    assert serve().status() == [(1, "AVAILABLE", ""), (2, "END", "no such file")]


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_what_may_pass_is_tried_again(serve, model, no_pause, code):
    model.faults = [FaultError(code, "busy")] * 3
    assert serve(retries=3).translate(["a"])[0][0].text == "A"
    assert len(model.requests) == 4


def test_retries_have_an_end_that_is_told_with_their_number(serve, model, no_pause):
    model.faults = [FaultError("RESOURCE_EXHAUSTED", "the queue is full")] * 9
    error = refusal(serve(retries=2).translate, ["a"])
    assert len(model.requests) == 3
    assert error.code == "RESOURCE_EXHAUSTED"
    tried = {"grpc": "tried for 0.", "rest": "tried 3 times in 0."}[serve.protocol]
    assert f"too much to do: the queue is full; {tried}" in str(error)
    model.requests.clear()
    error = refusal(serve(retries=0).translate, ["a"])
    assert ("tried once" in str(error)) == (serve.protocol == "rest")
    assert len(model.requests) == 1


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "INTERNAL", "FAILED_PRECONDITION"])
def test_what_will_not_pass_is_not_tried_again(serve, model, no_pause, code):
    model.faults = [FaultError(code, 'it\'s "wrong": ' + "x" * 1000)] * 9
    error = refusal(serve().translate, ["a"])
    assert len(model.requests) == 1
    assert f"the {serve.protocol} server at {serve.address} refuses: it" in str(error)
    assert '"wrong"' in str(error)
    assert len(str(error)) < 500


def test_a_large_request_is_retried_too(serve, model, no_pause):
    model.faults = [FaultError("UNAVAILABLE", "busy")] * 2
    text = "x" * 1_000_000  # gRPC's own limit is 256 KiB
    assert serve(retries=2).translate([text])[0][0].text == text.upper()


def test_more_retries_than_grpc_has_are_refused():
    error = refusal(Client, "localhost:8500", retries=5, kind=InputError)
    assert "over gRPC retries must be at most 4" in str(error) and "got 5" in str(error)
    Client("localhost:8501", protocol="rest", retries=5).close()


def test_pauses_over_rest_double_up_to_a_bound_and_differ():
    with Client("localhost:8501", protocol="rest", retries=5000) as client:
        policy = client._transport._retries
    pauses = []
    for _ in range(12):
        policy = policy.increment(error=RequestError("UNAVAILABLE", "busy"))
        pauses.append([policy.get_backoff_time() for _ in range(200)])
    assert set(pauses[0]) == {0.0}
    for retry, shortest in ((1, 0.4), (2, 0.8), (3, 1.6), (4, 3.2)):
        assert shortest <= min(pauses[retry]) < max(pauses[retry]) <= shortest + 0.2
        assert max(pauses[retry]) - min(pauses[retry]) > 0.1
    assert set(pauses[-1]) == {5.0}


def test_the_deadline_bounds_retries_and_their_pauses(serve, model):
    model.faults = [FaultError("UNAVAILABLE", "busy")] * 99
    start = time.monotonic()
    error = refusal(serve(timeout_s=0.5, retries=4).translate, ["a"])
    assert time.monotonic() - start < 1.0
    assert 2 <= len(model.requests) <= 5  # pauses of about 0.2 and 0.4 seconds
    # gRPC knows only that the time was over while it paused.
    assert error.code == {"grpc": "DEADLINE_EXCEEDED", "rest": "UNAVAILABLE"}[serve.protocol]


def test_a_slow_server_is_left_at_the_deadline(serve, model):
    model.delay_s = 1.0
    start = time.monotonic()
    error = refusal(serve(timeout_s=0.2).translate, ["a"])
    assert time.monotonic() - start < 0.8
    assert error.code == "DEADLINE_EXCEEDED"
    assert "no answer" in str(error) and "Raise the timeout" in str(error)
    assert len(model.requests) == 1


def test_an_answer_that_trickles_in_is_left_at_the_deadline():
    class Trickle(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.end_headers()
            for _ in range(40):
                self.wfile.write(b" ")
                time.sleep(0.05)

        def log_message(self, *arguments):
            pass

    with serve_http(Trickle) as address, Client(address, protocol="rest", timeout_s=0.3) as client:
        start = time.monotonic()
        assert refusal(client.translate, ["a"]).code == "DEADLINE_EXCEEDED"
        assert time.monotonic() - start < 0.8


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_is_down_is_told_with_its_address(free_ports, protocol):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with Client(address, protocol=protocol, retries=2, timeout_s=5) as client:
        for call in (client.status, lambda: client.translate(["a"], prefix="b")):
            error = refusal(call)
            assert error.code == "UNAVAILABLE"
            assert f"no answer from a {protocol} server at {address}" in str(error)
            tried = {"grpc": "tried for", "rest": "tried 3 times"}[protocol]
            assert tried in str(error) and "Is it running" in str(error)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_starts_late_is_waited_for(model, free_ports, protocol):
    (port,) = free_ports(1)
    with Client(f"127.0.0.1:{port}", protocol=protocol, retries=4) as client:
        answers = []
        thread = threading.Thread(target=lambda: answers.extend(client.translate(["a"])))
        thread.start()
        time.sleep(0.3)
        with SERVE[protocol](model, port):
            thread.join(timeout=10)
            assert answers[0][0].text == "A"


def test_a_host_that_is_unknown_is_told():
    with Client("no-such-host.invalid:1", protocol="rest", retries=0) as client:
        assert "no-such-host.invalid:1" in str(refusal(client.status))


def test_a_model_that_is_absent_is_told(serve):
    for call in (serve(model="other").status, lambda: serve(model="other").translate(["a"])):
        error = refusal(call)
        assert error.code == "NOT_FOUND"
        assert f"server at {serve.address} has no model 'other'; give the name" in str(error)


def test_a_version_that_is_absent_is_told_with_those_there_are(serve, model):
    model.states[2] = ("END", "out of memory")
    error = refusal(serve(version=7).translate, ["a"])
    assert "does not serve version 7 of model 'translator'" in str(error)
    assert "version 1 is AVAILABLE; version 2 is END (out of memory)" in str(error)


def test_a_model_that_is_loading_is_told(serve, model):
    model.states = {1: ("LOADING", "")}
    error = refusal(serve().translate, ["a"])
    assert "does not serve model 'translator': version 1 is LOADING" in str(error)


def test_a_label_that_is_absent_is_told(serve):
    assert "version label: canary" in str(refusal(serve(label="canary").translate, ["a"]))


def test_a_signature_that_is_absent_is_told_with_those_there_are(serve, model):
    del model.signatures["score"]
    error = refusal(serve().score, ["a"], ["b"])
    assert "model 'translator' at" in str(error)
    assert "has no signature score; it has serving_default, translate_options" in str(error)


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
def test_an_answer_that_is_not_a_translators_is_told(serve, model, outputs):
    if serve.protocol == "grpc" and not _is_sendable(outputs):
        pytest.skip("gRPC's tensors cannot hold it")
    model.versions[1] = lambda *_: outputs
    error = refusal(serve().translate, ["a"])
    assert "of model 'translator'" in str(error) and "is not that of a translator" in str(error)
    assert error.code == "DATA_LOSS"


def _is_sendable(outputs):
    text = repr(outputs)
    return "ud800" not in text and "0" * 400 not in text


def raw_server(answer):
    """Serves REST with `answer(handler)` in place of every answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer(self)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments):
            pass

    return serve_http(Handler)


def test_a_proxy_whose_server_restarts_is_asked_again():
    asked = []

    def answer(handler):
        asked.append(handler.path)
        body = b"<html>Bad Gateway</html>"
        if len(asked) > 1:
            body = b'{"outputs": {"translations": [["A"]], "scores": [[0.0]]}}'
        handler.send_response(200 if len(asked) > 1 else 502)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with raw_server(answer) as address, Client(address, protocol="rest") as client:
        assert client.translate(["a"]) == [[Translation("A", 0.0)]]
        asked.clear()
        with Client(address, protocol="rest", retries=0) as impatient:
            error = refusal(impatient.translate, ["a"])
    assert error.code == "UNAVAILABLE" and "HTTP status 502" in str(error)


def test_headers_that_drip_end_with_the_timeout():
    def answer(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        for _ in range(100):
            try:
                handler.wfile.write(b"x")
            except OSError:
                return
            time.sleep(0.1)

    options = dict(protocol="rest", timeout_s=0.6, retries=0)
    with raw_server(answer) as address, Client(address, **options) as client:
        start = time.monotonic()
        error = refusal(client.translate, ["a"])
        assert time.monotonic() - start < 5.0  # of 10 that the headers take
    assert error.code == "DEADLINE_EXCEEDED"


def test_json_without_end_is_no_answer():
    def answer(handler):
        body = b'{"outputs": ' + b"[" * 200_000
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with raw_server(answer) as address, Client(address, protocol="rest") as client:
        assert refusal(client.translate, ["a"]).code == "UNIMPLEMENTED"


@pytest.mark.parametrize(
    "wrong",
    [
        {"attention": [[[]]]},  # smaller than its pieces
        {"source_pieces": [["a", 3]]},
        {"target_pieces": [[None, "</s>"]]},
    ],
    ids=repr,
)
def test_an_attention_that_is_none_is_told(serve, model, wrong):
    outputs = {
        "attention": [[[0.5, 0.5]] * 2],
        "source_pieces": [["a", "</s>"]],
        "target_pieces": [["b", "</s>"]],
    }
    model.versions[1] = lambda *_: outputs
    model.signatures["attention"] = {"source": "DT_STRING", "target": "DT_STRING"}
    assert serve().align(["a"], ["b"]) == [[(0, 0)]]
    if serve.protocol == "grpc" and "attention" not in wrong:
        pytest.skip("gRPC's tensors have one type")
    outputs.update(wrong)
    assert refusal(serve().align, ["a"], ["b"]).code == "DATA_LOSS"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(length_penalty=-0.5), "length_penalty must be at least 0, got -0.5"),
        (dict(max_length=[None, -2]), "max_length must be at least 0, got -2"),
        (dict(seed=1 << 40), "seed must fit into 32 bits, got 1099511627776"),
        (dict(banned_phrases="a\n" * 257), "banned_phrases takes at most 256 phrases, got 257"),
    ],
)
def test_a_value_that_no_model_accepts_is_refused(serve, model, options, message):
    error = refusal(serve().translate, ["a", "b"], **options, kind=InputError)
    assert message in str(error)
    assert not [request for request in model.requests if hasattr(request, "inputs")]
    serve().translate(["a", "b"], length_penalty=[-1, None], max_length=-1)  # as exported


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b"<html>hello</html>"), (200, b"[1]"), (404, b"<html>nothing here</html>"),
     (405, b""), (200, b'{"status": "ok"}')],
)  # fmt: skip
def test_another_server_of_http_is_recognized(status, body):
    class Website(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments):
            pass

    with serve_http(Website) as address, Client(address, protocol="rest") as client:
        error = refusal(client.status)
        assert f"the rest server at {address} is no TensorFlow model server" in str(error)
        refusal(client.translate, ["a"])


def test_the_port_of_the_other_protocol_is_recognized(model):
    with serve_grpc(model) as address, Client(address, protocol="rest", retries=1) as client:
        error = refusal(client.status)
        assert "the protocol that it speaks" in str(error) or "the port of that" in str(error)
    with serve_rest(model) as address, Client(address, protocol="grpc", retries=1) as client:
        error = refusal(client.status)
        assert "the protocol that it speaks" in str(error) or "the port of that" in str(error)


def test_a_server_that_hangs_up_amid_its_answer_is_asked_again():
    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"",
        b'HTTP/1.1 200 OK\r\n\r\n{"outputs": {"translations": [["b"]], "scores": [[0]]}}',
    ]

    def serve(listening):
        for answer in answers:
            connection, _ = listening.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        with Client(f"127.0.0.1:{listening.getsockname()[1]}", protocol="rest") as client:
            assert client.translate(["a"]) == [[Translation("b", 0.0)]]


def in_thread(call, *arguments):
    """Starts a call; gives its thread, and the list that gets its error or result."""
    outcomes = []

    def run():
        try:
            outcomes.append(call(*arguments))
        except Exception as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcomes


def check_closed(thread, outcomes):
    thread.join(timeout=2.0)
    (error,) = outcomes
    assert type(error) is InputError
    assert str(error) == "the client is closed; make another one"


def test_closing_ends_requests_under_way(serve, model):
    model.delay_s = 3.0
    client = serve(timeout_s=30)
    running = in_thread(client.translate, ["a"])
    while not model.requests:
        time.sleep(0.01)
    client.close()
    check_closed(*running)
    refusal(client.translate, ["a"], kind=InputError)
    refusal(client.status, kind=InputError)
    client.close()


def test_closing_ends_pauses_between_retries(serve, model):
    model.faults = [FaultError("UNAVAILABLE", "busy")] * 99
    client = serve(retries=4)
    running = in_thread(client.translate, ["a"])
    while len(model.requests) < 3:
        time.sleep(0.01)
    start = time.monotonic()
    client.close()
    check_closed(*running)
    assert time.monotonic() - start < 0.5  # the next pause is 0.8 seconds
    assert len(model.requests) == 3


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_closing_ends_a_request_whose_answer_does_not_come_or_stops(head):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        client = Client(address, protocol="rest")
        running = in_thread(client.status)
        connection, _ = listening.accept()
        with connection:
            connection.recv(10_000)
            connection.sendall(head)
            time.sleep(0.1)
            client.close()
            check_closed(*running)


def test_closing_at_any_moment_is_survived_and_leaves_nothing(serve, model):
    """Threads and files are as many as before; what the calls got is an answer or one error."""

    def use():
        client = serve(batch_size=1, requests_in_flight=3)
        running = [in_thread(client.translate, list("abcdef")) for _ in range(3)]
        running.append(in_thread(client.status))
        time.sleep(generator.uniform(0.0, 0.05))
        client.close()
        for thread, outcomes in running:
            thread.join(timeout=2.0)
            (outcome,) = outcomes
            closed = type(outcome) is InputError and "client is closed" in str(outcome)
            assert closed or len(outcome) in (1, 6), outcome

    def left():
        threads = [each.name for each in threading.enumerate() if each.name.startswith("requests")]
        return threads, len(os.listdir("/dev/fd"))

    generator = random.Random(1)
    model.delay_s = 0.005
    use()  # gRPC keeps some files for all channels
    time.sleep(0.2)
    before = left()
    assert before[0] == []
    for _ in range(20):
        use()
        assert left()[0] == []
    end = time.monotonic() + 5
    while left()[1] > before[1] and time.monotonic() < end:  # the server closes its side
        time.sleep(0.05)
    assert left()[1] <= before[1]


def test_connections_over_rest_are_reused(model):
    with SERVE["rest"](model) as address, Client(address, protocol="rest") as client:
        for _ in range(5):
            client.translate(["a"])
        assert client._transport._pool.num_connections == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(address="localhost"), "must be host:port, such as localhost:8500, got 'localhost'"),
        (dict(address="http://localhost:8501"), "must be host:port"),
        (dict(address="localhost:99999"), "must be host:port"),
        (dict(address=":8500"), "must be host:port"),
        (dict(address="a b:8500", protocol="rest"), "must be host:port"),
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
        (dict(version=1, label="a"), "give version 1 or label 'a', not both"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Client(**({"address": "localhost:8500"} | arguments))


def test_ipv6_addresses_are_understood(model):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6 on this machine")
    for address in ("[::1]:9", "::1:9"):
        with Client(address, protocol="rest", retries=0) as client:
            assert f"server at {address}: Connection refused" in str(refusal(client.status))


def test_rest_needs_no_tensorflow_and_grpc_says_what_it_needs():
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
    assert second.startswith("protocol grpc needs the package tensorflow-serving-api")
