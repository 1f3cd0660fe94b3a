"""The files of examples/serving: ports, paths and flags are those that the package writes."""

import json
import pathlib
import re

import pytest
import yaml

from keras_transformer.serving.model_folder import read_batching, write_server_files

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "examples" / "serving"
_NAME = "mine"
_STATUS = f"/v1/models/{_NAME}"


def read(name, kind=None):
    """Returns the only document of a file, or its only one of a kind."""
    documents = yaml.safe_load_all((_FOLDER / name).read_text())
    (found,) = [each for each in documents if kind in (None, each.get("kind"))]
    return found


@pytest.fixture(scope="module")
def server_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_server_files(folder, _NAME, largest_batch=8)
    return folder


@pytest.fixture(scope="module")
def metrics_path(server_files):
    return re.search(r'path: "(.*)"', (server_files / "monitoring.config").read_text())[1]


def test_image_has_the_documented_flags_and_files(server_files):
    text = (_FOLDER / "Dockerfile").read_text()
    flags = json.loads(re.search(r"^CMD (\[.*\])", text, re.M | re.S)[1].replace("\\\n", ""))
    (line,) = re.findall(
        r"^docker run .*$", (_ROOT / "docs" / "tutorials" / "serve.md").read_text(), re.M
    )
    image, *documented = line[line.index("tensorflow/serving:") :].split()
    assert set(flags) <= set(documented)
    only_for_folders_that_change = {"--model_config_file_poll_wait_seconds=60"}
    assert set(documented) - set(flags) == only_for_folders_that_change
    for path in re.findall(rf"=/models/{_NAME}/(\S+?)\"", text):
        assert (server_files / path).is_file()
    assert f'base_path: "/models/{_NAME}"' in (server_files / "models.config").read_text()
    assert f"COPY exports/{_NAME} /models/{_NAME}" in text
    assert f"ARG IMAGE={image}" in text
    for name, value in re.findall(r" -e (\w+)=(\S+)", line):
        values = {"${ONEDNN}": re.search(r"^ARG ONEDNN=(.*)$", text, re.M)[1]}
        (found,) = re.findall(rf"^ENV {name}=(.*)$", text, re.M)
        assert values.get(found, found) == value


def test_compose_serves_what_prometheus_reads(server_files, metrics_path):
    services = read("compose.yaml")["services"]
    assert (_FOLDER / services["translator"]["build"]["context"]).resolve() == _ROOT
    assert services["translator"]["cpus"] == read_batching(server_files)["num_batch_threads"]
    (scrape,) = read("prometheus.yml")["scrape_configs"]
    assert scrape["metrics_path"] == metrics_path
    name, port = scrape["static_configs"][0]["targets"][0].split(":")
    assert f"{port}:{port}" in services[name]["ports"]


def test_alerts_use_metrics_that_the_guide_names():
    (group,) = read("alerts.yml")["groups"]
    guide = (_ROOT / "docs" / "guides" / "serving.md").read_text()
    for rule in group["rules"]:
        metrics = re.findall(r":tensorflow:serving:[\w:]+", rule["expr"])
        assert metrics or rule["expr"] == f'up{{job="{group["name"]}"}} == 0'
        assert all(re.sub(r"_(sum|bucket)$", "", metric) in guide for metric in metrics)
    assert read("prometheus.yml")["scrape_configs"][0]["job_name"] == group["name"]


def test_kubernetes_probes_the_model_and_scales_its_deployment(metrics_path):
    deployment, service, scaler = (
        read("kubernetes.yaml", kind)
        for kind in ("Deployment", "Service", "HorizontalPodAutoscaler")
    )
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"grpc": 8500, "rest": 8501}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": _STATUS, "port": "rest"}
    assert pod["metadata"]["annotations"]["prometheus.io/path"] == metrics_path
    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert {each["targetPort"]: each["port"] for each in service["spec"]["ports"]} == ports
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
