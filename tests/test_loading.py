"""Translators by name: a run, an export, a model of another toolkit."""

import pytest

from keras_transformer import Translator
from keras_transformer.errors import InputError


def test_run_is_loaded(run_dir, words):
    best = Translator.load(run_dir).translate("two cat")
    assert str(best) == best.text == f"{words['two']} {words['cat']}"
    assert Translator.load(run_dir).known_codes([">>deu<<"]) == []
    (n_best,) = Translator.load(str(run_dir), num_translations=2).translate(["two cat"])
    assert n_best.text == best.text and len(n_best.alternatives) == 1


@pytest.mark.slow
def test_export_is_loaded(exported, two_best):
    translator = Translator.load(exported)
    assert str(translator.translate("two cat")) == str(two_best.translate("two cat"))


def test_model_of_another_toolkit_is_loaded(sample_model):
    with pytest.warns(UserWarning, match="Begin a sentence with the code of a language: >>deu<<"):
        translator = Translator.load(sample_model("hf_marian"), max_extra_length=3)
    assert str(translator.translate("a"))
    assert str(translator.translate(">>deu<<a"))
    assert translator.known_codes([">>de<<", ">>deu<<", ">>wow<<"]) == [">>deu<<"]
    for text in (">>de<< a", "\ufeff>>de<< a"):
        with pytest.warns(UserWarning, match="lacks the language code"):
            assert translator.translate([text])
        with pytest.warns(UserWarning, match="lacks the language code"):
            assert translator.score([text], ["a"])


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("runs/none", {}, "there is no file or folder runs/none"),
        ("nothing", {}, "no model or folder nothing; the package has the models"),
        ("./nothing", {}, "nothing does not exist; give the folder of a model, or its file"),
        ("./best.keras", {}, r"best.keras is a Keras model.*Translator\(model, voc"),
        ("en-de", {"checkpoint": "best"}, "no checkpoint 'best'"),
        ("gs://bucket/run", {}, "gs://bucket/run is not on this machine"),
        ("{run}", {"num_beams": 3}, "SearchConfig has no field num_beams; it has method, bea"),
        ("{exports}", {}, r"no SavedModel in .*exports.*/1"),
        ("{exports}/1", {"beam_size": 2}, "beam_size was fixed when .*/1 was exported; remove it"),
        ("{exports}/1", {"checkpoint": "best"}, "checkpoint was fixed when"),
    ],
)
def test_wrong_name_or_option_is_reported(
    name, options, part, run_dir, exported, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best.keras").touch()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between its attempts
    with pytest.raises(InputError, match=part):
        Translator.load(name.format(run=run_dir, exports=exported.parent), **options)
