"""The files of examples/serving: ports, paths and flags are those that the package writes."""

import copy
import json
import pathlib
import re

import pytest
import yaml

from keras_transformer.config import ModelConfig, SearchConfig
from keras_transformer.serving.model_folder import (
    IMAGE,
    SERVER_ENVIRONMENT,
    SERVER_FLAGS,
    read_batching,
    write_server_files,
)

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "examples" / "serving"
_GUIDE = (_ROOT / "docs" / "guides" / "serving.md").read_text()
_NAME = "en-de"
# An image has no files that change. The rest of the flags are those of serve.sh.
_FLAGS = [flag.format(name=_NAME) for flag in SERVER_FLAGS if "poll_wait" not in flag]


def read(name, kind=None):
    """Returns the only document of a file, or its only one of a kind."""
    documents = yaml.safe_load_all((_FOLDER / name).read_text())
    (document,) = [each for each in documents if kind in (None, each.get("kind"))]
    return document


@pytest.fixture(scope="module")
def server_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_server_files(folder, _NAME, largest_batch=8)
    return folder


@pytest.fixture(scope="module")
def metrics_path(server_files):
    return re.search(r'path: "(.*)"', (server_files / "monitoring.config").read_text())[1]


def test_image_has_the_environment_flags_and_settings_of_the_script(server_files):
    text = (_FOLDER / "Dockerfile").read_text()
    command = re.search(r"^CMD (\[.*\])", text, re.M | re.S)[1].replace("\\\n", "")
    assert json.loads(command) == _FLAGS
    assert f"ARG IMAGE={IMAGE}" in text
    copied = re.findall(rf"exports/{_NAME}/(\S+)", text.partition("ARG VERSION=1\n")[2])
    files = {path.name for path in server_files.iterdir()} - {"serve.sh"}
    assert files | {"${VERSION}"} == set(copied[: len(files) + 1])
    assert f"COPY exports/{_NAME}/${{VERSION}} /models/{_NAME}/${{VERSION}}" in text
    ignored = (_FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[-2:] == ["*", f"!exports/{_NAME}"]
    onednn = re.search(r"^ARG ONEDNN=(.*)$", text, re.M)[1]
    environment = re.findall(r"^ENV (.*)$", text, re.M)
    assert [each.replace("${ONEDNN}", onednn) for each in environment] == list(SERVER_ENVIRONMENT)


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
    for rule in group["rules"]:
        metrics = re.findall(r":tensorflow:serving:[\w:]+", rule["expr"])
        others = (f'up{{job="{group["name"]}"}} == 0', "container_memory_working_set_bytes{")
        assert metrics or rule["expr"].startswith(others)
        assert all(re.sub(r"_(sum|bucket)$", "", metric) in _GUIDE for metric in metrics)
    assert read("prometheus.yml")["scrape_configs"][0]["job_name"] == group["name"]


def test_requests_for_other_models_raise_no_alert():
    (group,) = read("alerts.yml")["groups"]
    (rule,) = [rule for rule in group["rules"] if rule["alert"] == "TranslatorErrors"]
    counts = re.findall(r"request_count(?:\{(.*?)\})?\[", rule["expr"])
    assert counts and all(f'model_name="{_NAME}"' in labels for labels in counts)
    (scrape,) = read("prometheus.yml")["scrape_configs"]
    (relabel,) = scrape["metric_relabel_configs"]
    assert (relabel["source_labels"], relabel["action"]) == (["model_name"], "keep")
    names = [_NAME, "", "invented", f"{_NAME}2"]  # empty: a metric without the label
    assert [bool(re.fullmatch(relabel["regex"], name)) for name in names] == [1, 1, 0, 0]


def test_kubernetes_probes_the_model_and_scales_its_deployment(metrics_path):
    deployment, service, scaler = (
        read("kubernetes.yaml", kind)
        for kind in ("Deployment", "Service", "HorizontalPodAutoscaler")
    )
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    *flags, connection_age = container["args"]
    assert flags == _FLAGS
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"grpc": 8500, "rest": 8501}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": f"/v1/models/{_NAME}", "port": "rest"}
    assert pod["metadata"]["annotations"]["prometheus.io/path"] == metrics_path
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


def test_guide_shows_the_settings_of_two_versions_as_the_file_does(server_files):
    text = (server_files / "models.config").read_text()
    settings = re.findall(r"^ *# (\w+ \{ .*\})$", text, re.M)
    assert len(settings) == 3 and all(f"\n   {line}\n" in _GUIDE for line in settings)


def test_memory_of_the_guide_is_that_of_the_formula_and_the_manifests(server_files):
    table = re.search(r"\| Preset \| One batch (.*?)\n\n", _GUIDE, re.S)[1]
    search, batching = SearchConfig(), read_batching(server_files)
    longest = search.max_source_length + search.max_extra_length
    shortened = sum(map(int, re.findall(r"_length=(\d+)", table)))
    rows = batching["max_batch_size"] * search.beam_size
    limits = {}
    for line in table.splitlines()[2:]:
        name, *cells = [cell.strip("` ") for cell in line.strip("|").split("|")]
        numbers = [float(cell.partition(" ")[0]) for cell in cells]
        limits[name] = int(numbers[2])
        config = ModelConfig.preset(name, vocabulary_size=8000)
        position = rows * config.model_dim * config.num_layers * 16
        total = 1.5e9 + batching["num_batch_threads"] * longest * position
        assert numbers[:2] == [round(longest * position / 1e9, 1), round(total / 1e9, 1)]
        short = 1.5e9 + batching["num_batch_threads"] * shortened * position
        for limit, need in zip(numbers[2:], (total, short), strict=True):
            assert need < limit * 2**30 < 1.6 * need
    compose = (_FOLDER / "compose.yaml").read_text()
    assert limits["small"] == limits["base"]
    assert f"mem_limit: {limits['tiny']}g # for tiny; small and base: {limits['base']}g" in compose
    for name in ("kubernetes.yaml", "canary.yaml"):
        (container,) = read(name, "Deployment")["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"memory": f"{limits['tiny']}Gi"}
        comment = f"# for tiny; small and base: {limits['base']}Gi"
        assert comment in (_FOLDER / name).read_text()


def test_canary_is_the_deployment_with_another_image():
    stable, canary = (read(name, "Deployment") for name in ("kubernetes.yaml", "canary.yaml"))
    service = read("kubernetes.yaml", "Service")
    labels = canary["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert labels == canary["spec"]["selector"]["matchLabels"] == canary["metadata"]["labels"]
    assert labels != stable["spec"]["selector"]["matchLabels"]
    expected = copy.deepcopy(stable)
    expected["metadata"] = {"name": "translator-canary", "labels": labels}
    expected["spec"]["replicas"] = 1
    expected["spec"]["selector"]["matchLabels"] = labels
    expected["spec"]["template"]["metadata"]["labels"] = labels
    image = canary["spec"]["template"]["spec"]["containers"][0]["image"]
    expected["spec"]["template"]["spec"]["containers"][0]["image"] = image
    assert canary == expected
