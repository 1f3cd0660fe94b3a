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
import time
import urllib.request

import pytest
import tensorflow as tf
from helpers import n_best

from keras_transformer.client import Client
from keras_transformer.serving.model_folder import write_server_files

pytestmark = pytest.mark.slow

_STAND_IN = pathlib.Path(__file__).with_name("stand_in_server.py")
_TIMEOUT_S = 180
_SENTENCES = ["hello tree", "", "sun", "cat cat two house", "unknown words", "two"] * 5


@pytest.fixture(scope="module", params=["tensorflow_model_server", "stand-in"])
def program(request):
    if request.param == "stand-in":
        return [sys.executable, str(_STAND_IN)]
    found = shutil.which(os.environ.get("TENSORFLOW_MODEL_SERVER", request.param))
    if found is None:
        pytest.skip("needs tensorflow_model_server; only its stand-in is tested")
    return [found]


@pytest.fixture(scope="module")
def server(program, exported, free_ports, tmp_path_factory):
    """A server of the exported model, started as its serve.sh does; gives ports and folder."""
    folder = tmp_path_factory.mktemp("server") / "mine"
    shutil.copytree(exported, folder / "1")
    write_server_files(folder, "translator", largest_batch=8)
    models = folder / "models.config"
    models.write_text(models.read_text().replace("/models/translator", str(folder)))
    script = ["bash", folder / "serve.sh", "--print"]
    docker = shlex.split(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    image = docker.index("tensorflow/serving:2.20.0")
    variables = [each.removeprefix("--env=") for each in docker[:image] if "--env=" in each]
    ports = dict(zip(("grpc", "rest"), free_ports(2), strict=True))
    command = [
        *program,
        f"--port={ports['grpc']}",  # these two are the image's
        f"--rest_api_port={ports['rest']}",
        *(flag.replace("/models/translator", str(folder)) for flag in docker[image + 1 :]),
        "--file_system_poll_wait_seconds=1",
    ]
    process = subprocess.Popen(
        command, env=os.environ | dict(each.split("=", 1) for each in variables)
    )
    try:
        _wait_for(lambda: _states(ports).get("1") == "AVAILABLE" or process.poll() is not None)
        assert process.poll() is None
        yield ports, folder
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["grpc", "rest"])
def connect(request, server):
    address = f"127.0.0.1:{server[0][request.param]}"
    return lambda **options: Client(address, **({"protocol": request.param} | options))


def _states(ports):
    """Gives the state of each version; none where the model or the server is not there yet."""
    address = f"http://127.0.0.1:{ports['rest']}/v1/models/translator"
    try:
        with urllib.request.urlopen(address) as answer:
            entries = json.load(answer)["model_version_status"]
    except OSError:
        return {}
    return {entry["version"]: entry["state"] for entry in entries}


def _wait_for(condition):
    end = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def _assert_same(ours, theirs):
    """Compares translations, and their scores as far as floats of batches of any size agree."""
    assert list(map(str, n_best(ours))) == list(map(str, n_best(theirs)))
    scores = [each.score for each in n_best(theirs)]
    assert [each.score for each in n_best(ours)] == pytest.approx(scores, abs=1e-4)


def test_server_answers_as_python(connect, two_best, words):
    expected = two_best.translate(_SENTENCES)
    for batch_size in (1, 7, 64):
        _assert_same(connect(batch_size=batch_size).translate(_SENTENCES), expected)
    client = connect(batch_size=7, requests_in_flight=16)
    count = len(_SENTENCES)
    options = {
        "max_length": [1 + number % 3 for number in range(count)],
        "prefix": [words["sun"] if number % 2 else "" for number in range(count)],
        "no_repeat_ngram": 1,
        "length_penalty": 0.0,
    }
    constrained = two_best.translate(_SENTENCES, **options)
    _assert_same(client.translate(_SENTENCES, **options), constrained)
    target = [best.text for best in expected]
    assert client.align(_SENTENCES, target) == two_best.align(_SENTENCES, target)
    answer = two_best.functions.signatures()["score"](tf.constant(_SENTENCES), tf.constant(target))
    scores, sums = client.score(_SENTENCES, target), answer["scores"].numpy()
    assert [each.score for each in scores] == pytest.approx(sums, abs=1e-4)
    assert [sum(each.token_scores) for each in scores] == pytest.approx(sums, abs=1e-4)
