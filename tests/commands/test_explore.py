"""scripts/explore.py."""

import json
import socket

import pytest
import tensorflow  # noqa: F401  (imported by `call` first, its flags would be removed again)


def test_explore_writes_a_page(call, run_dir, tmp_path):
    page = tmp_path / "a.html"
    result = call("explore.py", f"--run_dir={run_dir}", "sun cat two", f"--output={page}")
    assert (result.code, result.err, result.out) == (0, "", f"Wrote {page}.\n")
    assert '"sentences":["sun cat two"]' in page.read_text()


@pytest.mark.slow
def test_explore_compares_models_exports_and_sentences(call, run_dir, exported, tmp_path):
    page = tmp_path / "page.html"
    models = (f"--run_dir={run_dir}", "--checkpoint=150,300", f"--saved_model={exported}")
    result = call("explore.py", *models, f"--output={page}", "sun cat", "two")
    assert result.code == 0, result.err
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
