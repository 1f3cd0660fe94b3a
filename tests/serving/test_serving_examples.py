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
    assert group["name"] == scrape["job_name"]
    for rule in group["rules"]:
        metrics = re.findall(r":tensorflow:serving:[\w:]+", rule["expr"])
        others = (f'up{{job="{group["name"]}"}} == 0', "container_memory_working_set_bytes{")
        assert metrics or rule["expr"].startswith(others)
        assert all(re.sub(r"_(sum|bucket)$", "", metric) in _GUIDE for metric in metrics)
        if rule["alert"] == "TranslatorErrors":  # not of requests for other models
            counts = re.findall(r"request_count(?:\{(.*?)\})?\[", rule["expr"])
            assert counts and all(f'model_name="{_NAME}"' in labels for labels in counts)
    (relabel,) = scrape["metric_relabel_configs"]
    names = [_NAME, "", "invented", f"{_NAME}2"]  # empty: a metric without the label
    assert [bool(re.fullmatch(relabel["regex"], name)) for name in names] == [1, 1, 0, 0]


def test_kubernetes_probes_the_model_and_scales_its_deployment(command):
    deployment, service, scaler = (
        read("kubernetes.yaml", kind)
        for kind in ("Deployment", "Service", "HorizontalPodAutoscaler")
    )
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    *flags, connection_age = container["args"]
    assert flags == command[1]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"grpc": 8500, "rest": 8501}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": f"/v1/models/{_NAME}", "port": "rest"}
    assert pod["metadata"]["annotations"]["prometheus.io/path"] == _METRICS
    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"].items() <= labels.items()
    assert {each["targetPort"]: each["port"] for each in service["spec"]["ports"]} == ports
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    # A pod that ends outlives its connections and the longest request.
    (seconds,) = container["lifecycle"]["preStop"]["exec"]["command"][1:]
    connection_s = int(connection_age.rpartition("=")[2]) / 1000
    (timeout_ms,) = re.findall(r"rest_api_timeout_in_ms=(\d+)", " ".join(flags))
    assert connection_s + int(timeout_ms) / 1000 <= int(seconds)
    assert int(seconds) < pod["spec"]["terminationGracePeriodSeconds"]
