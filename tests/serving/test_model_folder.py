"""The folder of a model: versions, model cards, the server's files as its own parsers read them."""

import os
import re
import shlex
import subprocess

import pytest
from google.protobuf import text_format
from helpers import names_in
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.errors import InputError
from keras_transformer.protobuf import message_classes
from keras_transformer.serving.model_folder import (
    check_name,
    check_version,
    choose_version,
    read_model_card,
    write_server_files,
)

# Of the server; its packages leave them out.
_MESSAGES = message_classes(
    "settings",
    {
        "Number": {"value": (1, "int64")},
        "BatchingParameters": {
            "max_batch_size": (1, "Number"),
            "batch_timeout_micros": (2, "Number"),
            "max_enqueued_batches": (3, "Number"),
            "num_batch_threads": (4, "Number"),
            "pad_variable_length_inputs": (5, "bool"),
        },
        "PrometheusConfig": {"enable": (1, "bool"), "path": (2, "string")},
    },
)


@pytest.fixture
def folder(tmp_path):
    write_server_files(tmp_path, "words", largest_batch=8)
    return tmp_path


def test_server_parses_its_settings(folder, tmp_path):
    parameters = _MESSAGES["BatchingParameters"]()
    text_format.Parse((folder / "batching_parameters.txt").read_text(), parameters)
    assert parameters.max_batch_size.value == 64 and parameters.num_batch_threads.value >= 1
    assert not parameters.pad_variable_length_inputs  # the server crashes on unequal ranks
    (folder / "batching_parameters.txt").unlink()
    write_server_files(folder, "words", largest_batch=200)  # the largest warm-up request
    parameters.Clear()
    text_format.Parse((folder / "batching_parameters.txt").read_text(), parameters)
    assert parameters.max_batch_size.value == 200

    config = model_server_config_pb2.ModelServerConfig()
    text = (folder / "models.config").read_text()
    # The example in the comment is valid too.
    for each in (text, text.replace("# model_", "model_")):
        config.Clear()
        text_format.Parse(each, config)
        (model,) = config.model_config_list.config
        assert (model.name, model.base_path) == ("words", "/models/words")
    assert list(model.model_version_policy.specific.versions) == [1]

    text = (folder / "monitoring.config").read_text().partition("prometheus_config {")[2]
    metrics = _MESSAGES["PrometheusConfig"]()
    text_format.Parse(text.rpartition("}")[0], metrics)
    assert (metrics.enable, metrics.path) == (True, "/monitoring/prometheus/metrics")


def test_script_runs_the_command_that_it_prints(folder, tmp_path):
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nprintf "%s\\n" docker "$@"\n')
    docker.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def output(*arguments):
        return subprocess.run(
            ["bash", folder / "serve.sh", *arguments],
            env=environment, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    command = shlex.split(output("--print", "--more"))
    assert output("--more").splitlines() == command
    assert command[command.index("-v") + 1] == f"{folder}:/models/words:ro"
    assert "--env=TF_ENABLE_ONEDNN_OPTS=0" in command and command[-1] == "--more"
    files = re.findall(r"=/models/words/(\S+)", " ".join(command))
    assert len(files) == 3 and all((folder / file).is_file() for file in files)
    (folder / "serve.sh").unlink()
    write_server_files(folder, "words", largest_batch=8, one_dnn=True)  # for bfloat16
    assert "--env=TF_ENABLE_ONEDNN_OPTS=1" in shlex.split(output("--print"))


def test_existing_files_are_kept(folder):
    (folder / "models.config").write_text("mine")
    write_server_files(folder, "others", largest_batch=8)
    assert (folder / "models.config").read_text() == "mine"


def test_versions_are_counted(tmp_path):
    for name in ("7", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "7" / "saved_model.pb").touch()
    absent = tmp_path / "absent"
    assert [choose_version(absent, None), choose_version(tmp_path, None)] == [1, 8]
    assert choose_version(tmp_path, 12) == 12
    for number in (7, 2, 0):
        with pytest.raises(InputError, match=f"must be higher than 7, .* got {number}"):
            choose_version(tmp_path, number)
    check_version(tmp_path / "7")
    for path, nearby in ((tmp_path, tmp_path / "7"), (absent, absent / "1")):
        with pytest.raises(InputError, match=f"no SavedModel in .* such as {nearby}$"):
            check_version(path)


@pytest.mark.parametrize("name", ["", "a/b", "a:b", 'a"b', "a\n"])
def test_names_that_requests_cannot_have_are_rejected(name):
    check_name("v1.2_größe-de")
    with pytest.raises(InputError, match=r"name .* must consist of letters"):
        check_name(name)


@pytest.mark.parametrize("text", [None, "", "[]", '{"training": []}'])
def test_missing_or_invalid_card_is_rejected(tmp_path, text):
    if text is not None:
        (tmp_path / "assets.extra").mkdir()
        (tmp_path / "assets.extra" / "model_card.json").write_text(text)
    with pytest.raises(InputError, match="give the folder of an exported version"):
        read_model_card(tmp_path)
    assert names_in(tmp_path) in ([], ["assets.extra"])
