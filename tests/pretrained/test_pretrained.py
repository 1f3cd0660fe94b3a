"""Models that come with the package: packed in half precision, loaded by name without a network."""

import json
import pathlib
import runpy
import socket

import numpy as np
import pytest

from keras_transformer import Translator
from keras_transformer.errors import InputError
from keras_transformer.loading import open_model
from keras_transformer.pretrained import pack
from keras_transformer.training import run as training_run
from keras_transformer.training.run import RunDirectory

_MOST_BYTES = 8_000_000
_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(run_dir, tmp_path_factory):
    """A folder of models with the trained one as "words", with its own vocabulary for each side."""
    folder = tmp_path_factory.mktemp("pretrained")
    card = folder / "card.md"
    card.write_text("# Words\n\nLicence: CC0.\n")
    pack(RunDirectory(run_dir), folder / "words", card)
    return folder


@pytest.fixture
def packed(folder, monkeypatch):
    monkeypatch.setattr(training_run, "PRETRAINED", folder)
    return folder


def test_packed_model_is_a_run_half_as_large_that_keeps_no_path(packed, trained, run_dir, tmp_path):
    (tmp_path / "card.md").write_text("card")
    with pytest.raises(InputError, match="exists already"):
        pack(RunDirectory(run_dir), packed / "words", tmp_path / "card.md")
    folder, (model, *vocabularies) = packed / "words", trained
    assert (folder / "README.md").read_text() == "# Words\n\nLicence: CC0.\n"
    num_bytes = 2 * sum(int(np.prod(weight.shape)) for weight in model.weights)
    assert (folder / "checkpoints" / "step-0.safetensors").stat().st_size < 1.3 * num_bytes
    assert str(run_dir) not in (folder / "config.json").read_text()
    run, _ = RunDirectory.of_checkpoint("words")
    assert [each.fingerprint for each in run.vocabularies()] == [
        each.fingerprint for each in vocabularies
    ]
    configs, trained_with = run.configs(), RunDirectory(run_dir).configs().training.to_dict()
    assert configs.origin == {"model": "words", "training": trained_with}
    assert configs.data is None and configs.training_options == trained_with
    description = open_model("words").describe()  # of weights that this run has not trained
    assert description["origin"] == configs.origin
    assert description.keys() == {"checkpoint", "task", "origin"}
    for weight, original in zip(run.load_model().weights, model.weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), original.numpy(), rtol=1e-3, atol=1e-7)


def test_name_without_slash_is_the_model_in_the_package(packed, words, monkeypatch, tmp_path):
    def no_network(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").mkdir()
    translator = Translator.load("words", max_extra_length=5)
    assert translator.translate("two cat").text == f"{words['two']} {words['cat']}"
    for name in ("./words", tmp_path / "words"):
        with pytest.raises(InputError, match=r"words must have the files of one format of .*none"):
            Translator.load(name)


def test_weights_beyond_half_precision_are_rejected(run_dir, tmp_path):
    origin, run = RunDirectory(run_dir), RunDirectory(tmp_path / "run")
    model = origin.load_model()
    model.weights[0].assign(model.weights[0] + 1e6)
    run.write(origin.configs(), *origin.vocabularies(), model)
    (tmp_path / "card.md").write_text("card")
    with pytest.raises(InputError, match=r"is too large for float16"):
        pack(run, tmp_path / "large", tmp_path / "card.md")
    assert not (tmp_path / "large").exists()


@pytest.mark.parametrize("name", training_run.packaged_models())
def test_shipped_model_is_small_has_a_card_and_translates(name):
    folder = training_run.PRETRAINED / name
    assert sum(path.stat().st_size for path in folder.rglob("*")) <= _MOST_BYTES
    assert "licen" in (folder / "README.md").read_text("utf-8").lower()
    assert Translator.load(name).translate("Good morning.").text.strip()


@pytest.mark.slow
def test_shipped_model_takes_what_people_type():
    program = runpy.run_path(str(_ROOT / "examples" / "recipes" / "everyday.py"))
    translator = Translator.load("en-de")
    least = {"numbers": 0.95, "addresses": 0.8, "other_scripts": 0.95}
    for kind, items in program["ITEMS"].items():
        assert program["share_kept"](translator, items.split()) >= least[kind], kind
    capitals = translator.translate(["THE TRAIN IS LATE.", "I like dogs 😀", "2024", "…"])
    assert [each.text for each in capitals[1:]] == ["Ich mag Hunde 😀", "2024", "…"]
    assert capitals[0].text.startswith("DER ZUG ")
    # Unknown words alone, and words whose letters joiners and selectors join, come back whole.
    joined = ["Привет мир", "می\u200cخواهم", "I like 👩\u200d💻"]
    found = [each.text for each in translator.translate(joined)]
    assert found == [*joined[:2], "Ich mag 👩\u200d💻"]


@pytest.mark.slow
def test_commands_take_the_name_of_a_model(packed, call, texts, tmp_path):
    output = tmp_path / "output"
    result = call("translate.py", "--model=words", f"--output={output}", texts / "test.en")
    assert result.code == 0 and output.read_text() == (texts / "test.xx").read_text()
    pair = (f"--source={texts / 'test.en'}", f"--target={texts / 'test.xx'}")
    result = call("evaluate.py", "--model=words", *pair, "--json")
    assert json.loads(result.out)["exact_match"] == 1
    assert json.loads(result.out)["checkpoint"] == "words"
