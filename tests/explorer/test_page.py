"""The page is one small file that loads nothing else; who may send sentences to its server."""

import http.client
import json
import re
import threading

import pytest

from keras_transformer.explorer.page import ExplorerServer, make_page, page_content


def data_of(page):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*)</script>', page)[1]
    )


def test_page_loads_nothing(view):
    page = make_page(page_content([view]))
    code = re.sub(r'"data":"[^"]*"', "", page)  # base64 has slashes
    code = re.sub(r"^\s*//.*", "", code, flags=re.M)
    assert not re.findall(r"https?:|//[a-z]|@import|url\(", code)
    assert re.findall(r"(?:src|href)=(\S+)", page) == ['"data:,">']
    assert "default-src 'none'" in page
    assert "connect-src 'none'" in page
    assert "connect-src 'self'" in make_page(None, is_live=True)
    assert data_of(make_page(None)) is None


@pytest.mark.parametrize(
    "sentence", ["</script><script>alert(1)</script><!--", "{{script}} {{data}}"]
)
def test_marks_in_a_sentence_stay_text(view, sentence):
    page = make_page(page_content([view._replace(sentence=sentence)]))
    assert data_of(page)["sentences"] == [sentence]
    assert "</script><script>alert(1)" not in page
    assert "async function unpack" in page.rpartition("<script>")[2]


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


def test_posted_sentence_gets_its_view_or_an_error(ask, view):
    status, answer = ask("POST", body=json.dumps({"sentence": view.sentence}), **JSON)
    assert status == 200
    (found,) = json.loads(answer)["views"]
    assert found["translation"] == view.translation
    assert len(found["tree"]["nodes"]) == len(view.tree.nodes)
    answer = ask("POST", body='{"sentence": " "}', **JSON)
    assert answer == (200, '{"error": "the sentence is empty; give one with words"}')


def test_page_is_served_to_itself_only(server, ask):
    assert server.server_address[0] == "127.0.0.1"
    status, page = ask("GET")
    assert status == 200 and "connect-src 'self'" in page
    assert ask("GET", "/other")[0] == 404
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
