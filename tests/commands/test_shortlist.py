"""--shortlist of translate.py and export.py: learned once, kept in the run, and in the export."""

import shutil
import tempfile

import numpy as np
import pytest

from keras_transformer.data import Shortlist
from keras_transformer.training import RunDirectory


@pytest.fixture(scope="module")
def copy(trained, tmp_path_factory):
    """A copy of the trained run, without a shortlist."""
    copy = shutil.copytree(trained, tmp_path_factory.mktemp("shortlist") / "run")
    (copy / "shortlist.npz").unlink(missing_ok=True)
    return copy


def test_translations_contain_only_candidates_of_the_run(call, copy, texts):
    command = ("translate.py", f"--run_dir={copy}", "--shortlist=1", "--batch_size=1")
    result = call(*command, texts / "test.a")
    assert (result.code, result.err) == (0, "")
    path = copy / "shortlist.npz"
    shortlist = Shortlist.load(path).first(1)
    source, target = RunDirectory(copy).vocabularies()
    sentences = (texts / "test.a").read_text().splitlines()
    for sentence, translation in zip(sentences, result.out.splitlines(), strict=True):
        (ids,), (found,) = source.encode([sentence]), target.encode([translation])
        assert found
        assert set(found) <= {*shortlist.common, *shortlist.candidates[ids].ravel()}
    # The file is read from then on: without common tokens there are the candidates alone.
    none = np.zeros_like(shortlist.candidates)
    none[:, 0] = target.encode(["c"])[0]
    Shortlist(common=np.arange(4, dtype=np.int32), candidates=none).save(path)
    again = call(*command, "--forbid_unknown", texts / "test.a")
    path.unlink()
    assert set(again.out.split()) == {"c"}


def test_missing_training_text_is_reported(call, copy, tmp_path, refused):
    run = shutil.copytree(copy, tmp_path / "run")
    (run / "shortlist.npz").unlink(missing_ok=True)
    shutil.rmtree(run / "tokens")
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace("train.a", "gone.a"))
    result = call("translate.py", f"--run_dir={run}", "--shortlist=1", stdin=b"p q\n")
    refused(result, "gone.a")
    assert not (run / "shortlist.npz").exists()


def test_unwritable_run_is_reported(call, copy, tmp_path, refused, monkeypatch):
    run = shutil.copytree(copy, tmp_path / "run")
    (run / "shortlist.npz").unlink(missing_ok=True)
    shutil.rmtree(run / "tokens")

    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    result = call("translate.py", f"--run_dir={run}", "--shortlist=1", stdin=b"p q\n")
    refused(result, f"cannot write {run / 'shortlist.npz'} (Permission denied)")


def test_number_of_candidates_out_of_range_is_rejected(call, copy, refused):
    result = call("translate.py", f"--run_dir={copy}", "--shortlist=101", stdin=b"p q\n")
    refused(result, "shortlist may be from 1 to 100 candidates a token, got 101")


@pytest.mark.slow
def test_export_contains_the_shortlist(call, copy, texts, tmp_path):
    exported = call("export.py", f"--run_dir={copy}", f"--export_dir={tmp_path}", "--shortlist=2")
    assert (exported.code, exported.err) == (0, "")
    (copy / "shortlist.npz").unlink()
    by_export = call("translate.py", f"--saved_model={tmp_path}/1", texts / "test.a")
    by_run = call("translate.py", f"--run_dir={copy}", "--shortlist=2", texts / "test.a")
    assert (by_export.code, by_export.err) == (0, "")
    assert by_export.out == by_run.out
