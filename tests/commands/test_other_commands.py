"""export, explore, and the shell scripts that set up."""

import json
import pathlib
import re
import subprocess

import pytest
import tiny_run
from helpers import names_in

from keras_transformer.config import TrainingConfig
from keras_transformer.models import build_model
from keras_transformer.tasks import ParsingTask
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
_SERVER_FILES = ["batching_parameters.txt", "models.config", "monitoring.config", "serve.sh"]


@pytest.mark.slow
def test_export_of_an_ensemble_in_bfloat16(call, run_dir, texts, words, tmp_path):
    folder = tmp_path / "letters"
    result = call(
        "export.py", f"--run_dir={run_dir}", f"--export_dir={folder}", "--model_version=3",
        "--checkpoint=latest,average", "--beam_size=2", "--precision=bfloat16",
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert re.fullmatch(r"Checking the answers for \d+ sentences in a fresh process ...", lines[0])
    assert lines[1] == "They are those of Python."
    assert " ".join(lines[2].split()) == "serving_default: text -> translations, scores, source_cut"
    assert lines[-1].startswith(f"Exported checkpoint step-300,average to {folder}/3 (")
    assert names_in(folder) == ["3", *_SERVER_FILES]
    assert "TF_ENABLE_ONEDNN_OPTS=1\n" in (folder / "serve.sh").read_text()
    card = json.loads((folder / "3" / "assets.extra" / "model_card.json").read_text())
    assert [run["checkpoint"] for run in card["training"]] == ["step-300", "average"]
    assert card["search"]["beam_size"] == 2
    assert card["precision"] == "bfloat16"
    assert str(tmp_path.parent) not in json.dumps(card)
    warm_up = (folder / "3" / "assets.extra" / "tf_serving_warmup_requests").read_bytes()
    dev = [line for line in (texts / "dev.en").read_bytes().splitlines() if line.count(b" ") > 2]
    assert dev and not [line for line in dev if line in warm_up]  # the text is generated
    result = call("translate.py", f"--saved_model={folder}/3", texts / "test.en")
    source = (texts / "test.en").read_text().splitlines()
    expected = [" ".join(words[word] for word in line.split()) for line in source]
    assert result.out.splitlines() == expected


def test_learned_options_of_a_task_are_named_or_equal(call, refused, tmp_path):
    vocabulary = tiny_run.make_vocabulary()
    model = build_model(tiny_run.model_config())
    for keeps in (True, False):
        task = ParsingTask(copy_words=keeps)
        configs = RunConfigs(model.config, None, TrainingConfig(), task)
        RunDirectory(tmp_path / str(keeps)).write(configs, vocabulary, vocabulary, model)
    both, folder = f"{tmp_path}/True,{tmp_path}/False", tmp_path / "exports"
    export = ("export.py", "--format=transformers", f"--export_dir={folder}")
    refused(call(*export, f"--run_dir={both}"), "different tasks")
    result = call(*export, f"--run_dir={tmp_path}/True")
    assert result.code == 0 and "what the task parsing makes of them" in result.out


@pytest.mark.parametrize(
    ("toolkit", "files"),
    [
        ("ctranslate2", {"config.json", "model.bin"}),
        ("transformers", {"config.json", "model.safetensors", "source.spm"}),
    ],
)
def test_formats_of_toolkits_have_versions(call, run_dir, tmp_path, toolkit, files):
    if toolkit == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="needs the package ctranslate2")
    export = ("export.py", f"--run_dir={run_dir}", f"--export_dir={tmp_path}")
    for version in ("1", "2"):
        result = call(*export, f"--format={toolkit}")
        assert result.code == 0, result.err
        assert f"to {tmp_path}/{version} (" in result.out
        assert files < set(names_in(tmp_path / version))


def test_explore_compares_checkpoints_and_sentences(call, run_dir, tmp_path):
    page = tmp_path / "page.html"
    models = (f"--run_dir={run_dir}", "--checkpoint=150,300")
    result = call("explore.py", *models, f"--output={page}", "sun cat", "two")
    assert (result.code, result.err, result.out) == (0, "", f"Wrote {page}.\n")
    text = page.read_text()
    assert '"sentences":["sun cat","two"]' in text
    assert text.count('"translation":') == 2 * 2


def test_quickstart_takes_its_folder_relative_to_the_caller(tmp_path):
    (tmp_path / "mine").mkdir()
    command = ["bash", _SCRIPTS / "quickstart.sh", "mine"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    expected = f"quickstart: {tmp_path}/mine exists already; remove it, or name a new folder\n"
    assert (done.returncode, done.stderr) == (1, expected)
