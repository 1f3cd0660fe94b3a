"""An exported model in tensorflow_model_server, driven through the client.

The server is searched on the PATH and in the environment variable TENSORFLOW_MODEL_SERVER; without
one its tests are skipped. The same tests run everywhere with stand_in_server.py, which shows that
the client works with an export, and proves nothing about the server.
"""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
import tensorflow as tf

from keras_transformer.client import Client, ServingError
from keras_transformer.sentences import text_input
from keras_transformer.serving.model_folder import write_server_files

pytestmark = pytest.mark.slow

STAND_IN = pathlib.Path(__file__).with_name("stand_in_server.py")
START_S = 180
SENTENCES = ["hello tree", "", "sun", "cat cat two house", "unknown words", "two"] * 5


@pytest.fixture(scope="module", params=["tensorflow_model_server", "stand-in"])
def program(request):
    if request.param == "stand-in":
        return [sys.executable, str(STAND_IN)]
    name = os.environ.get("TENSORFLOW_MODEL_SERVER", request.param)
    found = shutil.which(name)
    if found is None:
        pytest.skip(
            "needs tensorflow_model_server on the PATH or named by TENSORFLOW_MODEL_SERVER, "
            "which is not here; only its stand-in is tested"
        )
    return [found]


@pytest.fixture(scope="module")
def server(program, exported, free_ports, tmp_path_factory):
    """A server of the exported model, started as its serve.sh does; gives ports and folder."""
    folder = tmp_path_factory.mktemp("server") / "mine"
    shutil.copytree(exported, folder / "1")
    write_server_files(folder, "translator", largest_batch=8)
    models = folder / "models.config"
    models.write_text(models.read_text().replace("/models/translator", str(folder)))
    ports = dict(zip(("grpc", "rest"), free_ports(2), strict=True))
    script = subprocess.run(
        ["bash", folder / "serve.sh", "--print"], capture_output=True, text=True, check=True
    )
    docker = shlex.split(script.stdout)
    image = docker.index("tensorflow/serving:2.20.0")
    variables = [each.removeprefix("--env=") for each in docker[:image] if "--env=" in each]
    environment = dict(each.split("=", 1) for each in variables)
    command = [
        *program,
        f"--port={ports['grpc']}",  # these two are the image's
        f"--rest_api_port={ports['rest']}",
        *(flag.replace("/models/translator", str(folder)) for flag in docker[image + 1 :]),
        "--file_system_poll_wait_seconds=1",
    ]
    log = folder.parent / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_for(lambda: states(ports).get("1") == "AVAILABLE", process, log)
        yield ports, folder
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(params=["grpc", "rest"])
def connect(request, server):
    address = f"127.0.0.1:{server[0][request.param]}"
    clients = []

    def connect(**options):
        clients.append(Client(address, **({"protocol": request.param} | options)))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def states(ports):
    """Gives the state of each version; none where the model or the server is not there yet."""
    address = f"http://127.0.0.1:{ports['rest']}/v1/models/translator"
    try:
        with urllib.request.urlopen(address) as answer:
            entries = json.load(answer)["model_version_status"]
    except OSError:
        return {}
    return {entry["version"]: entry["state"] for entry in entries}


def wait_for(condition, process=None, log=None):
    end = time.monotonic() + START_S
    while not condition():
        if process is not None and process.poll() is not None:
            pytest.fail(f"the server ended with status {process.returncode}: {log.read_text()}")
        assert time.monotonic() < end
        time.sleep(0.2)


def same(ours, theirs):
    """Compares translations, and their scores as far as floats of batches of any size agree."""
    lists = [[[best, *best.alternatives] for best in results] for results in (ours, theirs)]
    texts, expected = ([list(map(str, row)) for row in rows] for rows in lists)
    assert texts == expected
    found, scores = ([each.score for row in rows for each in row] for rows in lists)
    assert found == pytest.approx(scores, abs=1e-4)


