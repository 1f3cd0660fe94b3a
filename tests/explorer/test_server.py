"""The live page: who may send sentences, and the answers."""

import http.client
import json
import threading

import pytest

from keras_transformer.explorer.server import ExplorerServer

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(inspect):
    with ExplorerServer([inspect], port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(server):
    def ask(method, path="/", body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()

    return ask


def test_page_is_served_on_loopback_only(server, ask):
    assert server.server_address[0] == "127.0.0.1"
    status, page = ask("GET")
    assert status == 200
    assert "connect-src 'self'" in page
    assert ask("GET", "/other")[0] == 404


def test_posted_sentence_gets_its_view(ask, view):
    status, answer = ask("POST", body=json.dumps({"sentence": view.sentence}), **JSON)
    assert status == 200
    (found,) = json.loads(answer)["views"]
    assert found["translation"] == view.translation
    assert len(found["tree"]["nodes"]) == len(view.tree.nodes)


def test_requests_of_other_sites_are_rejected(server, ask):
    body = json.dumps({"sentence": "hello"})
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", ""):
        assert ask("GET", Host=host)[0] == 403
        assert ask("POST", body=body, Host=host, **JSON)[0] == 403
    assert ask("GET", Host=f"localhost:{port}")[0] == 200
    assert ask("GET", Host="127.0.0.1:9000")[0] == 200  # through a tunnel
    # A form of another site can send text, and not JSON.
    assert ask("POST", body=body, **{"Content-Type": "text/plain"})[0] == 400


@pytest.mark.parametrize("body", ["", "{", "[]", '{"sentence": 3}', "{}", "x" * 70_000])
def test_malformed_requests_are_rejected(ask, body):
    assert ask("POST", body=body, **JSON)[0] == 400


def test_empty_sentence_gets_an_error_message(ask):
    status, answer = ask("POST", body='{"sentence": " "}', **JSON)
    assert status == 200
    assert json.loads(answer) == {"error": "the sentence is empty; give one with words"}
