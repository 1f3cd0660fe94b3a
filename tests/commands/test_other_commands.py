"""export, explore, average_checkpoints, and the shell scripts that set up."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess

import numpy as np
import pytest
from helpers import names_in

from keras_transformer.training.run import RunDirectory

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
_SERVER_FILES = ["batching_parameters.txt", "models.config", "monitoring.config", "serve.sh"]


@pytest.mark.slow
def test_export_writes_version_and_model_card(call, run_dir, texts, tmp_path):
    folder = tmp_path / "letters"
    result = call(
        "export.py", f"--run_dir={run_dir}", f"--export_dir={folder}", "--model_version=3",
        "--checkpoint=latest,150", "--beam_size=2",
        "--coverage_penalty=0.2", "--no_repeat_ngram=3", "--min_length=2",
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert re.fullmatch(r"Checking the answers for \d+ sentences in a fresh process ...", lines[0])
    assert lines[1] == "They are those of Python."
    assert " ".join(lines[2].split()) == "serving_default: text -> translations, scores, source_cut"
    assert lines[-1].startswith(f"Exported checkpoint step-300,step-150 to {folder}/3 (")
    assert names_in(folder) == ["3", *_SERVER_FILES]
    card = json.loads((folder / "3" / "assets.extra" / "model_card.json").read_text())
    assert [run["checkpoint"] for run in card["training"]] == ["step-300", "step-150"]
    assert card["search"]["beam_size"] == 2
    assert card["precision"] == {"weights": ["float32"], "computation": "float32"}
    assert card["training"][0]["data"]["train_source"] == "train.en"
    assert str(tmp_path.parent) not in json.dumps(card)
    warm_up = (folder / "3" / "assets.extra" / "tf_serving_warmup_requests").read_bytes()
    dev = [line for line in (texts / "dev.en").read_bytes().splitlines() if line.count(b" ") > 2]
    assert dev and not [line for line in dev if line in warm_up]  # the text is generated


@pytest.mark.slow
def test_bfloat16_export_translates_with_half_the_bytes(call, run_dir, texts, words, tmp_path):
    result = call(
        "export.py", f"--run_dir={run_dir}", f"--export_dir={tmp_path}", "--precision=bfloat16"
    )
    assert result.code == 0, result.err
    assert "TF_ENABLE_ONEDNN_OPTS=1\n" in (tmp_path / "serve.sh").read_text()
    version = tmp_path / "1"
    card = json.loads((version / "assets.extra" / "model_card.json").read_text())
    assert card["precision"] == {"weights": ["bfloat16"], "computation": "bfloat16"}
    size = sum(file.stat().st_size for file in (version / "variables").iterdir())
    assert 2 <= size / card["parameters"] < 3  # and the matrix of the logits a second time
    result = call("translate.py", f"--saved_model={version}", texts / "test.en")
    source = (texts / "test.en").read_text().splitlines()
    expected = [" ".join(words[word] for word in line.split()) for line in source]
    assert result.out.splitlines() == expected


@pytest.mark.parametrize(
    ("toolkit", "files"),
    [
        ("ctranslate2", {"config.json", "model.bin"}),
        ("transformers", {"config.json", "model.safetensors", "source.spm"}),
    ],
)
def test_formats_of_toolkits_have_versions(call, run_dir, tmp_path, refused, toolkit, files):
    if toolkit == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="needs the package ctranslate2")
    export = ("export.py", f"--run_dir={run_dir}", f"--export_dir={tmp_path}")
    for version in ("1", "2"):
        result = call(*export, f"--format={toolkit}")
        assert result.code == 0, result.err
        assert f"to {tmp_path}/{version} (" in result.out
        assert files < set(names_in(tmp_path / version))
    refused(call(*export), "give the SavedModel model another folder")


@pytest.mark.slow
def test_explore_compares_models_exports_and_sentences(call, run_dir, exported, tmp_path):
    page = tmp_path / "page.html"
    models = (f"--run_dir={run_dir}", "--checkpoint=150,300", f"--saved_model={exported}")
    result = call("explore.py", *models, f"--output={page}", "sun cat", "two")
    assert (result.code, result.err, result.out) == (0, "", f"Wrote {page}.\n")
    text = page.read_text()
    assert '"sentences":["sun cat","two"]' in text
    assert text.count('"translation":') == 2 * 3
    assert f'{{"name":"{exported}"' in text
    assert '"attentions":{"cross":{"shape":[1,1,3,3]' in text


def test_explore_shows_no_other_words_than_the_model_wrote(call, refused, tmp_path):
    (tmp_path / "assets.extra").mkdir()
    card = {"training": [{"task": {"name": "parsing"}}], "signatures": {}}
    card |= {
        "search": {"max_source_length": 9, "max_extra_length": 9},
        "precision": {"computation": "float32"},
    }
    (tmp_path / "assets.extra" / "model_card.json").write_text(json.dumps(card))
    (tmp_path / "saved_model.pb").touch()
    command = ("explore.py", f"--saved_model={tmp_path}", "a b", f"--output={tmp_path}/page.html")
    refused(call(*command), f"{tmp_path} answers with other words than the model writes (parsing)")


def test_explore_rejects_port_in_use(call, refused, run_dir):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = call("explore.py", f"--run_dir={run_dir}", "--serve", f"--port={port}")
    refused(result, "Address already in use")


def test_average_checkpoints_selects_steps(call, refused, run_dir, tmp_path):
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    average = copy / "checkpoints" / "average"
    run_dir = f"--run_dir={copy}"
    result = call("average_checkpoints.py", run_dir, "--last=1")
    assert result == (0, f"Averaged step 300 into {average}.\n", "")
    models = [RunDirectory(copy).load_model(name) for name in ("average", "300")]
    for weight, expected in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_array_equal(weight, expected)
    result = call("average_checkpoints.py", run_dir)  # the run would average five
    assert result.out == f"Averaged steps 150, 300 into {average}.\n"
    with RunDirectory(copy).lock():
        result = call("average_checkpoints.py", run_dir, "--last=1")
    refused(result, f"another process creates or trains the run in {copy} now; wait for its end")


def bash(*arguments, cwd, **environment):
    command = ["bash", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True
    )


def test_quickstart_takes_its_folder_relative_to_the_caller(tmp_path):
    (tmp_path / "mine").mkdir()
    done = bash(_SCRIPTS / "quickstart.sh", "mine", cwd=tmp_path)
    expected = f"quickstart: {tmp_path}/mine exists already; remove it, or name a new folder\n"
    assert (done.returncode, done.stderr) == (1, expected)


_PYTHON = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; touch .venv/whole ;;
  "-m pip --version") [ -e .venv/whole ] ;;
esac
"""


def test_half_made_environment_is_made_again(tmp_path):
    """The process that made it was killed before pip was installed."""
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(_PYTHON.format(log=log))
    python.chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(python, tmp_path / ".venv" / "bin" / "python")
    for is_made in (True, False):
        log.unlink(missing_ok=True)
        program = f". {_SCRIPTS}/environment.sh; set -e; make_environment test"
        done = bash("-c", program, cwd=tmp_path, PYTHON=str(python))
        assert done.returncode == 0, done.stderr
        assert ("-m venv .venv\n" in log.read_text()) == is_made
        assert log.read_text().endswith("--editable .[test]\n")