def test_server_answers_as_python(connect, two_best, words):
    expected = two_best.translate(SENTENCES)
    for batch_size in (1, 7, 64):
        same(connect(batch_size=batch_size).translate(SENTENCES), expected)
    client = connect(batch_size=7)
    count = len(SENTENCES)
    constraints = {
        "max_length": [1 + number % 3 for number in range(count)],
        "prefix": [words["sun"] if number % 2 else "" for number in range(count)],
        "banned_phrases": words["cat"],
        "length_penalty": 0.0,
    }
    constrained = two_best.translate(SENTENCES, **constraints)
    same(client.translate(SENTENCES, **constraints), constrained)
    target = [best.text for best in expected]
    assert client.align(SENTENCES, target) == two_best.align(SENTENCES, target)
    target = [(best, *best.alternatives)[-1].text for best in expected]
    answer = two_best.signatures()["score"](tf.constant(SENTENCES), tf.constant(target))
    scores = client.score(SENTENCES, target)
    sums = answer["scores"].numpy()
    assert [each.score for each in scores] == pytest.approx(sums, abs=1e-4)
    assert [sum(each.token_scores) for each in scores] == pytest.approx(sums, abs=1e-4)
    assert [len(each.token_scores) for each in scores] == answer["lengths"].numpy().tolist()


def test_requests_at_the_same_time_get_their_answers(connect, two_best):
    expected = two_best.translate(SENTENCES)
    client = connect(batch_size=1, requests_in_flight=16, timeout_s=120)
    same(client.translate(SENTENCES * 2), expected * 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(model="other"), "NOT_FOUND"),
        (dict(version=77), "NOT_FOUND"),
        (dict(label="canary"), "canary"),
    ],
)
def test_missing_model_version_label_and_signature_are_reported(connect, options, message):
    with pytest.raises(ServingError, match=message):
        connect(**options).translate(["sun"])
    with pytest.raises(ServingError, match=r'"tell.*not found'):
        connect()._run("tell", {"text": text_input("text", ["sun"])}, lambda *_: [], False)


@pytest.mark.parametrize("connect", ["grpc"], indirect=True)
def test_new_version_takes_over_without_failures(server, connect):
    client = connect(batch_size=2)
    folder = server[1]
    old = max(int(path.name) for path in folder.glob("[0-9]*"))
    expected = client.translate(SENTENCES)
    answers, is_over = [], threading.Event()

    def translate():
        while not is_over.is_set():
            try:
                answers.append(client.translate(SENTENCES))
            except ServingError as error:
                answers.append(error)

    thread = threading.Thread(target=translate)
    thread.start()
    try:
        shutil.copytree(folder / str(old), folder / "writing")
        (folder / "writing").rename(folder / str(old + 1))
        wait_for(lambda: states(server[0]).get(str(old + 1)) == "AVAILABLE")
        wait_for(lambda: states(server[0]).get(str(old), "END") == "END")
    finally:
        is_over.set()
        thread.join()
    assert [error for error in answers if isinstance(error, ServingError)] == []
    for rows in [*answers, client.translate(SENTENCES)]:
        same(rows, expected)
    with pytest.raises(ServingError, match="NOT_FOUND"):
        connect(version=old).translate(["sun"])


def test_broken_version_leaves_the_old_one(server, connect):
    client, folder = connect(), server[1]
    expected = client.translate(SENTENCES)
    broken = folder / str(1 + max(int(path.name) for path in folder.glob("[0-9]*")))
    (folder / "writing").mkdir()
    (folder / "writing" / "saved_model.pb").write_bytes(b"broken")
    (folder / "writing").rename(broken)
    try:
        wait_for(lambda: broken.name in states(server[0]))
        same(client.translate(SENTENCES), expected)
        assert states(server[0])[broken.name] != "AVAILABLE"
    finally:
        shutil.rmtree(broken)
