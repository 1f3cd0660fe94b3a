"""The server's configuration files in a model's folder, read by its own parsers."""

import os
import re
import shlex
import subprocess

import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.errors import InputError
from keras_transformer.serving.model_folder import (
    IMAGE,
    SERVER_ENVIRONMENT,
    SERVER_FLAGS,
    check_name,
    is_served,
    read_batching,
    read_model_card,
    server_uses_one_dnn,
    write_server_files,
)

_FIELD = descriptor_pb2.FieldDescriptorProto
_INT64 = (_FIELD.TYPE_MESSAGE, ".google.protobuf.Int64Value")


def _message(name, **fields):
    """Makes a message type; the server's packages leave these two out."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{name}.proto", syntax="proto3", dependency=[wrappers_pb2.DESCRIPTOR.name]
    )
    message = file.message_type.add(name=name)
    for number, (field, (kind, kind_name)) in enumerate(fields.items(), start=1):
        message.field.add(
            name=field, number=number, type=kind, type_name=kind_name, label=_FIELD.LABEL_OPTIONAL
        )
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.fixture
def folder(tmp_path):
    write_server_files(tmp_path, "words", largest_batch=8)
    return tmp_path


def test_server_parses_batching_parameters(folder):
    parameters = _message(
        "BatchingParameters",
        max_batch_size=_INT64,
        batch_timeout_micros=_INT64,
        max_enqueued_batches=_INT64,
        num_batch_threads=_INT64,
        pad_variable_length_inputs=(_FIELD.TYPE_BOOL, None),
    )()
    text_format.Parse((folder / "batching_parameters.txt").read_text(), parameters)
    assert parameters.max_batch_size.value == 64
    assert parameters.num_batch_threads.value >= 1
    assert parameters.batch_timeout_micros.value == 0
    assert not parameters.pad_variable_length_inputs  # the server crashes on unequal ranks


def test_models_config_fits_the_docker_image(folder):
    config = model_server_config_pb2.ModelServerConfig()
    text = (folder / "models.config").read_text()
    text_format.Parse(text, config)
    (model,) = config.model_config_list.config
    found = (model.name, model.base_path, model.model_platform)
    assert found == ("words", "/models/words", "tensorflow")
    # The example in the comment is valid too.
    text = text.replace("# model_", "model_").replace("# version_", "version_")
    config.Clear()
    text_format.Parse(text, config)
    (model,) = config.model_config_list.config
    assert list(model.model_version_policy.specific.versions) == [1, 2]
    assert dict(model.version_labels) == {"stable": 1, "canary": 2}


def test_models_config_may_name_the_versions_that_are_served(folder, tmp_path):
    config = tmp_path / "models.config"
    config.write_text((folder / "models.config").read_text())
    assert is_served(tmp_path / "3")
    config.write_text("model_version_policy { specific { versions: 1 versions:2 } }  # versions: 3")
    assert [is_served(tmp_path / version) for version in "123"] == [True, True, False]
    config.write_text("model_version_policy { specific { versions: [1, 2] } }")
    assert [is_served(tmp_path / version) for version in "123"] == [True, True, False]


def test_numbers_of_the_batching_file_are_read(folder, tmp_path):
    assert read_batching(folder) == {
        "max_batch_size": 64, "batch_timeout_micros": 0, "num_batch_threads": 2,
        "max_enqueued_batches": 64,
    }  # fmt: skip
    assert read_batching(tmp_path / "absent") == {}
    path = folder / "batching_parameters.txt"
    path.write_text("# größer\nmax_batch_size: { value: 32 }", encoding="latin-1")
    assert read_batching(folder) == {"max_batch_size": 32}
    path.write_text("max_batch_size { # rows\n value : 16 } num_batch_threads < value: 3 >")
    assert read_batching(folder) == {"max_batch_size": 16, "num_batch_threads": 3}
    path.unlink()
    write_server_files(folder, "words", largest_batch=200)  # the largest warm-up request
    assert read_batching(folder)["max_batch_size"] == 200


def test_monitoring_is_enabled(folder):
    text = (folder / "monitoring.config").read_text()
    _, _, inner = text.partition("prometheus_config {")
    config = _message(
        "PrometheusConfig", enable=(_FIELD.TYPE_BOOL, None), path=(_FIELD.TYPE_STRING, None)
    )()
    text_format.Parse(inner.rpartition("}")[0], config)
    assert (config.enable, config.path) == (True, "/monitoring/prometheus/metrics")


def test_script_prints_the_docker_command(folder):
    done = subprocess.run(
        ["bash", folder / "serve.sh", "--print", "--more"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    command = shlex.split(done.stdout)
    image = command.index(IMAGE)
    assert command[:2] == ["docker", "run"]
    assert command[command.index("-v") + 1] == f"{folder}:/models/words:ro"
    environment = [each.removeprefix("--env=") for each in command[:image] if "--env=" in each]
    assert environment == list(SERVER_ENVIRONMENT)
    flags = [flag.format(name="words") for flag in SERVER_FLAGS]
    assert command[image + 1 :] == [*flags, "--more"]
    files = re.findall(r"=/models/words/(\S+)", " ".join(flags))
    assert files and all((folder / file).is_file() for file in files)


def test_script_of_a_bfloat16_model_turns_one_dnn_on(folder, tmp_path):
    half = tmp_path / "half"
    half.mkdir()
    write_server_files(half, "words", largest_batch=8, one_dnn=True)
    assert (server_uses_one_dnn(folder), server_uses_one_dnn(half)) == (False, True)
    script = (half / "serve.sh").read_text()
    assert "\n  TF_ENABLE_ONEDNN_OPTS=1\n" in script and "TF_ENABLE_ONEDNN_OPTS=0" not in script


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

    assert output("--more").splitlines() == shlex.split(output("--print", "--more"))


def test_existing_files_are_kept(folder):
    (folder / "batching_parameters.txt").write_text("max_batch_size { value: 8 }\n")
    (folder / "models.config").unlink()
    write_server_files(folder, "others", largest_batch=8)
    assert (folder / "batching_parameters.txt").read_text() == "max_batch_size { value: 8 }\n"
    assert '"/models/others"' in (folder / "models.config").read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("others", "calls the model 'words', not 'others'; give --name=words"),
        *((name, "name .* must consist of letters") for name in ("", "a/b", "a:b", 'a"b', "a\n")),
    ],
)
def test_names_of_other_models_and_invalid_ones_are_rejected(folder, name, message):
    check_name(folder, "words")
    check_name(folder / "new", "v1.2_größe-de")
    with pytest.raises(InputError, match=message):
        check_name(folder, name)


def test_missing_or_invalid_card_is_rejected(tmp_path):
    with pytest.raises(InputError, match="give the folder of an exported version"):
        read_model_card(tmp_path)
    path = tmp_path / "assets.extra" / "model_card.json"
    path.parent.mkdir()
    of_older = '{"training": [{}], "search": {}, "signatures": {}, "precision": {}}'
    message = "not a model card of this release; export the model again"
    for text in ("[]", '{"training": null}', '{"training": []}', of_older):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_model_card(tmp_path)
