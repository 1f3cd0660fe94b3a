"""Translators by name: a run, an export, a model of another toolkit."""

import pytest

from keras_transformer import Translator
from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.interop.ctranslate2 import export_ctranslate2
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    """The run directory of the model that the tests share."""
    model, source, target = trained
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "words")
    search = {"max_source_length": 12, "max_extra_length": 5}
    configs = RunConfigs(model.config, None, TrainingConfig(), search=search)
    run.write(configs, source, target, model)
    return run


def test_run_is_loaded_with_its_own_search(run, words):
    translator = Translator.load(run.path)
    assert translator.search.max_extra_length == 5
    best = translator.translate("two cat")
    assert str(best) == best.text == f"{words['two']} {words['cat']}"
    assert translator.translate(["two cat"])[0].text == best.text
    n_best = Translator.load(str(run.path), num_translations=2).translate("two cat")
    assert n_best.text == best.text and len(n_best.alternatives) == 1


def test_run_without_a_checkpoint_and_unknown_options_are_reported(run, tmp_path):
    early = tmp_path / "early"
    early.mkdir()
    for name in ("config.json", "source.model"):
        (early / name).write_bytes((run.path / name).read_bytes())
    with pytest.raises(
        InputError, match=r"no checkpoint in .*early/checkpoints yet; train the run"
    ):
        Translator.load(early)
    with pytest.raises(InputError, match="SearchConfig has no field num_beams; it has method, bea"):
        Translator.load(run.path, num_beams=3)


@pytest.mark.slow
def test_export_is_loaded(exported, two_best):
    translator = Translator.load(exported)
    assert str(translator.translate("two cat")) == str(two_best.translate("two cat"))
    with pytest.raises(InputError, match=r"beam_size was fixed when .*/1 was exported; remove it"):
        Translator.load(exported, beam_size=2)
    with pytest.raises(InputError, match=r"checkpoint='best' is for a training run, and .*/1 is n"):
        Translator.load(exported, checkpoint="best")


def test_model_of_another_toolkit_is_loaded(sample_model):
    with pytest.warns(UserWarning, match="Begin a sentence with the code of a language: >>deu<<"):
        translator = Translator.load(sample_model("hf_marian"), max_extra_length=3)
    assert str(translator.translate("a"))
    assert str(translator.translate(">>deu<<a"))
    for text in (">>de<< a", "\ufeff>>de<< a"):
        with pytest.warns(UserWarning, match="lacks the language code"):
            assert translator.translate([text])


def test_export_to_ctranslate2_is_loaded(trained, tmp_path):
    pytest.importorskip("ctranslate2", reason="needs the package ctranslate2")
    translator = Translator.load(export_ctranslate2(*trained, tmp_path / "exported"))
    assert str(translator.translate("two cat")) == str(Translator(*trained).translate("two cat"))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("runs/none", "there is no file or folder runs/none"),
        ("nothing", "no model or folder nothing; the package has the models"),
        ("./nothing", "nothing does not exist; give the folder of a model, or its file"),
        ("gs://bucket/run", "gs://bucket/run is not on this machine"),
    ],
)
def test_wrong_name_is_reported(name, part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between its attempts
    with pytest.raises(InputError, match=part):
        Translator.load(name)


def test_folder_of_several_versions_names_one(exported):
    with pytest.raises(InputError, match=f"no SavedModel in {exported.parent}.*/1"):
        Translator.load(exported.parent)
