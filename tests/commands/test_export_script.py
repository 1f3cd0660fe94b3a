"""The command export: formats, versions, names and messages."""

import json
import re

import pytest
from helpers import names_in

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


def test_ctranslate2_format_has_versions(call, run_dir, tmp_path):
    pytest.importorskip("ctranslate2", reason="needs the package ctranslate2")
    result = call(
        "export.py", f"--run_dir={run_dir}", f"--export_dir={tmp_path}", "--format=ctranslate2"
    )
    assert result.code == 0, result.err
    assert f"to {tmp_path}/1 (" in result.out
    assert "model.bin" in names_in(tmp_path / "1")


def test_transformers_format_has_versions(call, run_dir, tmp_path, refused):
    export = ("export.py", f"--run_dir={run_dir}", f"--export_dir={tmp_path}")
    for version in ("1", "2"):
        result = call(*export, "--format=transformers")
        assert result.code == 0, result.err
        assert f"to {tmp_path}/{version} (" in result.out
    assert {"config.json", "model.safetensors", "source.spm"} < set(names_in(tmp_path / "2"))
    refused(call(*export), "give the SavedModel model another folder")
