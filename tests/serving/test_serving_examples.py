"""The files of examples/serving: ports, paths and flags are those that the package writes."""

import json
import pathlib
import re
import shlex
import subprocess

import pytest
import yaml

from keras_transformer.serving.model_folder import write_server_files

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "examples" / "serving"
_GUIDE = (_ROOT / "docs" / "guides" / "serving.md").read_text()
_NAME = "en-de"
_IMAGE = "tensorflow/serving:2.20.0"
_METRICS = "/monitoring/prometheus/metrics"
_THREADS = 2  # of batching_parameters.txt


def read(name, kind=None):
    """Returns the only document of a file, or its only one of a kind."""
    documents = yaml.safe_load_all((_FOLDER / name).read_text())
    (document,) = [each for each in documents if kind in (None, each.get("kind"))]
    return document


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The environment and the flags of serve.sh; an image has no files that change."""
    folder = tmp_path_factory.mktemp("model")
    write_server_files(folder, _NAME, largest_batch=8)
    script = ["bash", folder / "serve.sh", "--print"]
    words = shlex.split(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    place = words.index(_IMAGE)
    environment = [word.removeprefix("--env=") for word in words[:place] if "--env=" in word]
    return environment, [flag for flag in words[place + 1 :] if "poll_wait" not in flag]


def test_image_has_the_environment_flags_and_settings_of_the_script(command):
    text = (_FOLDER / "Dockerfile").read_text()
    flags = re.search(r"^CMD (\[.*\])", text, re.M | re.S)[1].replace("\\\n", "")
    environment = re.findall(r"^ENV (.*)$", text, re.M)
    onednn = re.search(r"^ARG ONEDNN=(.*)$", text, re.M)[1]
    found = [each.replace("${ONEDNN}", onednn) for each in environment], json.loads(flags)
    assert found == command
    assert f"ARG IMAGE={_IMAGE}" in text
    copied = re.findall(rf"exports/{_NAME}/(\S+)", text.partition("ARG VERSION=1\n")[2])
    settings = {"models.config", "batching_parameters.txt", "monitoring.config"}
    assert settings | {"${VERSION}"} == set(copied[:4])


def test_prometheus_reads_what_compose_serves_and_the_guide_names():
    services = read("compose.yaml")["services"]
    assert (_FOLDER / services["translator"]["build"]["context"]).resolve() == _ROOT
    assert services["translator"]["cpus"] == _THREADS
    (scrape,) = read("prometheus.yml")["scrape_configs"]
    name, port = scrape["static_configs"][0]["targets"][0].split(":")
    assert scrape["metrics_path"] == _METRICS and f"{port}:{port}" in services[name]["ports"]
    (group,) = read("alerts.yml")["groups"]
    metrics = re.findall(r":tensorflow:serving:[\w:]+", str(group["rules"]))
    assert metrics and all(re.sub(r"_(sum|bucket)$", "", name) in _GUIDE for name in metrics)


def test_kubernetes_probes_the_model_and_outlives_its_requests(command):
    pod = read("kubernetes.yaml", "Deployment")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    *flags, connection_age = container["args"]
    assert flags == command[1]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"grpc": 8500, "rest": 8501}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": f"/v1/models/{_NAME}", "port": "rest"}
    # A pod that ends outlives its connections and the longest request.
    (seconds,) = container["lifecycle"]["preStop"]["exec"]["command"][1:]
    connection_s = int(connection_age.rpartition("=")[2]) / 1000
    (timeout_ms,) = re.findall(r"rest_api_timeout_in_ms=(\d+)", " ".join(flags))
    assert connection_s + int(timeout_ms) / 1000 <= int(seconds)
    assert int(seconds) < pod["spec"]["terminationGracePeriodSeconds"]


def test_a_canary_is_the_deployment_but_for_name_track_replicas_and_image():
    deployments = read("kubernetes.yaml", "Deployment"), read("canary.yaml")
    for deployment in deployments:
        del deployment["metadata"], deployment["spec"]["replicas"]
        pod = deployment["spec"]["template"]
        for labels in (deployment["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"]):
            del labels["track"]
        del pod["spec"]["containers"][0]["image"]
    stable, canary = deployments
    assert canary == stable
