"""Models of the Hugging Face Hub, offered by a server of this machine as the Hub does."""

import sys

import pytest
from fake_hub import COMMIT, GATED, NAME, FakeHub

from keras_transformer.errors import InputError
from keras_transformer.interop import hub, import_run, read_model
from keras_transformer.interop.hub import download

constants = pytest.importorskip(
    "huggingface_hub.constants", reason="needs the package huggingface_hub"
)


@pytest.fixture
def fake_hub(sample_model, monkeypatch, tmp_path):
    server = FakeHub()
    server.models[NAME] = sample_model("hf_marian")
    use_endpoint(monkeypatch, server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    server.server_close()


def use_endpoint(monkeypatch, url):
    """Does what HF_ENDPOINT does when huggingface_hub is imported."""
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def files(requests):
    """Gives the files that were transferred, in order."""
    return [each.removeprefix("GET ") for each in requests if each.startswith("GET ")]


def test_only_needed_files_are_downloaded_once(fake_hub, sample_model, tmp_path, monkeypatch):
    path = download(NAME)
    expected = {"config.json", "generation_config.json", "model.safetensors", "source.spm",
                "target.spm", "vocab.json"}  # fmt: skip
    assert {each.name for each in path.iterdir()} == expected
    assert (sample_model("hf_marian") / "oracle.json").exists()  # which the Hub has besides
    assert set(files(fake_hub.requests)) == expected
    weights = (sample_model("hf_marian") / "model.safetensors").read_bytes()
    assert (path / "model.safetensors").read_bytes() == weights
    assert path.name == COMMIT
    run = import_run(read_model(NAME), tmp_path / "run")
    assert run.configs().origin == {"format": "transformers", "model": NAME, "revision": COMMIT}

    fake_hub.requests.clear()
    assert download(f"{NAME}@v1") == download(f"{NAME}@{COMMIT}") == path
    assert read_model(f"{NAME}@v1").origin == run.configs().origin
    assert files(fake_hub.requests) == []  # of the same commit all are in the cache
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fake_hub.requests.clear()
    assert download(NAME) == path
    assert fake_hub.requests == []
    with pytest.raises(InputError, match=r"some/other has no config.json"):
        download("some/other")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    fake_hub.models["some/pickle"] = sample_model("hf_marian_bin")
    path = download("some/pickle")
    assert {"pytorch_model.bin"} == {each.name for each in path.iterdir()} - expected


def test_models_that_cannot_be_downloaded_are_reported_in_a_line(fake_hub, tmp_path, monkeypatch):
    for name, config in (("some/bert", "bert"), ("some/bare", "marian"), ("some/empty", None)):
        fake_hub.models[name] = tmp_path / name
        (tmp_path / name).mkdir(parents=True)
        if config is not None:
            (tmp_path / name / "config.json").write_text(f'{{"model_type": "{config}"}}')
    for name, message in (
        ("Helsinki-NLP/opus-mt-en-dee", "no file or folder .*-dee, and no config.json of ht"),
        (GATED, "no config.json of http.*/someone/gated .*gated repo"),
        (f"{NAME}@v9", "no config.json of .* Revision Not Found"),
        ("some/bert", "model_type is 'bert', and of the models of transformers only"),
        ("some/empty", "some/empty has no config.json"),
        ("some/bare", "some/bare has no vocab.json, which a MarianMTModel needs"),
        ("some/--", r"no config.json of .*some/--"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            download(name)
        assert "\n" not in str(caught.value)
    assert not {"GET model.safetensors", "GET pytorch_model.bin"} & set(fake_hub.requests)

    use_endpoint(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between its attempts
    with pytest.raises(InputError, match=r"no file or folder .*http://127.0.0.1:9 cannot be"):
        download(NAME)


def test_names_of_the_hub_are_told_from_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub.is_hub_name(NAME) and hub.is_hub_name(f"{NAME}@refs/pr/1")
    (tmp_path / NAME).mkdir(parents=True)
    assert not any(map(hub.is_hub_name, (NAME, "opus-mt-en-de", "/a/b", "../a", "a/b/c")))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        InputError, match=r"no file or folder runs/nmbers; a model of the Hub .*'.\[hub\]'"
    ):
        download("runs/nmbers")
